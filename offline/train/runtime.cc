#include "offline/train/runtime.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <malloc.h>

// MKL, if LibTorch uses it, calls this function to check for an Intel processor and otherwise uses
// AVX2 kernels, with which training is a third slower. The program's definition overrides the
// library's; without MKL it is never called.
extern "C" int mkl_serv_intel_cpu_true() { return 1; }

namespace withy::train {

void TuneRuntime() {
  // The largest value that glibc accepts (half of a thread's heap).
  mallopt(M_MMAP_THRESHOLD, 1 << 25);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

void ComputeOnOneThread() {
  at::set_num_threads(1);
  [[maybe_unused]] static const bool once = [] {
    using SetThreads = void (*)(int);
    const auto set = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"));
    if (set != nullptr) set(1);
    return true;
  }();
}

}  // namespace withy::train
