#include "orchestrator/calls.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace withy::orchestrator {
namespace {

// How often a waiting call looks whether the running ones bear it by now: slack also changes where
// nothing happens.
constexpr absl::Duration kHoldPoll = absl::Milliseconds(20);
// For how long arrivals tell how fast calls come.
constexpr double kArrivalMemoryMs = 10'000;
constexpr double kByChance = 1;  // so many of them say nothing of those to come

}  // namespace

absl::Status CallTable::Arrive(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  if (draining_)
    return absl::UnavailableError("orchestrator is shutting down: retry when it is back");
  if (entries_.size() >= options_.limit) {
    const auto running = std::count_if(entries_.begin(), entries_.end(),
                                       [](const auto& e) { return e.second.running(); });
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", running, " calls run, ", entries_.size() - running,
        " wait, queue position would be ", entries_.size() - running,
        ", and orchestrator.queue_limit is ", options_.limit, "; retry after the advised time"));
  }
  entries_.emplace(id, Entry{});
  const int64_t now = clock_.SteadyNanos();
  arrivals_ = ArrivalsNow(now) + 1;
  arrivals_ns_ = now;
  return absl::OkStatus();
}

void CallTable::Leave(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  const Lane lane = it->second.lane;
  if (it->second.state == State::kDecoding)
    Account(lane, -1, -1.0 * it->second.work.resident_tokens);
  entries_.erase(it);
  GrantSlots(lane);
}

Load CallTable::LoadBefore(Lane lane, const QueueKey& key) const {
  const int64_t now = clock_.SteadyNanos();
  Load load;
  load.slots = options_.slots[static_cast<int>(lane)];
  load.piece_ms = options_.piece_ms;
  std::vector<const Entry*> ahead;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, entry] : entries_) {
    if (entry.lane != lane || id == key.id) continue;
    if (entry.running()) {
      load.running.push_back(entry.work);
      load.running.back().slack = SlackOf(entry.demand, ProgressOf(entry), now);
      load.running.back().goes_before = GoesBefore(entry.key, key, now);
    }
    if (entry.state == State::kWaiting && GoesBefore(entry.key, key, now)) ahead.push_back(&entry);
  }
  const double others = ArrivalsNow(now) - kByChance - (entries_.contains(key.id) ? 1 : 0);
  load.arrivals_per_ms = std::max(0.0, others) / kArrivalMemoryMs;
  std::sort(ahead.begin(), ahead.end(),
            [&](const Entry* a, const Entry* b) { return GoesBefore(a->key, b->key, now); });
  for (const Entry* entry : ahead) load.ahead.push_back(entry->work);
  return load;
}

absl::Status CallTable::WaitForSlot(Lane lane, const QueueKey& key, const OtherCall& work,
                                    const CallDemand& demand, CallControl& control) {
  control.SetHook([this] { Poke(); });
  {
    absl::MutexLock lock(&mutex_);
    const Entry& entry = Enqueue(lane, key, work, demand);
    const auto ready = [&] { return entry.running() || control.cancelled(); };
    do {
      GrantSlots(lane);
      mutex_.AwaitWithDeadline(absl::Condition(&ready),
                               std::min(control.deadline(), absl::Now() + kHoldPoll));
    } while (!ready() && absl::Now() < control.deadline());
  }
  control.SetHook(nullptr);
  return control.Check();
}

void CallTable::Queue(Lane lane, const QueueKey& key, const OtherCall& work,
                      const CallDemand& demand) {
  absl::MutexLock lock(&mutex_);
  Enqueue(lane, key, work, demand);
}

bool CallTable::Started(Lane lane, uint64_t id) {
  absl::MutexLock lock(&mutex_);
  GrantSlots(lane);
  const auto it = entries_.find(id);
  return it != entries_.end() && it->second.running();
}

CallTable::Entry& CallTable::Enqueue(Lane lane, const QueueKey& key, const OtherCall& work,
                                     const CallDemand& demand) {
  Entry& entry = entries_[key.id];
  entry.state = State::kWaiting;
  entry.lane = lane;
  entry.key = key;
  entry.work = work;
  entry.demand = demand;
  return entry;
}

void CallTable::FirstToken(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second.state != State::kPrefilling) return;
  Entry& entry = it->second;
  const double tokens = entry.work.prefill_tokens;
  const double before = entry.work.resident_tokens;
  Account(entry.lane, +1, before + tokens);
  LaneState& lane = lanes_[static_cast<int>(entry.lane)];
  lane.prefilled_tokens += tokens;
  lane.prefilled_context += tokens * (before + tokens / 2);
  entry.state = State::kDecoding;
  entry.work.resident_tokens += std::exchange(entry.work.prefill_tokens, 0);
  entry.first_depth = entry.work.resident_tokens;
  entry.rows_integral_start = lane.rows_integral;
  entry.depth_integral_start = lane.depth_integral;
  entry.prefilled_start = lane.prefilled_tokens;
  entry.prefilled_context_start = lane.prefilled_context;
  entry.first_token_ns = lane.integral_ns;
}

void CallTable::Generated(uint64_t id, uint32_t tokens) {
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  Entry& entry = it->second;
  entry.generated += tokens;
  entry.told_ns = clock_.SteadyNanos();
  uint32_t& remaining = entry.work.remaining_tokens;
  remaining -= std::min(remaining, tokens);
  // Longer than expected, it may end after any token, and goes on until it does.
  if (entry.work.open_ended) remaining = std::max(remaining, kSlackTokens);
  entry.work.resident_tokens += tokens;
  if (entry.state == State::kDecoding) Account(entry.lane, 0, tokens);
}

DecodeSurroundings CallTable::Surroundings(uint64_t id) const {
  DecodeSurroundings out;
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second.state != State::kDecoding) return out;
  const Entry& entry = it->second;
  const LaneState& lane = lanes_[static_cast<int>(entry.lane)];
  const double elapsed_ns = static_cast<double>(clock_.SteadyNanos() - entry.first_token_ns);
  if (elapsed_ns > 0) {
    out.mean_rows = std::max(1.0, (IntegralNow(lane) - entry.rows_integral_start) / elapsed_ns);
    const double own = (entry.first_depth + entry.work.resident_tokens) / 2.0;
    const double all = (DepthIntegralNow(lane) - entry.depth_integral_start) / elapsed_ns;
    if (out.mean_rows > 1) out.other_depth_tokens = std::max(0.0, all - own);
  }
  out.foreign_prefill_tokens = lane.prefilled_tokens - entry.prefilled_start;
  out.foreign_prefill_context = lane.prefilled_context - entry.prefilled_context_start;
  out.alone = entry.alone;
  return out;
}

void CallTable::StopAdmitting() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

void CallTable::AwaitEmpty(absl::Duration timeout) const {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(this, &CallTable::Empty), timeout);
}

CallTable::Counts CallTable::counts() const {
  absl::MutexLock lock(&mutex_);
  Counts counts{.limit = options_.limit};
  for (const auto& [id, entry] : entries_) ++(entry.running() ? counts.running : counts.waiting);
  return counts;
}

void CallTable::GrantSlots(Lane lane) {
  const int64_t now = clock_.SteadyNanos();
  std::vector<Entry*> waiting;
  for (auto& [id, entry] : entries_) {
    if (entry.lane == lane && entry.state == State::kWaiting) waiting.push_back(&entry);
  }
  std::sort(waiting.begin(), waiting.end(),
            [&](const Entry* a, const Entry* b) { return GoesBefore(a->key, b->key, now); });
  uint32_t running = Running(lane);
  for (Entry* next : waiting) {
    if (running >= options_.slots[static_cast<int>(lane)]) return;
    if (!RunningBear(lane, *next, now)) continue;
    next->state = State::kPrefilling;
    next->granted_ns = now;
    ++running;
    if (running == 1) continue;
    for (auto& [id, entry] : entries_) {
      if (entry.lane == lane && entry.running()) entry.alone = false;
    }
  }
}

bool CallTable::RunningBear(Lane lane, const Entry& newcomer, int64_t now_ns) const {
  if (now_ns - newcomer.key.arrived_ns >= kPatienceNs) return true;
  double pending_ms = 0;
  for (const auto& [id, entry] : entries_) {
    if (entry.lane == lane && entry.running())
      pending_ms += LeftPrefillMs(entry.demand, ProgressOf(entry), now_ns);
  }
  const Newcomer demand{newcomer.demand.prefill_ms, newcomer.demand.row_ms};
  return std::none_of(entries_.begin(), entries_.end(), [&](const auto& element) {
    const Entry& entry = element.second;
    if (entry.lane != lane || !entry.running()) return false;
    const CallProgress progress = ProgressOf(entry);
    const double others_ms = pending_ms - LeftPrefillMs(entry.demand, progress, now_ns);
    return HoldMs(demand, SlackOf(entry.demand, progress, now_ns), others_ms, options_.piece_ms) >
           0;
  });
}

CallProgress CallTable::ProgressOf(const Entry& entry) {
  return {entry.granted_ns, entry.state == State::kDecoding ? entry.first_token_ns : 0,
          entry.generated, entry.told_ns, entry.work.remaining_tokens};
}

uint32_t CallTable::Running(Lane lane) const {
  uint32_t running = 0;
  for (const auto& [id, entry] : entries_) running += entry.lane == lane && entry.running();
  return running;
}

void CallTable::Account(Lane lane_index, int change, double depth_change) {
  LaneState& lane = lanes_[static_cast<int>(lane_index)];
  lane.rows_integral = IntegralNow(lane);
  lane.depth_integral = DepthIntegralNow(lane);
  lane.integral_ns = clock_.SteadyNanos();
  lane.decoding += change;
  lane.depth += depth_change;
}

double CallTable::ArrivalsNow(int64_t now_ns) const {
  return arrivals_ * std::exp(-static_cast<double>(now_ns - arrivals_ns_) / 1e6 / kArrivalMemoryMs);
}

double CallTable::IntegralNow(const LaneState& lane) const {
  return lane.rows_integral +
         lane.decoding * static_cast<double>(clock_.SteadyNanos() - lane.integral_ns);
}

double CallTable::DepthIntegralNow(const LaneState& lane) const {
  return lane.depth_integral +
         lane.depth * static_cast<double>(clock_.SteadyNanos() - lane.integral_ns);
}

}  // namespace withy::orchestrator
