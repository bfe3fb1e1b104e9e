#include "policy/kv/kv_load_progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "base/test_seed.h"
#include "policy/kv/kv_load_testing.h"

namespace withy::policy {
namespace {

constexpr size_t kPiece = 8;  // chunks that a worker computes in one step

std::vector<MissingChunk> Alike(uint32_t count) {
  std::vector<MissingChunk> missing;
  for (uint32_t i = 0; i < count; ++i) missing.push_back({i, kMib});
  return missing;
}

LoadCosts Slower(LoadCosts costs, double processor, double disk) {
  costs.recompute_fixed_ms *= processor;
  costs.recompute_chunk_ms *= processor;
  costs.recompute_position_ms *= processor;
  costs.read_fixed_ms *= disk;
  costs.read_mib_ms *= disk;
  return costs;
}

// A disk that reads groups in turn and a worker that computes pieces, with their true costs. The
// worker asks for more while it computes its last piece, and often while it has nothing.
class LoadSimulation {
 public:
  LoadSimulation(const std::vector<MissingChunk>& missing, const LoadCosts& truth)
      : missing_(missing),
        truth_(truth),
        ask_again_ms_(PlanLoad(missing, truth, LoadPolicy::kPrefix).ms() / 200) {}

  // Milliseconds until everything is there.
  double Run(KvLoadProgress progress, size_t dealt = 0) {
    there_.assign(missing_.size(), 0);
    todo_.clear();
    for (size_t i = 0; i < dealt; ++i) todo_.push_back(i);
    now_ms_ = 0;
    while (!progress.done() || !todo_.empty()) {
      StartReads(&progress);
      Ask(&progress);
      StartPiece();
      const double read_ms = reads_.empty() ? kNever : reads_.front().end_ms;
      const double piece_ms = piece_ == 0 ? kNever : piece_end_ms_;
      double next_ms = std::min(read_ms, piece_ms);
      if (piece_ == 0) next_ms = std::min(next_ms, now_ms_ + ask_again_ms_);
      if (next_ms == kNever) {
        ADD_FAILURE() << "nothing goes on";
        return kNever;
      }
      now_ms_ = next_ms;
      if (read_ms <= now_ms_) EndRead(&progress);
      if (piece_ms <= now_ms_) EndPiece(&progress);
    }
    for (const int times : there_) EXPECT_EQ(times, 1);
    return now_ms_;
  }
  double read_again_ms() const { return cancelled_ms_; }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Read {
    KvLoadProgress::Group group;
    double end_ms = 0;
  };

  void StartReads(KvLoadProgress* progress) {
    while (const auto group = progress->NextGroup(now_ms_)) {
      double took_ms = read_once_ ? 0 : truth_.read_fixed_ms;
      read_once_ = true;
      for (size_t i = group->begin; i < group->end; ++i) took_ms += truth_.ReadMs(missing_[i]);
      const double begin_ms = reads_.empty() ? now_ms_ : reads_.back().end_ms;
      reads_.push_back({*group, begin_ms + took_ms});
    }
  }
  void EndRead(KvLoadProgress* progress) {
    const KvLoadProgress::Group group = reads_.front().group;
    reads_.erase(reads_.begin());
    for (size_t i = group.begin; i < group.end; ++i) ++there_[i];
    progress->OnGroupEnded(group.number, now_ms_);
  }
  void Ask(KvLoadProgress* progress) {
    if (todo_.size() > kPiece) return;
    const auto more = progress->NextYield(2 * kPiece - todo_.size(), now_ms_);
    if (more.cancelled.has_value()) {
      ASSERT_EQ(reads_.back().group.number, *more.cancelled);
      cancelled_ms_ += std::max(0.0, reads_.back().end_ms - now_ms_);
      reads_.pop_back();
    }
    for (size_t i = more.begin; i < more.end; ++i) todo_.push_back(i);
  }
  void StartPiece() {
    if (piece_ > 0 || todo_.empty()) return;
    piece_ = std::min(kPiece, todo_.size());
    piece_end_ms_ = now_ms_ + (computed_once_ ? 0 : truth_.recompute_fixed_ms);
    computed_once_ = true;
    for (size_t i = 0; i < piece_; ++i) piece_end_ms_ += truth_.RecomputeMs(missing_[todo_[i]]);
  }
  void EndPiece(KvLoadProgress* progress) {
    for (size_t i = 0; i < piece_; ++i) ++there_[todo_[i]];
    progress->OnRecomputed(todo_[piece_ - 1] + 1, now_ms_);
    todo_.erase(todo_.begin(), todo_.begin() + static_cast<std::ptrdiff_t>(piece_));
    piece_ = 0;
  }

  const std::vector<MissingChunk>& missing_;
  const LoadCosts truth_;
  const double ask_again_ms_;
  double now_ms_ = 0;
  bool read_once_ = false, computed_once_ = false;
  std::vector<Read> reads_;
  std::vector<size_t> todo_;  // of the worker, by position
  size_t piece_ = 0;          // of these, being computed
  double piece_end_ms_ = 0;
  double cancelled_ms_ = 0;
  std::vector<int> there_;
};

KvLoadProgress Begin(const std::vector<MissingChunk>& missing, const LoadCosts& costs,
                     double tail_ms = 0) {
  return KvLoadProgress(missing, costs,
                        {.dealt = 0, .recomputable = missing.size(), .tail_ms = tail_ms}, 0);
}

double HindsightMs(const std::vector<MissingChunk>& missing, const LoadCosts& truth) {
  return PlanLoad(missing, truth, LoadPolicy::kPrefix).ms();
}

TEST(KvLoadProgressTest, ACalibratedBoardTakesWhatThePlanSays) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto missing = RandomMissing(random, 80 + random() % 200, true);
    const LoadCosts costs = RandomLoadCosts(random);
    const double took = LoadSimulation(missing, costs).Run(Begin(missing, costs));
    EXPECT_LE(took, 1.3 * HindsightMs(missing, costs)) << missing.size() << " chunks";
  }
}

// What the worker has begun is not taken from it, so a worker that is much slower than calibrated
// beside a disk that is much faster costs more, and is left out.
TEST(KvLoadProgressTest, AWrongCalibrationCostsLittle) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::vector<double> ratios;
  for (int round = 0; round < 300; ++round) {
    const auto missing = RandomMissing(random, 128 + random() % 150, true);
    const LoadCosts costs = RandomLoadCosts(random);
    for (const double processor : {0.1, 1.0, 10.0}) {
      for (const double disk : {0.1, 1.0, 10.0}) {
        const LoadCosts truth = Slower(costs, processor, disk);
        const double took = LoadSimulation(missing, truth).Run(Begin(missing, costs));
        const double ratio = took / HindsightMs(missing, truth);
        if (processor > 50 * disk) continue;
        ratios.push_back(ratio);
      }
    }
  }
  std::sort(ratios.begin(), ratios.end());
  EXPECT_LT(std::accumulate(ratios.begin(), ratios.end(), 0.0) / static_cast<double>(ratios.size()),
            1.08);
  EXPECT_LE(ratios[ratios.size() * 95 / 100], 1.3) << "95 of 100 loads";
}

TEST(KvLoadProgressTest, BothSidesEndTogetherWhereTheFixedPlanDoesNot) {
  const auto missing = Alike(64);
  const LoadCosts costs{.recompute_chunk_ms = 1, .read_mib_ms = 1};
  const LoadCosts truth = Slower(costs, 1, 10);
  const double planned_ms = 10 * PlanLoad(missing, costs, LoadPolicy::kPrefix).read_ms;
  EXPECT_EQ(planned_ms, 320);
  EXPECT_LT(LoadSimulation(missing, truth).Run(Begin(missing, costs)), 72);
}

TEST(KvLoadProgressTest, AHungDiskHoldsNothingUp) {
  const auto missing = Alike(64);
  for (const double read_ms : {0.2, 1.0, 5.0}) {
    const LoadCosts costs{.recompute_chunk_ms = 1, .read_mib_ms = read_ms};
    const LoadCosts truth = Slower(costs, 1, 1e6);
    EXPECT_LT(LoadSimulation(missing, truth).Run(Begin(missing, costs)), 1.3 * 64) << read_ms;
  }
}

TEST(KvLoadProgressTest, AFastDiskReadsInOneGroup) {
  const auto missing = Alike(64);
  const LoadCosts costs{.recompute_chunk_ms = 100, .read_mib_ms = 1};
  KvLoadProgress progress = Begin(missing, costs);
  const auto group = progress.NextGroup(0);
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(group->begin, 0u);
  EXPECT_EQ(group->end, 64u);
  EXPECT_EQ(progress.NextYield(16, 1).count(), 0u) << "they are there sooner";
  EXPECT_TRUE(progress.all_dealt());
  progress.OnGroupEnded(group->number, 64);
  EXPECT_TRUE(progress.done());
}

// What the worker computes behind the context overlaps with the read of the last group alone.
TEST(KvLoadProgressTest, TheLastGroupIsAsLongAsTheTail) {
  const auto missing = Alike(100);
  const LoadCosts costs{.recompute_chunk_ms = 10, .read_mib_ms = 1};
  KvLoadProgress progress = Begin(missing, costs, /*tail_ms=*/200);
  const auto group = progress.NextGroup(0);
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(group->begin, 0u) << "nothing is to be recomputed before a tail so long";
}

// A worker that never asks, or that has stopped to.
TEST(KvLoadProgressTest, TheDiskReadsEverythingThatNobodyTakes) {
  const auto missing = Alike(40);
  KvLoadProgress progress(missing, {.recompute_chunk_ms = 1, .read_mib_ms = 50},
                          {.dealt = 8, .recomputable = 39}, 0);
  double now_ms = 0;
  size_t read = 0;
  while (const auto group = progress.NextGroup(now_ms)) {
    read += group->end - group->begin;
    now_ms += 50;
    progress.OnGroupEnded(group->number, now_ms);
  }
  EXPECT_EQ(read, 32u);
  EXPECT_TRUE(progress.done());
}

// Groups begin where no bytes of their neighbours come with theirs, if such a place is near.
TEST(KvLoadProgressTest, GroupsBeginAtCuts) {
  const auto missing = Alike(128);
  const LoadCosts costs{.recompute_chunk_ms = 4, .read_mib_ms = 1};
  for (const size_t apart : {1, 3, 7, 100}) {
    std::vector<bool> cuts;
    for (size_t i = 0; i < missing.size(); ++i) cuts.push_back(i % apart == 0);
    KvLoadProgress progress(
        missing, costs,
        {.recomputable = missing.size(), .least_group_bytes = 8 * kMib, .cuts = cuts}, 0);
    size_t end = missing.size(), there = 0;
    for (double now_ms = 0; !progress.all_dealt(); now_ms += 10) {
      const auto group = progress.NextGroup(now_ms);
      ASSERT_TRUE(group.has_value());
      EXPECT_EQ(group->end, end);
      ASSERT_LT(group->begin, end);
      if (apart <= 7) {
        EXPECT_EQ(group->begin % apart, 0u) << apart;
      }
      end = group->begin;
      there += group->end - group->begin;
      progress.OnGroupEnded(group->number, now_ms);
    }
    EXPECT_EQ(there, missing.size());
  }
}

// A group of a short context is a large part of it: what a slow disk was given must not hold up a
// worker that is done before it.
TEST(KvLoadProgressTest, SharingGainsWhereBothSidesAreWithinFourTimes) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (const uint32_t count : {32, 64, 128, 256}) {
    const auto missing = Alike(count);
    for (const size_t apart : {4, 8}) {
      std::vector<bool> cuts;
      const size_t shift = random() % apart;
      for (size_t i = 0; i < count; ++i) cuts.push_back((i + shift) % apart == 0);
      if (count / apart < 8) continue;  // a group is half of what both sides would share
      for (const double share : {0.25, 0.35, 0.5, 1.0, 2.0, 3.0, 4.0}) {
        const LoadCosts costs{.recompute_chunk_ms = 50, .read_mib_ms = 50 * share};
        const LoadProgressOptions options{
            .recomputable = count, .least_group_bytes = apart * kMib, .cuts = cuts};
        const double took =
            LoadSimulation(missing, costs).Run(KvLoadProgress(missing, costs, options, 0));
        const double best_single = 50 * std::min(1.0, share) * count;
        EXPECT_GE(best_single / took, count < 64 ? 0.95 : 1.03)
            << count << " chunks, cuts every " << apart << ", " << share;
      }
    }
  }
}

TEST(KvLoadProgressTest, WhatFindsNoRoomIsRead) {
  const auto missing = Alike(40);
  KvLoadProgress progress = Begin(missing, {.recompute_chunk_ms = 1, .read_mib_ms = 1});
  EXPECT_EQ(progress.NextYield(16, 0).count(), 2u) << "the first share";
  progress.Return(1);
  EXPECT_EQ(progress.NextYield(16, 0).count(), 0u) << "no further yield";
  size_t first = 40;
  for (double now_ms = 1; !progress.done(); ++now_ms) {
    while (const auto group = progress.NextGroup(now_ms)) first = std::min(first, group->begin);
    for (uint32_t number = 1; number < 40; ++number) progress.OnGroupEnded(number, now_ms);
  }
  EXPECT_EQ(first, 1u);
}

TEST(KvLoadProgressTest, OnlyWhatMayBeIsRecomputed) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    const auto missing = RandomMissing(random, 1 + random() % 60, true);
    const size_t recomputable = random() % (missing.size() + 1);
    const size_t dealt = recomputable == 0 ? 0 : random() % recomputable;
    const LoadCosts costs = RandomLoadCosts(random);
    const LoadCosts truth = Slower(costs, std::pow(10, 2 * RandomUnit(random) - 1),
                                   std::pow(10, 2 * RandomUnit(random) - 1));
    const LoadProgressOptions options{.dealt = dealt,
                                      .recomputable = recomputable,
                                      .tail_ms = RandomUnit(random) * 20,
                                      .least_group_bytes = random() % (4 * kMib)};
    LoadSimulation(missing, truth).Run(KvLoadProgress(missing, costs, options, 0), dealt);
    KvLoadProgress progress(missing, costs, options, 0);
    size_t end = dealt;
    for (double now_ms = 0; now_ms < 100; ++now_ms) {
      const auto more = progress.NextYield(3, now_ms);
      end = std::max(end, more.end);
      progress.OnRecomputed(more.end, now_ms + 0.5);
    }
    EXPECT_LE(end, std::max(recomputable, dealt));
  }
}

}  // namespace
}  // namespace withy::policy
