// Process-wide library settings for training programs; apply before the first tensor.
#pragma once

namespace withy::train {

// Keeps freed activations for the next step instead of returning them to the kernel, and makes MKL
// use its AVX-512 kernels on processors of any vendor.
void TuneRuntime();

// Makes products called from this thread single-threaded: LibTorch's own, and, in the whole
// process, OpenBLAS's, which ignores LibTorch's setting.
void ComputeOnOneThread();

}  // namespace withy::train
