// The tables that kernels.cc chooses from; internal to the kernels. A target that this build or CPU
// lacks returns nullptr.
#pragma once

#include "engine/cpu/kernels.h"

namespace withy::engine {

const Kernels* PortableKernels();
const Kernels* Avx2Kernels();
const Kernels* Avx512VnniKernels();
const Kernels* NeonDotKernels();

}  // namespace withy::engine
