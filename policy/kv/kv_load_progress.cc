#include "policy/kv/kv_load_progress.h"

#include <algorithm>

namespace withy::policy {
namespace {

// Chunks whose measured times say how slow a side is. Choice: half of a prefill of 512 tokens, so
// that one late chunk does not turn the plan over and a board that gets slower is noticed at once.
// Test: KvLoadProgressTest.
constexpr double kLoadMemoryChunks = 16;

// Overdue work is expected to take this much of what it has taken so far. Ratio. Choice: the longer
// it is late, the less its side is trusted. Test: KvLoadProgressTest.AHungDiskHoldsNothingUp.
constexpr double kOverdueGrowth = 1.5;

// A group has this share of what the disk is expected to read. Choice: its requests stay large, and
// what is wrong with the first ones can be made up by the rest. Test:
// KvLoadProgressTest.AWrongCalibrationCostsLittle.
constexpr double kGroupShare = 0.25;

// The first one is smaller: it tells the disk's speed.
constexpr double kFirstGroupShare = 0.06;

// Where reading all takes at most this share of recomputing all, one group is read. Choice: with a
// disk ten times as slow as calibrated that costs a fifth, and all layers of all chunks arrive in
// order, so that computing behind the context overlaps with the whole read. Test:
// KvLoadProgressTest.AFastDiskReadsInOneGroup.
constexpr double kNotWorthSharing = 0.02;

// A worker whose speed is not known gets a first chunk if so many would be its share.
constexpr size_t kLeastSplitToTry = 8;

// A group is taken back from the disk if the worker is done within this share of the disk's time.
constexpr double kTakeBackShare = 0.9;

}  // namespace

void KvLoadProgress::Side::Begin(double ms, double now_ms) {
  if (dealt_ms <= 0) since_ms = now_ms;
  dealt_ms += ms;
}

void KvLoadProgress::Side::End(double ms, double now_ms) {
  dealt_ms = std::max(0.0, dealt_ms - ms);
  worked_ms += ms + fixed_ms;
  fixed_ms = 0;
  took_ms += now_ms - since_ms;
  since_ms = now_ms;
  if (worked_ms > memory_ms) {
    took_ms *= memory_ms / worked_ms;
    worked_ms = memory_ms;
  }
}

double KvLoadProgress::Side::Slowdown(double now_ms, double ms) const {
  const double shown = took_ms / worked_ms;
  const double elapsed_ms = now_ms - since_ms;
  const double due_ms = ms + fixed_ms;
  if (dealt_ms <= 0 || due_ms <= 0 || elapsed_ms <= due_ms * shown) return shown;
  return kOverdueGrowth * elapsed_ms / due_ms;
}

double KvLoadProgress::Side::LeftMs(double now_ms, double slowdown) const {
  if (dealt_ms <= 0) return 0;
  return std::max(0.0, (dealt_ms + fixed_ms) * slowdown - (now_ms - since_ms));
}

KvLoadProgress::KvLoadProgress(std::span<const MissingChunk> chunks, const LoadCosts& costs,
                               const LoadProgressOptions& options, double now_ms)
    : options_(options), front_(options.dealt), back_(chunks.size()) {
  read_ms_.push_back(0);
  recompute_ms_.push_back(0);
  bytes_.push_back(0);
  for (const MissingChunk& chunk : chunks) {
    const double read_ms = chunk.stored_bytes == 0 ? 0 : costs.ReadMs(chunk);
    read_ms_.push_back(read_ms_.back() + read_ms);
    recompute_ms_.push_back(recompute_ms_.back() + costs.RecomputeMs(chunk));
    bytes_.push_back(bytes_.back() + chunk.stored_bytes);
  }
  const size_t all = chunks.size();
  in_one_group_ =
      options.recomputable <= options.dealt ||
      ReadMs(0, options.recomputable) <= kNotWorthSharing * RecomputeMs(0, options.recomputable);
  // At the start the calibration counts as much as a quarter of a measured chunk.
  const auto start = [&](double fixed_ms, double all_ms) {
    const double chunk_ms = all_ms > 0 ? all_ms / static_cast<double>(all) : 1;
    return Side{.fixed_ms = fixed_ms,
                .memory_ms = kLoadMemoryChunks * chunk_ms,
                .worked_ms = chunk_ms / 4,
                .took_ms = chunk_ms / 4,
                .since_ms = now_ms};
  };
  read_ = start(costs.read_fixed_ms, read_ms_.back());
  recompute_ = start(costs.recompute_fixed_ms, recompute_ms_.back());
  if (front_ > 0) recompute_.Begin(RecomputeMs(0, front_), now_ms);
}

double KvLoadProgress::OldestMs() const {
  return groups_.empty() ? 0 : ReadMs(groups_.front().begin, groups_.front().end);
}

size_t KvLoadProgress::Split(double now_ms) const {
  const size_t last = std::max(front_, std::min(back_, options_.recomputable));
  const double read_slowdown = this->read_slowdown(now_ms);
  const double recompute_slowdown = this->recompute_slowdown(now_ms);
  const double read_left_ms = read_.LeftMs(now_ms, read_slowdown);
  const double recompute_left_ms =
      recompute_.LeftMs(now_ms, recompute_slowdown) + recompute_slowdown * options_.tail_ms;
  const auto ends_ms = [&](size_t split) {
    const double fixed_ms = recompute_.dealt_ms > 0 ? 0 : recompute_.fixed_ms;
    const double recompute_ms =
        split == front_
            ? recompute_left_ms
            : recompute_left_ms + recompute_slowdown * (fixed_ms + RecomputeMs(front_, split));
    return std::pair(recompute_ms, read_left_ms + read_slowdown * ReadMs(split, back_));
  };
  // Recomputing takes longer and reading shorter with each chunk more: the best split is where they
  // cross, or the one before.
  size_t low = front_, high = last;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    const auto [recompute_ms, read_ms] = ends_ms(middle);
    if (recompute_ms >= read_ms) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (low == front_) return low;
  const auto longer_ms = [&](size_t split) {
    const auto [recompute_ms, read_ms] = ends_ms(split);
    return std::max(recompute_ms, read_ms);
  };
  return longer_ms(low - 1) <= longer_ms(low) ? low - 1 : low;
}

// What the worker has is not taken from it again. So it never has more than a share of the time
// that the load is expected to go on, and less as long as not both sides have shown their speed.
size_t KvLoadProgress::Affordable(size_t split, double now_ms) const {
  const bool worker_known = computed_ > 0;
  const bool overdue = read_slowdown(now_ms) > read_.took_ms / read_.worked_ms;
  const bool disk_known = read_reported_ || overdue;
  const double share = worker_known && disk_known ? kYieldShare : kFirstYieldShare;
  const double slowdown = recompute_slowdown(now_ms);
  const double left_ms = recompute_.LeftMs(now_ms, slowdown);
  const double ends_ms = left_ms + slowdown * RecomputeMs(front_, split);
  size_t count = 0;
  while (front_ + count < split &&
         left_ms + slowdown * RecomputeMs(front_, front_ + count + 1) <= share * ends_ms) {
    ++count;
  }
  if (count > 0 || recompute_.dealt_ms > 0) return count;
  // One chunk at least; a worker that may be much slower than calibrated only where it has time.
  return (disk_known || groups_.empty()) && (worker_known || split >= front_ + kLeastSplitToTry)
             ? 1
             : 0;
}

size_t KvLoadProgress::CutNear(size_t begin) const {
  if (options_.cuts.empty()) return begin;
  const size_t most = (back_ - begin) / 2;
  for (size_t away = 0; away <= most; ++away) {
    if (begin >= front_ + away && options_.cuts[begin - away]) return begin - away;
    if (begin + away < back_ && options_.cuts[begin + away]) return begin + away;
  }
  return begin;
}

bool KvLoadProgress::WorkerIsSooner(size_t begin, double now_ms) const {
  if (back_ > options_.recomputable) return false;
  if (groups_.empty() && recompute_.dealt_ms <= 0) return false;  // nobody would do anything
  const double read_slowdown = this->read_slowdown(now_ms);
  const double recompute_slowdown = this->recompute_slowdown(now_ms);
  const double read_ms = read_.LeftMs(now_ms, read_slowdown) + read_slowdown * ReadMs(begin, back_);
  return read_ms > recompute_.LeftMs(now_ms, recompute_slowdown) +
                       recompute_slowdown * (options_.tail_ms + RecomputeMs(front_, back_));
}

std::optional<KvLoadProgress::Group> KvLoadProgress::NextGroup(double now_ms) {
  if (groups_.size() >= kGroups || all_dealt()) return std::nullopt;
  size_t begin = front_;
  if (!in_one_group_) {
    const size_t split = Split(now_ms);
    const double share_ms = ReadMs(split, back_);
    const bool behind_the_tail =
        read_slowdown(now_ms) * share_ms <= recompute_slowdown(now_ms) * options_.tail_ms;
    const double group_share = last_group_ == 0 ? kFirstGroupShare : kGroupShare;
    const double least_ms = behind_the_tail ? share_ms : group_share * share_ms;
    begin = back_ - 1;
    while (begin > front_ && (ReadMs(begin, back_) < least_ms ||
                              bytes_[back_] - bytes_[begin] < options_.least_group_bytes)) {
      --begin;
    }
    begin = CutNear(begin);
    if (WorkerIsSooner(begin, now_ms)) return std::nullopt;
  }
  const Group group{++last_group_, begin, back_};
  back_ = begin;
  read_.Begin(ReadMs(group.begin, group.end), now_ms);
  groups_.push_back(group);
  return group;
}

void KvLoadProgress::OnGroupEnded(uint32_t number, double now_ms) {
  const auto ended = std::find_if(groups_.begin(), groups_.end(),
                                  [&](const Group& one) { return one.number == number; });
  if (ended == groups_.end()) return;
  read_.End(ReadMs(ended->begin, ended->end), now_ms);
  read_reported_ = true;
  groups_.erase(ended);
  if (groups_.empty()) read_.dealt_ms = 0;  // whatever rounding has left
}

std::optional<uint32_t> KvLoadProgress::TakeBack(double now_ms) {
  if (groups_.empty() || groups_.back().begin >= options_.recomputable) return std::nullopt;
  const Group group = groups_.back();
  const double slowdown = recompute_slowdown(now_ms);
  const double own_ms =
      recompute_.LeftMs(now_ms, slowdown) +
      slowdown * RecomputeMs(group.begin, std::min(group.end, options_.recomputable));
  const double disk_slowdown = read_slowdown(now_ms);
  if (own_ms >= kTakeBackShare * read_.LeftMs(now_ms, disk_slowdown)) return std::nullopt;
  // The disk is as slow as it has turned out to be, although it reports nothing.
  read_.took_ms = disk_slowdown * read_.worked_ms;
  read_.dealt_ms = std::max(0.0, read_.dealt_ms - ReadMs(group.begin, group.end));
  read_reported_ = true;
  groups_.pop_back();
  if (groups_.empty()) read_.dealt_ms = 0;
  in_one_group_ = false;
  front_ = group.begin;
  back_ = group.end;
  return group.number;
}

KvLoadProgress::Yield KvLoadProgress::NextYield(size_t most, double now_ms) {
  Yield yield{.begin = front_, .end = front_};
  if (most == 0) return yield;
  if (front_ >= std::min(back_, options_.recomputable)) {
    if (!all_dealt()) return yield;
    yield.cancelled = TakeBack(now_ms);
    if (!yield.cancelled.has_value()) return yield;
  }
  const size_t split = Split(now_ms);
  size_t count = std::min({split - front_, most, Affordable(split, now_ms)});
  if (yield.cancelled.has_value()) count = std::max<size_t>(count, 1);
  yield.begin = front_;
  yield.end = front_ += count;
  if (count > 0) recompute_.Begin(RecomputeMs(yield.begin, yield.end), now_ms);
  return yield;
}

void KvLoadProgress::OnRecomputed(size_t end, double now_ms) {
  end = std::min(end, front_);
  if (end <= computed_) return;
  recompute_.End(RecomputeMs(computed_, end), now_ms);
  computed_ = end;
  if (computed_ == front_) recompute_.dealt_ms = 0;
}

void KvLoadProgress::Return(size_t count) {
  recompute_.dealt_ms = std::max(0.0, recompute_.dealt_ms - RecomputeMs(front_ - count, front_));
  front_ -= count;
  ReadFrom(front_);
}

}  // namespace withy::policy
