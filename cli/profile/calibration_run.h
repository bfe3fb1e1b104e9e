// Runs a calibration in rounds: chooses the next sample, skips points, saves. Neighbour:
// calibrate.cc takes the samples and knows the record's place. Knows no model.
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
  int rounds = 5;             // samples per point. Range 1..1000
  double point_seconds = 10;  // time limit for all samples of one point
};

struct CalibrationHooks {
  // Returns microseconds. RESOURCE_EXHAUSTED: the point cannot be measured here; it is skipped with
  // that message.
  std::function<absl::StatusOr<double>(const v1::CalibrationPoint&)> sample;
  // Called about once a second while samples are taken, and at the end, also after an error.
  std::function<absl::Status(const v1::Calibration&)> save;
  // Share of the remaining samples that are done, and the current point.
  std::function<void(double done, std::string_view what)> progress;
};

// "level 40 %, prefill of 256 tokens"
std::string PointName(const v1::CalibrationPoint& point);

// Takes the samples that `record` (its points set) lacks, in rounds over all points, so that a
// disturbance is spread over them; then sets `complete`. A point whose next sample would exceed its
// time gets fewer samples, but at least three; it is skipped if shorter points show that not even
// three fit. Errors: those of the hooks; the samples taken are saved anyway, and another call with
// that record continues.
absl::Status RunCalibration(const CalibrationOptions& options, const CalibrationHooks& hooks,
                            const Clock& clock, v1::Calibration* record);

}  // namespace withy::cli
