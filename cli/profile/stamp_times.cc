#include "cli/profile/stamp_times.h"

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/strings.h"
#include "cli/output.h"
#include "engine/model/program.h"
#include "engine/session/calibrator.h"

namespace withy::cli {
namespace {

// A measurement that CUPTI's records do not fit is taken again so often.
constexpr int kStampTries = 8;
constexpr int32_t kStampPromptRows = 64;

class RunsOfPasses final : public engine::KernelObserver {
 public:
  RunsOfPasses() : KernelObserver(TickClock()) {}
  void OnPassDone(int32_t, size_t ops, int64_t, int64_t) override { ops_ = ops; }
  void OnKernel(const engine::KernelRun& run) override { runs_.push_back(run); }
  void OnEmbedded(const engine::PassTag&, int64_t, int64_t) override {}

  void Clear() { runs_.clear(); }
  const std::vector<engine::KernelRun>& runs() const { return runs_; }
  size_t ops() const { return ops_; }

 private:
  std::vector<engine::KernelRun> runs_;
  size_t ops_ = 0;  // of the last pass
};

// Samples of `point`, by both.
absl::StatusOr<std::vector<engine::cuda::StampedOp>> SampleTwice(engine::Calibrator& calibrator,
                                                                 const engine::TimedPoint& point,
                                                                 RunsOfPasses& observer,
                                                                 engine::cuda::Cupti& cupti,
                                                                 const std::atomic<bool>* cancel) {
  WITHY_RETURN_IF_ERROR(calibrator.Sample(point, cancel).status());  // warms up
  absl::Status failed;
  for (int i = 0; i < kStampTries; ++i) {
    WITHY_RETURN_IF_ERROR(cupti.Take().status());
    observer.Clear();
    WITHY_RETURN_IF_ERROR(calibrator.Sample(point, cancel).status());
    WITHY_ASSIGN_OR_RETURN(const auto kernels, cupti.Take());
    auto ops = engine::cuda::CompareStamps(observer.runs(), observer.ops(), kernels);
    if (ops.ok()) return ops;
    failed = ops.status();
  }
  return failed;
}

}  // namespace

absl::StatusOr<std::vector<StampTimes>> MeasureStamps(const std::string& path,
                                                      engine::ModelOptions options,
                                                      engine::cuda::Cupti& cupti,
                                                      const std::atomic<bool>* cancel) {
  RunsOfPasses observer;
  options.kernel_observer = &observer;
  WITHY_ASSIGN_OR_RETURN(const auto opened, engine::Model::Open(path, options));
  engine::Model& model = *opened;
  if (!absl::StartsWith(ToAbsl(model.target()), "cuda")) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model is computed by the ", ToAbsl(model.target()),
                     " kernels of the CPU, and CUPTI records kernels of a GPU: set model.device to "
                     "\"cuda\", or leave --cupti out"));
  }
  engine::Calibrator calibrator(model, Clock::Real(), kStampPromptRows);
  const std::pair<const char*, engine::TimedPoint> passes[] = {
      {"decode", {.kind = engine::TimedKind::kDecode}},
      {"prefill", {.kind = engine::TimedKind::kPrefill, .rows = kStampPromptRows}}};
  std::vector<StampTimes> times;
  for (const auto& [name, point] : passes) {
    WITHY_ASSIGN_OR_RETURN(auto ops, SampleTwice(calibrator, point, observer, cupti, cancel));
    times.push_back({name, std::move(ops)});
  }
  return times;
}

std::string StampTable(const std::vector<StampTimes>& times) {
  if (times.empty()) return "";
  std::vector<std::vector<std::string>> rows = {
      {"PASS", "OPERATION", "COUNT", "STAMPS us", "CUPTI us"}};
  for (const StampTimes& pass : times) {
    for (const engine::cuda::StampedOp& op : pass.ops) {
      const auto mean = [&](double us) {
        return absl::StrFormat("%.2f", us / static_cast<double>(op.count));
      };
      rows.push_back({pass.pass, std::string(engine::OpName(op.kind)), absl::StrCat(op.count),
                      mean(op.stamped_us), mean(op.recorded_us)});
    }
  }
  return absl::StrCat("one operation, in the mean:\n", Table(rows));
}

}  // namespace withy::cli
