#include "policy/kv/kv_disk.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "base/clock.h"

namespace withy::policy {
namespace {

constexpr int64_t kHourNs = 3600 * kNanosPerSecond;

// Age at which KV counts half. Choice: contexts that are used several times a day stay above those
// of the day before. Test: PlanDiskTest.
constexpr double kHalfUsefulNs = kHourNs;

// The share 1 / this of the day's bytes is kept for contexts that are used again. Choice: a burst
// of contexts that are used once leaves room for the others. Test: JudgeWriteTest.
constexpr uint64_t kReserveDivisor = 4;

double UsefulShare(int64_t last_used_ns, int64_t now_ns) {
  const auto age_ns = static_cast<double>(std::max<int64_t>(0, now_ns - last_used_ns));
  return kHalfUsefulNs / (kHalfUsefulNs + age_ns);
}

// Leaves out the most useful segments without which the others are enough.
void SpareNeedless(std::span<const KvSegment> segments, uint64_t bytes, DiskPlan* plan) {
  for (size_t i = plan->give_up.size(); i-- > 0;) {
    const uint64_t own = segments[plan->give_up[i]].bytes;
    if (plan->freed_bytes - own < bytes) continue;
    plan->freed_bytes -= own;
    plan->give_up.erase(plan->give_up.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace

double UsefulBytes(const KvSegment& segment, int64_t now_ns) {
  double useful = 0;
  for (const LiveKv& live : segment.live) {
    useful += static_cast<double>(live.bytes) * UsefulShare(live.last_used_ns, now_ns);
  }
  return useful;
}

DiskPlan PlanDisk(std::span<const KvSegment> segments, const DiskUse& use, int64_t now_ns) {
  uint64_t kv_bytes = 0, open_bytes = 0;
  for (const KvSegment& segment : segments) {
    kv_bytes += segment.bytes;
    if (segment.open) open_bytes += segment.bytes;
  }
  const auto above = [&](uint64_t bytes) { return bytes - std::min(bytes, use.limit_bytes); };
  DiskPlan plan;
  plan.excess_bytes = above(use.text_bytes + open_bytes + use.wanted_bytes);
  // What cannot fit is not written, and then only what is there has to fit.
  const uint64_t wanted = plan.excess_bytes == 0 ? use.wanted_bytes : 0;
  const uint64_t to_free = above(use.text_bytes + kv_bytes + wanted);
  std::vector<double> share(segments.size());
  std::vector<size_t> order;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].open || segments[i].bytes == 0) continue;
    order.push_back(i);
    share[i] = UsefulBytes(segments[i], now_ns) / static_cast<double>(segments[i].bytes);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return share[a] < share[b]; });
  for (const size_t i : order) {
    if (plan.freed_bytes >= to_free) break;
    plan.give_up.push_back(i);
    plan.freed_bytes += segments[i].bytes;
  }
  if (plan.freed_bytes >= to_free) SpareNeedless(segments, to_free, &plan);
  return plan;
}

void DailyWrites::Advance(int64_t now_ns) {
  auto& bytes = history_.bytes;
  const auto size = static_cast<int64_t>(bytes.size());
  const int64_t hour = now_ns / kHourNs;
  const int64_t passed = hour - history_.hour;
  if (passed <= 0 && passed >= -size) return;
  history_.hour = hour;
  const int64_t shift = std::clamp<int64_t>(passed, 0, size);
  std::move_backward(bytes.begin(), bytes.end() - shift, bytes.end());
  std::fill(bytes.begin(), bytes.begin() + shift, 0);
}

void DailyWrites::Wrote(uint64_t bytes, int64_t now_ns) {
  Advance(now_ns);
  history_.bytes[0] += bytes;
}

uint64_t DailyWrites::LeftBytes(int64_t now_ns) {
  Advance(now_ns);
  const uint64_t written =
      std::accumulate(history_.bytes.begin(), history_.bytes.end(), uint64_t{0});
  return limit_bytes_ - std::min(limit_bytes_, written);
}

WriteVerdict JudgeWrite(const WriteCandidate& candidate, uint64_t left_bytes,
                        uint64_t limit_bytes) {
  if (candidate.bytes > left_bytes) return WriteVerdict::kDailyLimit;
  if (candidate.used_again || candidate.for_room) return WriteVerdict::kWrite;
  const bool reserve = left_bytes - candidate.bytes < limit_bytes / kReserveDivisor;
  return candidate.has_copy || reserve ? WriteVerdict::kNotUsedAgain : WriteVerdict::kWrite;
}

}  // namespace withy::policy
