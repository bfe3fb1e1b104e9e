// The rounds of a calibration: which sample comes next, which points are left out, when to save.
// Neighbours: calibrate.cc says how a sample is taken and where the record lies. Knows no model.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "withy/v1/calibration.pb.h"

namespace withy::cli {

struct CalibrationOptions {
  int rounds = 5;             // samples of a point. Range 1..1000
  double point_seconds = 10;  // that the samples of one point may take together
};

struct CalibrationHooks {
  // Microseconds. RESOURCE_EXHAUSTED: this point cannot be measured here, and is left out with that
  // message.
  std::function<absl::StatusOr<double>(const v1::CalibrationPoint&)> sample;
  // Called about every second while samples come in, and at the end of any kind.
  std::function<absl::Status(const v1::Calibration&)> save;
  // Share of what was left to measure, and what is measured now.
  std::function<void(double done, std::string_view what)> progress;
};

// "level 40 %, prefill of 256 tokens"
std::string PointName(const v1::CalibrationPoint& point);

// Adds the samples that `record` (with its points in place) lacks, in rounds over all points, so
// that a disturbance does not fall on one of them; then sets `complete`. A point whose next sample
// would go beyond its time gets fewer, at least three, and is left out when not even these fit, by
// what shorter ones took. Errors: those of the hooks; what was measured is saved all the same, and
// the next call with that record goes on.
absl::Status RunCalibration(const CalibrationOptions& options, const CalibrationHooks& hooks,
                            const Clock& clock, v1::Calibration* record);

}  // namespace withy::cli
