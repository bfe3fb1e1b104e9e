#include "profiler_agent/agent.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace withy::profiler_agent {
namespace {
constexpr int64_t kStalledNs = 3 * kNanosPerSecond;
}

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(const AgentOptions& options,
                                                    telemetry::Recorder& recorder,
                                                    const Clock& clock) {
  WITHY_ASSIGN_OR_RETURN(auto reader, telemetry::Reader::Open(options.rings_directory));
  auto agent = std::unique_ptr<Agent>(new Agent(options, recorder, clock, std::move(reader)));
  agent->thread_ =
      std::thread([raw = agent.get(), poll_ms = options.poll_ms] { raw->Run(poll_ms); });
  return agent;
}

Agent::Agent(const AgentOptions& options, telemetry::Recorder& recorder, const Clock& clock,
             std::unique_ptr<telemetry::Reader> reader)
    : clock_(clock),
      started_ns_(clock.SteadyNanos()),
      last_poll_ns_(clock.SteadyNanos()),
      polls_(recorder.counter({.name = "withy_ring_polls_total", .help = "Drains of all rings."})),
      problems_(recorder.counter(
          {.name = "withy_ring_problems_total", .help = "Ring files found broken."})),
      room_(options.state_dir, recorder),
      reader_(std::move(reader)),
      profile_(options.span_limit) {}

Agent::~Agent() {
  {
    absl::MutexLock lock(&stop_mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Agent::Run(uint32_t poll_ms) {
  while (true) {
    Poll();
    room_.Look(clock_.SteadyNanos());
    absl::MutexLock lock(&stop_mutex_);
    if (stop_mutex_.AwaitWithTimeout(absl::Condition(&stopping_), absl::Milliseconds(poll_ms))) {
      return;
    }
  }
}

void Agent::Poll() {
  std::vector<absl::Status> problems;
  {
    absl::MutexLock reader_lock(&reader_mutex_);
    absl::MutexLock profile_lock(&profile_mutex_);
    problems = reader_->Drain([this](const telemetry::SpanEvent& event) {
      profile_mutex_.AssertHeld();
      Take(event);
    });
  }
  HandOn();
  for (const absl::Status& problem : problems) spdlog::warn("{}", problem.ToString());
  problems_.Add(problems.size());
  polls_.Add();
  last_poll_ns_.store(clock_.SteadyNanos(), std::memory_order_relaxed);
}

void Agent::Take(const telemetry::SpanEvent& event) {
  const StoredSpan& stored = profile_.Add(event);
  const bool kernel = event.span.kind == telemetry::SpanKind::kKernel;
  if (!kernel) recent_.Add(event.process, event.pid, event.name, event.span);
  if (capture_ != nullptr) {
    if (capture_->captured.set.spans.size() < kCapturedSpans) {
      capture_->captured.set.spans.push_back(stored);
    } else {
      ++capture_->captured.left_out;
    }
  }
  for (const std::shared_ptr<Watcher>& watcher : watchers_) {
    const SpanFilter& filter = watcher->filter;
    if (kernel && !filter.kernels) continue;
    if (filter.call_id != 0 && filter.call_id != event.span.call_id) continue;
    if (watcher->rows.size() < kWatchedSpans) {
      watcher->rows.push_back(profile_.RowOf(stored));
    } else {
      ++watcher->left_out;
    }
  }
}

void Agent::HandOn() {
  struct Delivery {
    std::shared_ptr<Watcher> watcher;
    std::vector<SpanRow> rows;
    uint64_t left_out;
  };
  std::vector<Delivery> deliveries;
  {
    absl::MutexLock lock(&profile_mutex_);
    for (const std::shared_ptr<Watcher>& watcher : watchers_) {
      // Also without spans, so that a watcher that has left is noticed.
      deliveries.push_back({watcher, std::exchange(watcher->rows, {}),
                            std::exchange(watcher->left_out, uint64_t{0})});
    }
  }
  for (const Delivery& delivery : deliveries) {
    if (delivery.watcher->take(delivery.rows, delivery.left_out)) continue;
    absl::MutexLock lock(&profile_mutex_);
    std::erase(watchers_, delivery.watcher);
  }
}

absl::Status Agent::Watch(const SpanFilter& filter, SpanWatcher watcher) {
  absl::MutexLock lock(&profile_mutex_);
  if (watchers_.size() >= kWatchers) {
    return absl::ResourceExhaustedError(absl::StrCat(
        watchers_.size(), " streams of spans are open, which is the limit: end one of them"));
  }
  watchers_.push_back(std::make_shared<Watcher>(Watcher{filter, std::move(watcher), {}, 0}));
  return absl::OkStatus();
}

uint64_t Agent::DroppedSpans() const {
  uint64_t dropped = 0;
  for (const telemetry::SourceInfo& source : Sources()) dropped += source.dropped;
  return dropped;
}

absl::Status Agent::BeginCapture(absl::Duration length) {
  // What is in the rings now came before.
  Poll();
  const uint64_t dropped = DroppedSpans();
  const int64_t now_ns = clock_.SteadyNanos();
  absl::MutexLock lock(&profile_mutex_);
  if (capture_ != nullptr) {
    const int64_t left_ns = std::max<int64_t>(0, capture_->planned_end_ns - now_ns);
    return absl::FailedPreconditionError(absl::StrCat(
        "another capture runs, for ", (left_ns + kNanosPerSecond - 1) / kNanosPerSecond,
        " s more; one runs at a time: try again then"));
  }
  capture_ = std::make_unique<Capture>();
  capture_->captured.started_ns = now_ns;
  capture_->planned_end_ns = now_ns + absl::ToInt64Nanoseconds(length);
  capture_->dropped_before = dropped;
  return absl::OkStatus();
}

Captured Agent::EndCapture() {
  Poll();
  const uint64_t dropped = DroppedSpans();
  absl::MutexLock lock(&profile_mutex_);
  Captured captured = std::move(capture_->captured);
  // The counts of a process that ended meanwhile are gone.
  captured.lost = dropped > capture_->dropped_before ? dropped - capture_->dropped_before : 0;
  captured.ended_ns = clock_.SteadyNanos();
  captured.set.texts = profile_.Texts();
  capture_.reset();
  return captured;
}

std::vector<PhaseRow> Agent::PhasesWithin(absl::Duration window, double* covered_s) const {
  const int64_t now_ns = clock_.SteadyNanos();
  const int64_t since_ns = std::max<int64_t>(0, now_ns - absl::ToInt64Nanoseconds(window));
  int64_t oldest_ns = 0;
  absl::MutexLock lock(&profile_mutex_);
  std::vector<PhaseRow> rows = profile_.PhasesSince(since_ns, &oldest_ns);
  *covered_s = static_cast<double>(now_ns - std::max(oldest_ns, started_ns_)) / kNanosPerSecond;
  return rows;
}

SpanSet Agent::SpansWithin(absl::Duration window, size_t limit) const {
  const int64_t since_ns = clock_.SteadyNanos() - absl::ToInt64Nanoseconds(window);
  absl::MutexLock lock(&profile_mutex_);
  return profile_.Since(since_ns, limit);
}

std::vector<SizeRow> Agent::Sizes() const {
  absl::MutexLock lock(&profile_mutex_);
  return profile_.Sizes();
}

std::vector<CallRow> Agent::RecentCalls() const {
  absl::MutexLock lock(&profile_mutex_);
  return recent_.Calls();
}

std::vector<TrendPoint> Agent::Trend() const {
  const int64_t now_ns = clock_.SteadyNanos();
  absl::MutexLock lock(&profile_mutex_);
  return recent_.Trend(now_ns);
}

uint64_t Agent::names_folded() const {
  absl::MutexLock lock(&profile_mutex_);
  return profile_.names_folded();
}

std::vector<SpanRow> Agent::Spans(uint64_t call_id, size_t limit) const {
  absl::MutexLock lock(&profile_mutex_);
  return profile_.Spans(call_id, limit);
}

std::vector<PhaseRow> Agent::Phases() const {
  absl::MutexLock lock(&profile_mutex_);
  return profile_.Phases();
}

uint64_t Agent::phase_overflows() const {
  absl::MutexLock lock(&profile_mutex_);
  return profile_.phase_overflows();
}

std::vector<telemetry::SourceInfo> Agent::Sources() const {
  absl::MutexLock lock(&reader_mutex_);
  return reader_->Sources();
}

AgentInfo Agent::Info() const {
  AgentInfo info;
  std::set<std::string> processes;
  for (const telemetry::SourceInfo& source : Sources()) {
    info.rings += source.rings;
    info.dropped_spans += source.dropped;
    processes.insert(source.process);
  }
  info.processes = processes.size();
  absl::MutexLock lock(&profile_mutex_);
  info.spans = profile_.spans_seen();
  return info;
}

bool Agent::MakesProgress() const {
  return clock_.SteadyNanos() - last_poll_ns_.load(std::memory_order_relaxed) < kStalledNs;
}

}  // namespace withy::profiler_agent
