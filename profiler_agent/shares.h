// How much of the time each name takes. Pure. Neighbours: service.cc and live_json.cc print shares.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "profiler_agent/profile.h"

namespace withy::profiler_agent {

// Of the rows that it is made from.
class Shares {
 public:
  explicit Shares(const std::vector<PhaseRow>& rows) {
    for (const PhaseRow& row : rows) {
      if (row.kind == telemetry::SpanKind::kKernel) {
        kernels_[row.process] += row.histogram.total_ns();
      } else if (row.process == "orchestrator" && row.name == "end_to_end") {
        calls_ = row.histogram.total_ns();
      }
    }
  }

  // Of a kernel: its part of the time of all kernels of its process. Of another span: its time over
  // that of all calls, from arrival to last token; phases that contain others add up to more than
  // 1. 0 if no call finished.
  double Of(const PhaseRow& row) const {
    const auto kernels = kernels_.find(row.process);
    const bool kernel = row.kind == telemetry::SpanKind::kKernel;
    const double whole = !kernel ? calls_ : kernels == kernels_.end() ? 0 : kernels->second;
    return whole > 0 ? row.histogram.total_ns() / whole : 0;
  }

 private:
  std::map<std::string, double> kernels_;  // time of all kernels, by process
  double calls_ = 0;                       // time of all calls that apps made
};

}  // namespace withy::profiler_agent
