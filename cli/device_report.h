// What withyctl device tells of one GPU. Neighbours: device.cc prints it,
// engine/cuda/gpu/memory_ways.h and engine/model/gpu_check.h measure.
#pragma once

#include <string>
#include <vector>

#include "engine/cuda/gpu/gpu.h"

namespace withy::cli {

struct GpuFact {
  std::string what;   // "driver", "registered memory"
  std::string state;  // one line
};

// Measures a GPU that opened, which means that its products are right. A measurement that fails is
// a line that says why. Below two seconds.
std::vector<GpuFact> ReportGpu(engine::cuda::Gpu& gpu);

}  // namespace withy::cli
