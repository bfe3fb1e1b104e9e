// The kernel tables that kernels.cc chooses from; internal to the kernels. Each returns nullptr if
// the build does not contain the target or the CPU cannot run it.
#pragma once

#include "engine/cpu/kernels.h"

namespace withy::engine {

const Kernels* PortableKernels();
const Kernels* Avx2Kernels();
const Kernels* Avx512VnniKernels();
const Kernels* NeonDotKernels();
const Kernels* NeonI8mmKernels();

}  // namespace withy::engine
