#include "policy/kv_load_plan.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

namespace withy::policy {
namespace {

constexpr double kMebibyte = 1 << 20;

// Chunks whose measured times say how slow a side is. Choice: half of a prefill of 512 tokens, so
// that one late chunk does not turn the plan over and a board that gets slower is noticed at once.
// Test: KvLoadProgressTest.
constexpr double kLoadMemoryChunks = 16;

// An overdue chunk is expected to take this much of what it has taken so far. Ratio. Choice: the
// longer it is late, the less its side is trusted. Test:
// KvLoadProgressTest.AHungDiskHoldsNothingUp.
constexpr double kOverdueGrowth = 1.5;

// When a side would be done with more work.
struct SideForecast {
  double busy_ms = 0;   // with what it has begun
  double fixed_ms = 0;  // before its first chunk, calibrated
  double slowdown = 1;

  double DoneMs(double work_ms, size_t chunks) const {
    return chunks == 0 ? busy_ms : busy_ms + slowdown * (fixed_ms + work_ms);
  }
};

using MissingChunks = std::span<const MissingChunk>;

// Chunks that are the first to be recomputed come first: those without a copy, then by falling
// read time for recompute time; for a prefix and for Cake by position.
std::vector<size_t> SplitOrder(MissingChunks missing, const LoadCosts& costs, LoadPolicy policy) {
  std::vector<size_t> order(missing.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const MissingChunk& x = missing[a];
    const MissingChunk& y = missing[b];
    if ((x.stored_bytes == 0) != (y.stored_bytes == 0)) return x.stored_bytes == 0;
    if (x.stored_bytes != 0 && policy != LoadPolicy::kCake && policy != LoadPolicy::kPrefix) {
      const double of_x = costs.ReadMs(x) / costs.RecomputeMs(x);
      const double of_y = costs.ReadMs(y) / costs.RecomputeMs(y);
      if (of_x != of_y) return of_x > of_y;
    }
    return x.position < y.position;
  });
  return order;
}

// Of `order` as many chunks are recomputed, the first ones, as end both sides soonest; of equal
// numbers the smallest, since reading takes less energy.
size_t BestSplit(std::span<const size_t> order, MissingChunks missing, const LoadCosts& costs,
                 const SideForecast& recompute, const SideForecast& read) {
  double read_ms = 0, recompute_ms = 0;
  size_t without_copy = 0;
  for (const size_t i : order) {
    if (missing[i].stored_bytes == 0) {
      ++without_copy;
    } else {
      read_ms += costs.ReadMs(missing[i]);
    }
  }
  size_t best = order.size();
  double best_ms = std::numeric_limits<double>::infinity();
  for (size_t count = 0; count <= order.size(); ++count) {
    const double ms =
        std::max(recompute.DoneMs(recompute_ms, count), read.DoneMs(read_ms, order.size() - count));
    if (count >= without_copy && ms < best_ms) {
      best = count;
      best_ms = ms;
    }
    if (count == order.size()) break;
    const MissingChunk& next = missing[order[count]];
    recompute_ms += costs.RecomputeMs(next);
    if (next.stored_bytes != 0) read_ms -= costs.ReadMs(next);
  }
  return best;
}

size_t SplitBy(LoadPolicy policy, std::span<const size_t> order, MissingChunks missing,
               const LoadCosts& costs, const SideForecast& recompute, const SideForecast& read) {
  switch (policy) {
    case LoadPolicy::kRecomputeAll:
      return order.size();
    case LoadPolicy::kReadAll:
      return static_cast<size_t>(std::count_if(
          order.begin(), order.end(), [&](size_t i) { return missing[i].stored_bytes == 0; }));
    case LoadPolicy::kPrefix:
    case LoadPolicy::kPipeline:
    case LoadPolicy::kCake:
      return BestSplit(order, missing, costs, recompute, read);
  }
  return order.size();
}

}  // namespace

double LoadCosts::RecomputeMs(const MissingChunk& chunk) const {
  return recompute_chunk_ms + recompute_position_ms * chunk.position;
}

double LoadCosts::ReadMs(const MissingChunk& chunk) const {
  if (chunk.stored_bytes == 0) return std::numeric_limits<double>::infinity();
  return read_mib_ms * static_cast<double>(chunk.stored_bytes) / kMebibyte;
}

LoadPlan PlanLoad(MissingChunks missing, const LoadCosts& costs, LoadPolicy policy) {
  const std::vector<size_t> order = SplitOrder(missing, costs, policy);
  const SideForecast recompute{.fixed_ms = costs.recompute_fixed_ms};
  const SideForecast read{.fixed_ms = costs.read_fixed_ms};
  const size_t split = SplitBy(policy, order, missing, costs, recompute, read);
  LoadPlan plan;
  plan.recompute.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(split));
  plan.read.assign(order.begin() + static_cast<std::ptrdiff_t>(split), order.end());
  double recompute_ms = 0, read_ms = 0;
  for (const size_t i : plan.recompute) recompute_ms += costs.RecomputeMs(missing[i]);
  for (const size_t i : plan.read) read_ms += costs.ReadMs(missing[i]);
  plan.recompute_ms = recompute.DoneMs(recompute_ms, plan.recompute.size());
  plan.read_ms = read.DoneMs(read_ms, plan.read.size());
  for (std::vector<size_t>* side : {&plan.recompute, &plan.read}) {
    std::sort(side->begin(), side->end(),
              [&](size_t a, size_t b) { return missing[a].position < missing[b].position; });
  }
  return plan;
}

void KvLoadProgress::Side::Begin(size_t chunk, double chunk_ms, double now_ms) {
  if (dealt.empty()) since_ms = now_ms;
  dealt.push_back({chunk, fixed_ms + chunk_ms});
  fixed_ms = 0;
}

void KvLoadProgress::Side::End(size_t chunk, double now_ms) {
  const auto ended = std::find_if(dealt.begin(), dealt.end(),
                                  [&](const Dealt& one) { return one.chunk == chunk; });
  worked_ms += ended->ms;
  took_ms += now_ms - since_ms;
  since_ms = now_ms;
  if (worked_ms > memory_ms) {
    took_ms *= memory_ms / worked_ms;
    worked_ms = memory_ms;
  }
  dealt.erase(ended);
}

bool KvLoadProgress::Side::Has(size_t chunk) const {
  return std::any_of(dealt.begin(), dealt.end(),
                     [&](const Dealt& one) { return one.chunk == chunk; });
}

double KvLoadProgress::Side::DealtMs() const {
  double ms = 0;
  for (const Dealt& one : dealt) ms += one.ms;
  return ms;
}

double KvLoadProgress::Side::Slowdown(double now_ms) const {
  const double shown = took_ms / worked_ms;
  const double elapsed_ms = now_ms - since_ms;
  if (dealt.empty() || elapsed_ms <= DealtMs() * shown) return shown;
  return kOverdueGrowth * elapsed_ms / DealtMs();
}

double KvLoadProgress::Side::LeftMs(double now_ms) const {
  return dealt.empty() ? 0 : DealtMs() * Slowdown(now_ms) - (now_ms - since_ms);
}

KvLoadProgress::KvLoadProgress(MissingChunks missing, const LoadCosts& costs, LoadPolicy policy)
    : policy_(policy),
      missing_(missing.begin(), missing.end()),
      costs_(costs),
      pending_(SplitOrder(missing, costs, policy)),
      there_(missing.size()),
      missing_count_(missing.size()) {
  // At the start the calibration counts as much as one measured chunk.
  double read_ms = 0, recompute_ms = 0;
  size_t stored = 0;
  for (const MissingChunk& chunk : missing) {
    recompute_ms += costs.RecomputeMs(chunk) / static_cast<double>(missing.size());
    if (chunk.stored_bytes == 0) continue;
    ++stored;
    read_ms += costs.ReadMs(chunk);
  }
  const auto start = [](double fixed_ms, double chunk_ms) {
    return Side{.fixed_ms = fixed_ms,
                .memory_ms = kLoadMemoryChunks * chunk_ms,
                .worked_ms = chunk_ms,
                .took_ms = chunk_ms,
                .since_ms = 0,
                .dealt = {}};
  };
  read_ = start(costs.read_fixed_ms, stored == 0 ? 1 : read_ms / static_cast<double>(stored));
  recompute_ = start(costs.recompute_fixed_ms, missing.empty() ? 1 : recompute_ms);
}

size_t KvLoadProgress::Split(double now_ms) const {
  const auto forecast = [&](const Side& side) {
    return SideForecast{.busy_ms = side.LeftMs(now_ms),
                        .fixed_ms = side.fixed_ms,
                        .slowdown = side.Slowdown(now_ms)};
  };
  return SplitBy(policy_, pending_, missing_, costs_, forecast(recompute_), forecast(read_));
}

double KvLoadProgress::ChunkMs(const Side& side, size_t chunk) const {
  return &side == &read_ ? costs_.ReadMs(missing_[chunk]) : costs_.RecomputeMs(missing_[chunk]);
}

std::optional<size_t> KvLoadProgress::Take(size_t begin, size_t end, Side* side, double now_ms) {
  if (begin == end) return std::nullopt;
  const auto at = [&](size_t i) { return pending_.begin() + static_cast<std::ptrdiff_t>(i); };
  const auto first = std::min_element(at(begin), at(end), [&](size_t a, size_t b) {
    return missing_[a].position < missing_[b].position;
  });
  const size_t chunk = *first;
  pending_.erase(first);
  side->Begin(chunk, ChunkMs(*side, chunk), now_ms);
  return chunk;
}

std::optional<size_t> KvLoadProgress::TakeOver(const Side& other, Side* side, double now_ms) {
  if (policy_ != LoadPolicy::kPipeline || !pending_.empty()) return std::nullopt;
  const double busy_ms = side->LeftMs(now_ms);
  const double there_in_ms = other.LeftMs(now_ms);
  for (auto one = other.dealt.rbegin(); one != other.dealt.rend(); ++one) {
    const double chunk_ms = ChunkMs(*side, one->chunk);
    const double own_ms = busy_ms + side->Slowdown(now_ms) * (side->fixed_ms + chunk_ms);
    if (!there_[one->chunk] && !side->Has(one->chunk) && own_ms < there_in_ms) {
      side->Begin(one->chunk, chunk_ms, now_ms);
      return one->chunk;
    }
  }
  return std::nullopt;
}

std::optional<size_t> KvLoadProgress::NextRead(double now_ms) {
  if (policy_ == LoadPolicy::kCake) {
    if (pending_.empty() || missing_[pending_.back()].stored_bytes == 0) return std::nullopt;
    return Take(pending_.size() - 1, pending_.size(), &read_, now_ms);
  }
  const auto chunk = Take(Split(now_ms), pending_.size(), &read_, now_ms);
  return chunk.has_value() ? chunk : TakeOver(recompute_, &read_, now_ms);
}

std::optional<size_t> KvLoadProgress::NextRecompute(double now_ms) {
  const size_t end = policy_ == LoadPolicy::kCake ? pending_.size() : Split(now_ms);
  const auto chunk = Take(0, end, &recompute_, now_ms);
  return chunk.has_value() ? chunk : TakeOver(read_, &recompute_, now_ms);
}

void KvLoadProgress::Arrived(size_t chunk) {
  if (there_[chunk]) return;
  there_[chunk] = true;
  --missing_count_;
}

void KvLoadProgress::OnRead(size_t chunk, double now_ms) {
  read_.End(chunk, now_ms);
  Arrived(chunk);
}

void KvLoadProgress::OnRecomputed(size_t chunk, double now_ms) {
  recompute_.End(chunk, now_ms);
  Arrived(chunk);
}

void KvLoadProgress::OnReadFailed(size_t chunk, double now_ms) {
  read_.End(chunk, now_ms);
  missing_[chunk].stored_bytes = 0;
  if (!there_[chunk] && !recompute_.Has(chunk)) pending_.insert(pending_.begin(), chunk);
}

}  // namespace withy::policy
