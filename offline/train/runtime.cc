#include "offline/train/runtime.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <malloc.h>

// MKL, where LibTorch has it, asks this function of its own whether the processor is Intel's and
// else takes AVX2 kernels, for which training is a third slower. The program's definition comes
// before the library's; where there is no MKL nobody calls it.
extern "C" int mkl_serv_intel_cpu_true() { return 1; }

namespace withy::train {

void TuneRuntime() {
  // The largest that glibc takes (half of a thread's heap); more is refused.
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
