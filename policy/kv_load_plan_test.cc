#include "policy/kv_load_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace withy::policy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kMib = 1 << 20;
constexpr LoadPolicy kLoadPolicies[] = {LoadPolicy::kPrefix, LoadPolicy::kPipeline,
                                        LoadPolicy::kReadAll, LoadPolicy::kRecomputeAll,
                                        LoadPolicy::kCake};

double RandomUnit(std::mt19937& random) {
  return std::uniform_real_distribution<double>(0, 1)(random);
}

LoadCosts RandomLoadCosts(std::mt19937& random) {
  return {.recompute_fixed_ms = random() % 2 == 0 ? 0 : 3 * RandomUnit(random),
          .recompute_chunk_ms = 0.1 + RandomUnit(random),
          .recompute_position_ms = random() % 2 == 0 ? 0 : 0.02 * RandomUnit(random),
          .read_fixed_ms = random() % 2 == 0 ? 0 : 3 * RandomUnit(random),
          .read_mib_ms = 0.1 + 2 * RandomUnit(random)};
}

std::vector<MissingChunk> RandomMissing(std::mt19937& random, size_t count, bool all_stored) {
  std::vector<MissingChunk> missing;
  uint32_t position = 0;
  while (missing.size() < count) {
    position += 1 + (random() % 4 == 0 ? random() % 5 : 0);
    const uint64_t bytes = kMib >> (random() % 3);
    missing.push_back({position, !all_stored && random() % 6 == 0 ? 0 : bytes});
  }
  return missing;
}

double LoadMs(const std::vector<MissingChunk>& missing, const LoadCosts& costs,
              const std::vector<bool>& recomputed) {
  double read_ms = 0, recompute_ms = 0;
  for (size_t i = 0; i < missing.size(); ++i) {
    double& side = recomputed[i] ? recompute_ms : read_ms;
    if (side == 0) side = recomputed[i] ? costs.recompute_fixed_ms : costs.read_fixed_ms;
    side += recomputed[i] ? costs.RecomputeMs(missing[i]) : costs.ReadMs(missing[i]);
  }
  return std::max(read_ms, recompute_ms);
}

double LeastLoadMs(const std::vector<MissingChunk>& missing, const LoadCosts& costs) {
  double least = std::numeric_limits<double>::infinity();
  for (uint32_t set = 0; set < 1u << missing.size(); ++set) {
    std::vector<bool> recomputed;
    for (size_t i = 0; i < missing.size(); ++i) recomputed.push_back((set >> i & 1) != 0);
    least = std::min(least, LoadMs(missing, costs, recomputed));
  }
  return least;
}

std::vector<bool> Recomputed(const LoadPlan& plan, size_t count) {
  std::vector<bool> recomputed(count);
  for (const size_t i : plan.recompute) recomputed[i] = true;
  return recomputed;
}

TEST(PlanLoadTest, EveryChunkOnceAndWithoutACopyRecomputed) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 1000; ++round) {
    const auto missing = RandomMissing(random, random() % 30, false);
    const LoadCosts costs = RandomLoadCosts(random);
    for (const LoadPolicy policy : kLoadPolicies) {
      const LoadPlan plan = PlanLoad(missing, costs, policy);
      ASSERT_EQ(plan.recompute.size() + plan.read.size(), missing.size());
      EXPECT_TRUE(std::is_sorted(plan.recompute.begin(), plan.recompute.end()));
      EXPECT_TRUE(std::is_sorted(plan.read.begin(), plan.read.end()));
      for (const size_t i : plan.read) {
        EXPECT_GT(missing[i].stored_bytes, 0u);
        EXPECT_FALSE(std::binary_search(plan.recompute.begin(), plan.recompute.end(), i));
      }
      EXPECT_NEAR(plan.ms(), LoadMs(missing, costs, Recomputed(plan, missing.size())), 1e-9);
    }
  }
}

TEST(PlanLoadTest, AtMostOneChunkSlowerThanAnyPlan) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    const auto missing = RandomMissing(random, random() % 11, random() % 2 == 0);
    const LoadCosts costs = RandomLoadCosts(random);
    const double least = LeastLoadMs(missing, costs);
    double chunk_ms = 0;
    for (const MissingChunk& chunk : missing) {
      chunk_ms = std::max(chunk_ms, std::min(costs.RecomputeMs(chunk), costs.ReadMs(chunk)));
    }
    const double ours = PlanLoad(missing, costs).ms();
    EXPECT_GE(ours, least - 1e-9);
    EXPECT_LE(ours, least + chunk_ms + 1e-9);
    EXPECT_LE(ours, PlanLoad(missing, costs, LoadPolicy::kReadAll).ms() + 1e-9);
    EXPECT_LE(ours, PlanLoad(missing, costs, LoadPolicy::kRecomputeAll).ms() + 1e-9);
    EXPECT_LE(ours, PlanLoad(missing, costs, LoadPolicy::kCake).ms() + chunk_ms + 1e-9);
  }
}

TEST(PlanLoadTest, ExactWhereChunksAreAlike) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    auto missing = RandomMissing(random, random() % 11, false);
    for (MissingChunk& chunk : missing) chunk.stored_bytes = std::min(chunk.stored_bytes, kMib / 4);
    LoadCosts costs = RandomLoadCosts(random);
    costs.recompute_position_ms = 0;
    EXPECT_NEAR(PlanLoad(missing, costs).ms(), LeastLoadMs(missing, costs), 1e-9);
  }
}

TEST(PlanLoadTest, HeavyChunksAreRecomputedAndEarlyOnes) {
  const LoadCosts costs{.recompute_chunk_ms = 1, .recompute_position_ms = 0.01, .read_mib_ms = 1};
  const std::vector<MissingChunk> mixed = {{0, kMib / 4}, {1, kMib}, {2, kMib / 4},
                                           {3, kMib / 4}, {4, kMib}, {5, kMib / 4}};
  const LoadPlan plan = PlanLoad(mixed, costs);
  EXPECT_THAT(plan.recompute, ElementsAre(1));
  EXPECT_THAT(plan.read, ElementsAre(0, 2, 3, 4, 5));
  const std::vector<MissingChunk> alike(4, {0, kMib});
  std::vector<MissingChunk> in_turn = alike;
  for (uint32_t i = 0; i < in_turn.size(); ++i) in_turn[i].position = i;
  EXPECT_THAT(PlanLoad(in_turn, costs).recompute, ElementsAre(0, 1));
}

TEST(PlanLoadTest, ReadsWhatComesFastAndRecomputesBehindASlowCard) {
  std::vector<MissingChunk> missing;
  for (uint32_t i = 0; i < 8; ++i) missing.push_back({i, kMib});
  EXPECT_THAT(PlanLoad(missing, {.recompute_chunk_ms = 100, .read_mib_ms = 1}).recompute,
              IsEmpty());
  EXPECT_THAT(PlanLoad(missing, {.recompute_chunk_ms = 1, .read_mib_ms = 100}).read, IsEmpty());
  EXPECT_EQ(PlanLoad({}, {}).ms(), 0);
}

// A disk that serves up to four reads in turn and a processor, with their true costs. A side that
// was given nothing asks again often.
class LoadSimulation {
 public:
  LoadSimulation(const std::vector<MissingChunk>& missing, const LoadCosts& truth)
      : missing_(missing), truth_(truth), ask_again_ms_(PlanLoad(missing, truth).ms() / 200) {}

  // Milliseconds until everything is there. `failing`: chunks whose copy turns out to be wrong.
  double Run(KvLoadProgress progress, std::set<size_t> failing = {}) {
    now_ms_ = 0;
    while (!progress.done()) {
      Start(&progress);
      if (reads_.empty() && !recompute_.has_value()) {
        ADD_FAILURE() << "nothing was dealt out";
        return 0;
      }
      const double read_ms = reads_.empty() ? kNever : reads_.front().end_ms;
      const double recompute_ms = recompute_.has_value() ? recompute_->end_ms : kNever;
      const double next_ms = std::min(read_ms, recompute_ms);
      if (next_ms > now_ms_ + ask_again_ms_ && SideIsIdle()) {
        now_ms_ += ask_again_ms_;
        continue;
      }
      now_ms_ = next_ms;
      if (recompute_ms <= read_ms) {
        there_.insert(recompute_->chunk);
        progress.OnRecomputed(recompute_->chunk, now_ms_);
        recompute_.reset();
      } else {
        const size_t chunk = reads_.front().chunk;
        reads_.erase(reads_.begin());
        if (failing.erase(chunk) > 0) {
          progress.OnReadFailed(chunk, now_ms_);
        } else {
          there_.insert(chunk);
          progress.OnRead(chunk, now_ms_);
        }
      }
    }
    EXPECT_EQ(there_.size(), missing_.size());
    return now_ms_;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Work {
    size_t chunk = 0;
    double end_ms = 0;
  };

  bool SideIsIdle() const { return reads_.empty() || !recompute_.has_value(); }

  void Start(KvLoadProgress* progress) {
    while (reads_.size() < 4) {
      const auto chunk = progress->NextRead(now_ms_);
      if (!chunk.has_value()) break;
      disk_free_ms_ = std::max(disk_free_ms_, now_ms_) + truth_.ReadMs(missing_[*chunk]) +
                      (disk_free_ms_ == 0 ? truth_.read_fixed_ms : 0);
      reads_.push_back({*chunk, disk_free_ms_});
    }
    if (recompute_.has_value()) return;
    const auto chunk = progress->NextRecompute(now_ms_);
    if (!chunk.has_value()) return;
    recompute_ = {*chunk, now_ms_ + truth_.RecomputeMs(missing_[*chunk]) +
                              (computed_ ? 0 : truth_.recompute_fixed_ms)};
    computed_ = true;
  }

  const std::vector<MissingChunk>& missing_;
  const LoadCosts truth_;
  const double ask_again_ms_;
  double now_ms_ = 0;
  double disk_free_ms_ = 0;
  bool computed_ = false;
  std::vector<Work> reads_;
  std::optional<Work> recompute_;
  std::set<size_t> there_;
};

LoadCosts Slower(LoadCosts costs, double processor, double disk) {
  costs.recompute_fixed_ms *= processor;
  costs.recompute_chunk_ms *= processor;
  costs.recompute_position_ms *= processor;
  costs.read_fixed_ms *= disk;
  costs.read_mib_ms *= disk;
  return costs;
}

TEST(KvLoadProgressTest, ACalibratedBoardTakesWhatThePlanSays) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto missing = RandomMissing(random, 40 + random() % 100, random() % 2 == 0);
    const LoadCosts costs = RandomLoadCosts(random);
    const double took = LoadSimulation(missing, costs).Run(KvLoadProgress(missing, costs));
    EXPECT_LE(took, 1.05 * PlanLoad(missing, costs).ms());
  }
}

TEST(KvLoadProgressTest, AWrongCalibrationCostsLittle) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  double sum = 0;
  int runs = 0;
  for (int round = 0; round < 60; ++round) {
    const auto missing = RandomMissing(random, 64 + random() % 100, true);
    const LoadCosts costs = RandomLoadCosts(random);
    for (const double processor : {0.1, 1.0, 10.0}) {
      for (const double disk : {0.1, 1.0, 10.0}) {
        const LoadCosts truth = Slower(costs, processor, disk);
        const double hindsight_ms = PlanLoad(missing, truth).ms();
        const double took = LoadSimulation(missing, truth).Run(KvLoadProgress(missing, costs));
        EXPECT_LE(took, 1.2 * hindsight_ms)
            << missing.size() << " chunks, processor " << processor << ", disk " << disk;
        sum += took / hindsight_ms;
        ++runs;
      }
    }
  }
  EXPECT_LT(sum / runs, 1.03);
}

TEST(KvLoadProgressTest, BothSidesEndTogetherWhereTheFixedPlanDoesNot) {
  std::vector<MissingChunk> missing;
  for (uint32_t i = 0; i < 64; ++i) missing.push_back({i, kMib});
  const LoadCosts costs{.recompute_chunk_ms = 1, .read_mib_ms = 1};
  const LoadCosts truth = Slower(costs, 1, 10);
  const double fixed_ms = LoadMs(missing, truth, Recomputed(PlanLoad(missing, costs), 64));
  EXPECT_EQ(fixed_ms, 320);
  EXPECT_LT(LoadSimulation(missing, truth).Run(KvLoadProgress(missing, costs)), 64);
}

TEST(KvLoadProgressTest, AHungDiskHoldsNothingUp) {
  std::vector<MissingChunk> missing;
  for (uint32_t i = 0; i < 64; ++i) missing.push_back({i, kMib});
  for (const double read_ms : {0.02, 0.2, 1.0}) {
    const LoadCosts costs{.recompute_chunk_ms = 1, .read_mib_ms = read_ms};
    const LoadCosts truth = Slower(costs, 1, 1e6);
    EXPECT_LT(LoadSimulation(missing, truth).Run(KvLoadProgress(missing, costs)), 1.2 * 64);
  }
}

TEST(KvLoadProgressTest, AlwaysEndsWithEveryChunk) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    const auto missing = RandomMissing(random, random() % 30, false);
    const LoadCosts costs = RandomLoadCosts(random);
    const LoadCosts truth = Slower(costs, std::pow(10, 2 * RandomUnit(random) - 1),
                                   std::pow(10, 2 * RandomUnit(random) - 1));
    std::set<size_t> failing;
    for (size_t i = 0; i < missing.size(); ++i) {
      if (random() % 10 == 0) failing.insert(i);
    }
    for (const LoadPolicy policy : kLoadPolicies) {
      LoadSimulation(missing, truth).Run(KvLoadProgress(missing, costs, policy), failing);
    }
  }
}

TEST(KvLoadProgressTest, CakeReadsFromTheBackUntilTheSidesMeet) {
  std::vector<MissingChunk> missing;
  for (uint32_t i = 0; i < 4; ++i) missing.push_back({i, kMib});
  KvLoadProgress progress(missing, {}, LoadPolicy::kCake);
  EXPECT_EQ(progress.NextRecompute(0), 0u);
  EXPECT_EQ(progress.NextRead(0), 3u);
  EXPECT_EQ(progress.NextRead(0), 2u);
  EXPECT_EQ(progress.NextRead(0), 1u);
  EXPECT_EQ(progress.NextRecompute(1), std::nullopt);
  EXPECT_FALSE(progress.done());
}

}  // namespace
}  // namespace withy::policy
