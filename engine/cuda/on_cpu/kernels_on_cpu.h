// The table of the kernels that run in the runner.
#pragma once

#include "engine/cuda/kernels/kernels.h"

namespace withy::engine::on_cpu {

// Their stream is a Runner.
const cuda::Kernels& KernelsOnCpu();

}  // namespace withy::engine::on_cpu
