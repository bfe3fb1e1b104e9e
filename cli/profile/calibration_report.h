// Output of `withyctl calibrate`: tables for people, JSON for programs. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/profile/stamp_times.h"
#include "withy/v1/calibration.pb.h"

namespace withy::cli {

// Above this load average another program is computing.
inline constexpr double kBusyLoad = 0.5;

struct CalibrationResult {
  std::string name = {};  // of the model or TLM
  std::string path = {};  // of the record
  v1::Calibration record = {};
  bool measured_now = false;  // false: the record was already complete
};

struct CalibrationReport {
  CalibrationResult model;
  std::optional<CalibrationResult> tlm;
  std::vector<StampTimes> stamps = {};  // where CUPTI was asked for
};

std::string ReportText(const CalibrationReport& report, int64_t now_unix_ns);
// One JSON object: "model" and, if there is one, "tlm", each with "path" and "record"; where CUPTI
// was asked for "stamps", each with "pass", "op", "count", "stamped_us" and "recorded_us" (sums).
std::string ReportJson(const CalibrationReport& report);

}  // namespace withy::cli
