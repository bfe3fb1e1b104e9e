#include "orchestrator/board/prober.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "policy/constants.h"

namespace withy::orchestrator {
namespace {

// Plain words, about a token each, of which a model goes on with more.
std::string ProbeText(uint32_t words) {
  constexpr std::string_view kWords[] = {"one", "two",   "three", "four", "five",
                                         "six", "seven", "eight", "nine", "ten"};
  std::string text;
  for (uint32_t i = 0; i < words; ++i) {
    if (i > 0) text += ' ';
    text += kWords[i % std::size(kWords)];
  }
  return text;
}

double Off(double measured_ms, double predicted_ms) {
  return measured_ms > 0 && predicted_ms > 0 ? std::abs(measured_ms / predicted_ms - 1) : 0;
}

}  // namespace

Prober::Prober(Backends& backends, Workers& workers, Auditor* auditor, const Clock& clock,
               telemetry::Recorder& recorder)
    : workers_(workers),
      auditor_(auditor),
      clock_(clock),
      probes_(recorder.counter(
          {.name = "withy_probes_total",
           .help = "Measurements of the board's speed after strict calls were refused."})),
      idle_(backends, clock, [this] { return MeasureNext(); }) {}

void Prober::Refused(policy::Lane lane, policy::Doubt doubt) {
  int64_t due_ns;
  {
    absl::MutexLock lock(&mutex_);
    policies_[static_cast<size_t>(lane)].Refused(std::move(doubt));
    due_ns = DueNs();
  }
  idle_.Schedule(due_ns);
}

int64_t Prober::DueNs() const {
  int64_t due_ns = IdleTask::kNothing;
  for (const policy::ProbePolicy& policy : policies_) {
    if (policy.wanted()) due_ns = std::min(due_ns, policy.due_ns());
  }
  return due_ns;
}

int64_t Prober::MeasureNext() {
  std::optional<Work> work;
  {
    absl::MutexLock lock(&mutex_);
    for (const policy::Lane lane : {policy::Lane::kTarget, policy::Lane::kDraft}) {
      const policy::Doubt* doubt = policies_[static_cast<size_t>(lane)].Next(clock_.SteadyNanos());
      if (doubt != nullptr && !work.has_value()) work = Work{lane, *doubt};
    }
    if (!work.has_value()) return DueNs();
  }
  if (auditor_ != nullptr) auditor_->CallStarts();
  const absl::StatusOr<double> off = Measure(*work, full_);
  full_ = !full_;
  if (auditor_ != nullptr) auditor_->CallEnds();
  absl::MutexLock lock(&mutex_);
  policy::ProbePolicy& policy = policies_[static_cast<size_t>(work->lane)];
  if (off.ok()) {
    policy.Measured(clock_.SteadyNanos(), *off);
  } else if (!absl::IsCancelled(off.status())) {
    policy.Failed(clock_.SteadyNanos());
  }
  return DueNs();
}

// By how much predictions were off, as a share: the larger of TTFT's and TPOT's. In turn at the
// level in doubt and at the full model, whose pace is that of all levels.
absl::StatusOr<double> Prober::Measure(const Work& work, bool full) {
  const policy::Doubt& doubt = work.doubt;
  const uint32_t percent = full ? policy::kFullPercent : doubt.level_percent;
  policy::LiveCorrection live = workers_.Live(work.lane);
  WITHY_ASSIGN_OR_RETURN(policy::Observation seen,
                         Ask(work, percent, policy::ProbeTokens(doubt, live)));
  if (percent != policy::kFullPercent) seen.level = doubt.level;
  // A call is decided before it is run, which a probe is not: it tells only of overhead that is far
  // too high.
  const double most_overhead_ms = 2 * seen.overhead_ms + 1;
  seen.overhead_ms = live.overhead_ms > most_overhead_ms ? most_overhead_ms : -1;
  seen.level_percent = percent;
  seen.full_alone = percent == policy::kFullPercent;
  seen.probe = true;
  live.slowdown = workers_.Live(work.lane).slowdown;  // as the probe has found it
  const policy::Prediction predicted = policy::Predict(doubt.cost, live,
                                                       {.prefill_tokens = seen.prefilled_tokens,
                                                        .max_tokens = policy::kProbeAnswerTokens,
                                                        .level = seen.level,
                                                        .resident_tokens = seen.resident_tokens,
                                                        .level_percent = percent,
                                                        .answer_tokens = seen.decoded_tokens + 1.0},
                                                       policy::Load{});
  workers_.Learn(work.lane, doubt.cost, seen);
  probes_.Add();
  const double tpot_ms = seen.decoded_tokens > 0 ? seen.decode_ms / seen.decoded_tokens : 0;
  const double overhead_off = seen.overhead_ms >= 0 ? Off(seen.overhead_ms, live.overhead_ms) : 0;
  return std::max({Off(seen.prefill_ms, predicted.ttft_ms - live.overhead_ms),
                   Off(tpot_ms, predicted.tpot_ms), overhead_off});
}

// Errors: CANCELLED (a call runs), of the worker.
absl::StatusOr<policy::Observation> Prober::Ask(const Work& work, uint32_t level_percent,
                                                uint32_t tokens) {
  v1::RunRequest request;
  request.set_app_id(work.doubt.app_id);
  request.mutable_prompt()->set_text(ProbeText(tokens));
  request.mutable_sampling()->set_temperature(0);
  request.mutable_limits()->set_max_tokens(policy::kProbeAnswerTokens);
  request.set_model_level_percent(level_percent);
  request.set_level_fixed(true);
  request.set_speculation(v1::SPECULATION_OFF);  // it measures plain steps
  request.set_worker_instance(work.doubt.worker_instance);
  const int64_t start_ns = clock_.SteadyNanos();
  int64_t first_ns = 0, last_ns = 0;
  uint32_t received = 0, first_received = 0;
  std::optional<v1::GenerateFinished> finished;
  const absl::Status status = idle_.Ask(work.lane, std::move(request), [&](v1::RunResponse& event) {
    workers_.TellSlowdown(work.lane, event.board_slowdown());
    if (event.has_delta() && !event.delta().tokens().empty()) {
      last_ns = clock_.SteadyNanos();
      const auto count = static_cast<uint32_t>(event.delta().tokens_size());
      if (received == 0) {
        first_ns = last_ns;
        first_received = count;
      }
      received += count;
    }
    if (event.has_finished()) finished = event.finished();
    return true;
  });
  if (absl::IsCancelled(status)) return status;
  // Not the code of the worker: CANCELLED would be tried again at once.
  if (!status.ok()) return absl::UnavailableError(status.message());
  if (!finished.has_value() || received == 0) return absl::UnavailableError("no answer");
  policy::Observation seen;
  const v1::LatencyReport& report = finished->latency();
  seen.resident_tokens = finished->usage().reused_tokens();
  seen.prefilled_tokens = finished->usage().prefilled_tokens();
  seen.prefill_ms = report.prefill_ms();
  seen.overhead_ms =
      std::max(0.0, Millis(first_ns - start_ns) - report.queue_ms() - report.prefill_ms());
  seen.decoded_tokens = received - first_received;
  seen.decode_ms = Millis(last_ns - first_ns);
  return seen;
}

}  // namespace withy::orchestrator
