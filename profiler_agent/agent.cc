#include "profiler_agent/agent.h"

#include <spdlog/spdlog.h>

#include <set>
#include <utility>

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
      last_poll_ns_(clock.SteadyNanos()),
      polls_(recorder.counter({.name = "withy_ring_polls_total", .help = "Drains of all rings."})),
      problems_(recorder.counter(
          {.name = "withy_ring_problems_total", .help = "Ring files found broken."})),
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
      profile_.Add(event);
    });
  }
  for (const absl::Status& problem : problems) spdlog::warn("{}", problem.ToString());
  problems_.Add(problems.size());
  polls_.Add();
  last_poll_ns_.store(clock_.SteadyNanos(), std::memory_order_relaxed);
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
