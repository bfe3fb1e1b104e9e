// What every program that trains asks of the libraries under it, before its first tensor.
#pragma once

namespace withy::train {

// Freed activations are kept for the next step instead of being handed back to the kernel, and MKL
// takes its AVX-512 kernels on processors of any maker.
void TuneRuntime();

// Products that the calling thread asks for are computed on it alone: LibTorch's own, and, in the
// whole process, OpenBLAS's, which does not heed LibTorch's setting.
void ComputeOnOneThread();

}  // namespace withy::train
