// The table of the kernels that nvcc compiled. Neighbours: kernels.cu defines it, cuda_gpu.cc hands
// it out.
#pragma once

#include "engine/cuda/kernels/kernels.h"

namespace withy::engine::cuda {

const Kernels& CudaKernels();

// Whether this program has kernels for the current device: cudaSuccess (0) or the error.
int CheckKernelImage();

}  // namespace withy::engine::cuda
