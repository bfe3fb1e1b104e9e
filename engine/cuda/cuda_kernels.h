// The table of the kernels that nvcc compiled. Neighbours: kernels.cu defines it, cuda_gpu.cc hands
// it out.
#pragma once

#include "engine/cuda/kernels.h"

namespace withy::engine::cuda {

const Kernels& CudaKernels();

}  // namespace withy::engine::cuda
