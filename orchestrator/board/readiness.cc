#include "orchestrator/board/readiness.h"

#include <spdlog/spdlog.h>

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/strings.h"

namespace withy::orchestrator {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);
// A process that is restarted is back by then; calls wait so long and no longer.
constexpr int64_t kPatienceNs = 4 * kNanosPerSecond;

// The last is not needed: the target answers without it.
constexpr std::string_view kProcesses[] = {"model_worker", "context_store", "draft_worker"};
constexpr size_t kNeeded = 2;

}  // namespace

Readiness::Readiness(Backends& backends, const Clock& clock, telemetry::Recorder& recorder)
    : backends_(backends),
      clock_(clock),
      gauge_(recorder.gauge(
          {.name = "withy_ready", .help = "Whether a call could be answered now (1)."})) {}

Readiness::~Readiness() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Readiness::Start(std::function<void(bool ready)> tell) {
  tell_ = std::move(tell);
  thread_ = std::thread([this] { Run(); });
}

void Readiness::Drain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  why_ = "draining: it takes no new calls";
  gauge_.Set(0);
  if (tell_) tell_(false);
}

std::string Readiness::Why() const {
  absl::MutexLock lock(&mutex_);
  return why_;
}

void Readiness::Run() {
  while (true) {
    Look();
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kInterval)) return;
  }
}

std::string Readiness::WhyNot(std::string_view process) {
  const absl::Time soon = absl::Now() + kStatusCall;
  if (backends_.Health(process, soon) == "serving") return "";
  // It may say itself what it waits for.
  const absl::Status status =
      process == "context_store" ? backends_.StoreInfo(soon).status()
      : process == "model_worker"
          ? backends_.WorkerInfo(policy::Lane::kTarget, soon, /*wait=*/false).status()
          : backends_.WorkerInfo(policy::Lane::kDraft, soon, /*wait=*/false).status();
  return status.ok() ? absl::StrCat(ToAbsl(process), " does not serve yet")
                     : std::string(status.message());
}

void Readiness::Look() {
  std::string why;
  const int64_t now = clock_.SteadyNanos();
  for (size_t i = 0; i < std::size(kProcesses); ++i) {
    const std::string missing = WhyNot(kProcesses[i]);
    if (missing.empty()) {
      away_ns_[i] = 0;
    } else if (away_ns_[i] == 0) {
      away_ns_[i] = now;
    }
    backends_.SetPatience(kProcesses[i], away_ns_[i] == 0 || now - away_ns_[i] < kPatienceNs);
    if (i < kNeeded && why.empty()) why = missing;
  }
  absl::MutexLock lock(&mutex_);
  if (draining_) return;
  const bool ready = why.empty();
  const bool changed = !std::exchange(told_, true) || ready != why_.empty();
  if (changed && !ready) spdlog::warn("not ready: {}", why);
  if (changed && ready) spdlog::info("ready: calls are answered");
  why_ = std::move(why);
  gauge_.Set(ready ? 1 : 0);
  if (changed && tell_) tell_(ready);
}

}  // namespace withy::orchestrator
