#include "policy/call/admission.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "policy/constants.h"

namespace withy::policy {

absl::Status Admission::Arrive(uint64_t id, int64_t now_ns) {
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
  arrivals_ = Arrivals(now_ns) + 1;
  arrivals_ns_ = now_ns;
  return absl::OkStatus();
}

void Admission::Leave(uint64_t id, int64_t now_ns) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  const Lane lane = it->second.lane;
  if (it->second.state == State::kDecoding)
    Account(lane, -1, -1.0 * it->second.work.resident_tokens, now_ns);
  entries_.erase(it);
  StartReady(lane, now_ns);
}

Load Admission::LoadBefore(Lane lane, const Turn& turn, int64_t now_ns) const {
  Load load;
  load.slots = options_.slots[static_cast<int>(lane)];
  load.piece_ms = options_.piece_ms;
  std::vector<const Entry*> ahead;
  for (const auto& [id, entry] : entries_) {
    if (entry.lane != lane || id == turn.id) continue;
    if (entry.running()) {
      load.running.push_back(entry.work);
      load.running.back().slack = SlackOf(entry.demand, ProgressOf(entry), now_ns);
      load.running.back().goes_before = GoesBefore(entry.turn, turn, now_ns);
    }
    if (entry.state == State::kWaiting && GoesBefore(entry.turn, turn, now_ns))
      ahead.push_back(&entry);
  }
  const double others = Arrivals(now_ns) - kArrivalsByChance - (entries_.contains(turn.id) ? 1 : 0);
  load.arrivals_per_ms = std::max(0.0, others) / kArrivalMemoryMs;
  std::sort(ahead.begin(), ahead.end(),
            [&](const Entry* a, const Entry* b) { return GoesBefore(a->turn, b->turn, now_ns); });
  for (const Entry* entry : ahead) load.ahead.push_back(entry->work);
  return load;
}

void Admission::Queue(Lane lane, const Turn& turn, const OtherCall& work,
                      const CallDemand& demand) {
  Entry& entry = entries_[turn.id];
  entry.state = State::kWaiting;
  entry.lane = lane;
  entry.turn = turn;
  entry.work = work;
  entry.demand = demand;
}

bool Admission::running(uint64_t id) const {
  const auto it = entries_.find(id);
  return it != entries_.end() && it->second.running();
}

void Admission::FirstToken(uint64_t id, int64_t now_ns) {
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second.state != State::kPrefilling) return;
  Entry& entry = it->second;
  const double tokens = entry.work.prefill_tokens;
  const double before = entry.work.resident_tokens;
  Account(entry.lane, +1, before + tokens, now_ns);
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

void Admission::Generated(uint64_t id, uint32_t tokens, int64_t now_ns) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  Entry& entry = it->second;
  entry.generated += tokens;
  entry.told_ns = now_ns;
  uint32_t& remaining = entry.work.remaining_tokens;
  remaining -= std::min(remaining, tokens);
  // Longer than expected, it may end after any token, and goes on until it does.
  if (entry.work.open_ended) remaining = std::max(remaining, kHorizonTokens);
  entry.work.resident_tokens += tokens;
  if (entry.state == State::kDecoding) Account(entry.lane, 0, tokens, now_ns);
}

DecodeSurroundings Admission::Surroundings(uint64_t id, int64_t now_ns) const {
  DecodeSurroundings out;
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second.state != State::kDecoding) return out;
  const Entry& entry = it->second;
  const LaneState& lane = lanes_[static_cast<int>(entry.lane)];
  const double elapsed_ns = static_cast<double>(now_ns - entry.first_token_ns);
  if (elapsed_ns > 0) {
    out.mean_rows =
        std::max(1.0, (lane.RowsIntegral(now_ns) - entry.rows_integral_start) / elapsed_ns);
    const double own = (entry.first_depth + entry.work.resident_tokens) / 2.0;
    const double all = (lane.DepthIntegral(now_ns) - entry.depth_integral_start) / elapsed_ns;
    if (out.mean_rows > 1) out.other_depth_tokens = std::max(0.0, all - own);
  }
  out.foreign_prefill_tokens = lane.prefilled_tokens - entry.prefilled_start;
  out.foreign_prefill_context = lane.prefilled_context - entry.prefilled_context_start;
  out.alone = entry.alone;
  return out;
}

Admission::Counts Admission::counts() const {
  Counts counts{.limit = options_.limit};
  for (const auto& [id, entry] : entries_) ++(entry.running() ? counts.running : counts.waiting);
  return counts;
}

void Admission::StartReady(Lane lane, int64_t now_ns) {
  std::vector<Entry*> waiting;
  for (auto& [id, entry] : entries_) {
    if (entry.lane == lane && entry.state == State::kWaiting) waiting.push_back(&entry);
  }
  std::sort(waiting.begin(), waiting.end(),
            [&](const Entry* a, const Entry* b) { return GoesBefore(a->turn, b->turn, now_ns); });
  uint32_t running = Running(lane);
  for (Entry* next : waiting) {
    if (running >= options_.slots[static_cast<int>(lane)]) return;
    if (!RunningCallsAllow(lane, *next, now_ns)) continue;
    next->state = State::kPrefilling;
    next->granted_ns = now_ns;
    ++running;
    if (running == 1) continue;
    for (auto& [id, entry] : entries_) {
      if (entry.lane == lane && entry.running()) entry.alone = false;
    }
  }
}

bool Admission::RunningCallsAllow(Lane lane, const Entry& newcomer, int64_t now_ns) const {
  if (now_ns - newcomer.turn.arrived_ns >= kPatienceNs) return true;
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

CallProgress Admission::ProgressOf(const Entry& entry) {
  return {entry.granted_ns, entry.state == State::kDecoding ? entry.first_token_ns : 0,
          entry.generated, entry.told_ns, entry.work.remaining_tokens};
}

uint32_t Admission::Running(Lane lane) const {
  uint32_t running = 0;
  for (const auto& [id, entry] : entries_) running += entry.lane == lane && entry.running();
  return running;
}

void Admission::Account(Lane lane_index, int change, double depth_change, int64_t now_ns) {
  LaneState& lane = lanes_[static_cast<int>(lane_index)];
  lane.rows_integral = lane.RowsIntegral(now_ns);
  lane.depth_integral = lane.DepthIntegral(now_ns);
  lane.integral_ns = now_ns;
  lane.decoding += change;
  lane.depth += depth_change;
}

double Admission::Arrivals(int64_t now_ns) const {
  return arrivals_ * std::exp(-Millis(now_ns - arrivals_ns_) / kArrivalMemoryMs);
}

double Admission::LaneState::RowsIntegral(int64_t now_ns) const {
  return rows_integral + decoding * static_cast<double>(now_ns - integral_ns);
}

double Admission::LaneState::DepthIntegral(int64_t now_ns) const {
  return depth_integral + depth * static_cast<double>(now_ns - integral_ns);
}

}  // namespace withy::policy
