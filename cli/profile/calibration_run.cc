#include "cli/profile/calibration_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/strings.h"
#include "wire/calibration.h"

namespace withy::cli {
namespace {

constexpr int kMinSamples = 3;
constexpr int64_t kSaveEveryNs = kNanosPerSecond;

int LeastSamples(const CalibrationOptions& options) {
  return std::min(kMinSamples, options.rounds);
}

// The quantity that a point's time grows with.
double SizeOf(const v1::CalibrationPoint& point) {
  return point.kind() == v1::CALIBRATION_KIND_READ ? point.text_bytes() : point.rows();
}

bool Grows(const v1::CalibrationPoint& point) {
  return point.kind() == v1::CALIBRATION_KIND_PREFILL || point.kind() == v1::CALIBRATION_KIND_READ;
}

bool Finished(const CalibrationOptions& options, const v1::CalibrationPoint& point) {
  if (!point.left_out().empty() || point.sample_us_size() >= options.rounds) return true;
  if (point.sample_us_size() < LeastSamples(options)) return false;
  double spent_us = engine::MedianUs(point);  // of the next shorter point
  for (const double us : point.sample_us()) spent_us += std::max(us, 0.0);
  return spent_us > options.point_seconds * 1e6;
}

// Reason why `point` does not fit its time, judged by the next shorter point of its kind and level.
std::string WhyTooLong(const CalibrationOptions& options, const v1::Calibration& record,
                       const v1::CalibrationPoint& point) {
  if (!Grows(point) || !point.sample_us().empty()) return "";
  const v1::CalibrationPoint* shorter = nullptr;
  for (const v1::CalibrationPoint& other : record.points()) {
    if (other.kind() != point.kind() || other.level_percent() != point.level_percent()) continue;
    if (SizeOf(other) >= SizeOf(point) || other.sample_us().empty()) continue;
    if (shorter == nullptr || SizeOf(other) > SizeOf(*shorter)) shorter = &other;
  }
  if (shorter == nullptr) return "";
  const double seconds = engine::MedianUs(*shorter) / 1e6 * SizeOf(point) / SizeOf(*shorter);
  if (seconds * LeastSamples(options) <= options.point_seconds) return "";
  return absl::StrFormat("%d times about %.3g s are more than the %g s allowed per point",
                         LeastSamples(options), seconds, options.point_seconds);
}

// Approximate relative time of one sample.
double WeightOf(const v1::CalibrationPoint& point) {
  constexpr double kStepTokens = 40;  // a few decode steps, in prefill tokens
  const double level = std::max(point.level_percent(), 1u);
  return level * (Grows(point) ? SizeOf(point) : kStepTokens);
}

double Left(const CalibrationOptions& options, const v1::Calibration& record) {
  double left = 0;
  for (const v1::CalibrationPoint& point : record.points()) {
    if (!Finished(options, point))
      left += WeightOf(point) * (options.rounds - point.sample_us_size());
  }
  return left;
}

// Saves if enough time has passed since the last save.
class Saver {
 public:
  Saver(const CalibrationHooks& hooks, const Clock& clock)
      : hooks_(hooks), clock_(clock), saved_ns_(clock.SteadyNanos()) {}

  absl::Status Sometimes(const v1::Calibration& record) {
    if (clock_.SteadyNanos() - saved_ns_ < kSaveEveryNs) return absl::OkStatus();
    saved_ns_ = clock_.SteadyNanos();
    return hooks_.save(record);
  }

 private:
  const CalibrationHooks& hooks_;
  const Clock& clock_;
  int64_t saved_ns_;
};

absl::Status TakeSample(const CalibrationHooks& hooks, const Clock& clock, v1::Calibration* record,
                        v1::CalibrationPoint* point) {
  const absl::StatusOr<double> us = hooks.sample(*point);
  if (absl::IsResourceExhausted(us.status())) {
    point->set_left_out(std::string(us.status().message()));
    return absl::OkStatus();
  }
  if (!us.ok()) return us.status();
  point->add_sample_us(*us);
  record->set_measured_unix_s(clock.UnixNanos() / kNanosPerSecond);
  return absl::OkStatus();
}

absl::Status TakeRounds(const CalibrationOptions& options, const CalibrationHooks& hooks,
                        const Clock& clock, v1::Calibration* record) {
  Saver saver(hooks, clock);
  const double whole = std::max(Left(options, *record), 1.0);
  for (int round = 0; round < options.rounds; ++round) {
    for (v1::CalibrationPoint& point : *record->mutable_points()) {
      if (Finished(options, point) || point.sample_us_size() > round) continue;
      if (std::string why = WhyTooLong(options, *record, point); !why.empty()) {
        point.set_left_out(std::move(why));
        continue;
      }
      if (hooks.progress) {
        hooks.progress(
            1 - Left(options, *record) / whole,
            absl::StrCat("round ", round + 1, " of ", options.rounds, ", ", PointName(point)));
      }
      absl::Status status = TakeSample(hooks, clock, record, &point);
      if (status.ok()) status = saver.Sometimes(*record);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string PointName(const v1::CalibrationPoint& point) {
  const std::string level = absl::StrCat("level ", point.level_percent(), " %, ");
  switch (point.kind()) {
    case v1::CALIBRATION_KIND_PREFILL:
      return absl::StrCat(level, "prefill of ", Counted(point.rows(), "token"));
    case v1::CALIBRATION_KIND_DECODE:
      return absl::StrCat(level, "decode of ", point.rows(), " at depth ", point.depth());
    case v1::CALIBRATION_KIND_SWITCH:
      return absl::StrCat(level, "switching to it");
    case v1::CALIBRATION_KIND_RESUME:
      return absl::StrCat(level, "resuming at depth ", point.depth());
    case v1::CALIBRATION_KIND_TREE:
      return absl::StrCat(level, "token tree of ", Counted(point.rows(), "row"));
    case v1::CALIBRATION_KIND_READ:
      return absl::StrCat("TLM, ", point.text_bytes(), " bytes");
    default:
      return "unknown point";
  }
}

absl::Status RunCalibration(const CalibrationOptions& options, const CalibrationHooks& hooks,
                            const Clock& clock, v1::Calibration* record) {
  const absl::Status measured = TakeRounds(options, hooks, clock, record);
  record->set_complete(measured.ok());
  const absl::Status saved = hooks.save(*record);
  return measured.ok() ? saved : measured;
}

}  // namespace withy::cli
