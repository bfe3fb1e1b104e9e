#include "policy/kv/load_learning.h"

#include <gtest/gtest.h>

namespace withy::policy {
namespace {

constexpr LoadCosts kCosts{.recompute_fixed_ms = 20,
                           .recompute_chunk_ms = 50,
                           .recompute_position_ms = 0.05,
                           .read_fixed_ms = 1,
                           .read_mib_ms = 2};

// A load on a board that is `recompute` and `read` times as slow as `true_costs`.
EndedLoad LoadOn(const LoadLearning& learning, double recompute_ms, double read_ms) {
  return {.planned = learning.costs(),
          .recomputed = 8,
          .recompute_slowdown = recompute_ms / learning.costs().recompute_chunk_ms,
          .read_bytes = 8 << 20,
          .read_slowdown = read_ms / learning.costs().read_mib_ms};
}

TEST(LoadLearningTest, ComesToWhatLoadsShow) {
  LoadLearning learning(kCosts);
  for (int i = 0; i < 20; ++i) learning.OnLoadEnded(LoadOn(learning, 80, 5));
  EXPECT_NEAR(learning.costs().recompute_chunk_ms, 80, 1);
  EXPECT_NEAR(learning.costs().recompute_fixed_ms, 32, 0.5);
  EXPECT_NEAR(learning.costs().read_mib_ms, 5, 0.1);
}

TEST(LoadLearningTest, OneLoadMovesAQuarterOfTheWay) {
  LoadLearning learning(kCosts);
  learning.OnLoadEnded(LoadOn(learning, 90, 6));
  EXPECT_DOUBLE_EQ(learning.costs().recompute_chunk_ms, 60);
  EXPECT_DOUBLE_EQ(learning.costs().read_mib_ms, 3);
}

TEST(LoadLearningTest, RecomputingStaysWithinBoundsOfTheCalibration) {
  LoadLearning learning(kCosts);
  for (int i = 0; i < 50; ++i) learning.OnLoadEnded(LoadOn(learning, 5000, 2));
  EXPECT_NEAR(learning.costs().recompute_chunk_ms, 200, 1e-6);
  for (int i = 0; i < 50; ++i) learning.OnLoadEnded(LoadOn(learning, 1, 2));
  EXPECT_NEAR(learning.costs().recompute_chunk_ms, 25, 1e-6);
}

TEST(LoadLearningTest, AWorkerThatWasSlowOnceIsTriedAgain) {
  LoadLearning learning(kCosts);
  for (int i = 0; i < 20; ++i) learning.OnLoadEnded(LoadOn(learning, 150, 2));
  EndedLoad without = LoadOn(learning, 150, 2);
  without.recomputed = 0;
  for (int i = 0; i < 200; ++i) learning.OnLoadEnded(without);
  EXPECT_NEAR(learning.costs().recompute_chunk_ms, 50, 3);
}

TEST(LoadLearningTest, FailedAndSmallReadsTeachNothing) {
  LoadLearning learning(kCosts);
  EndedLoad failed = LoadOn(learning, 50, 9);
  failed.read_bytes = 0;
  learning.OnLoadEnded(failed);
  EXPECT_DOUBLE_EQ(learning.costs().read_mib_ms, 2);
}

TEST(LoadLearningTest, CalibrationsOfTheTwoSidesAreIndependent) {
  LoadLearning learning(kCosts);
  learning.SetReading(0.5, 7);
  LoadCosts worker = kCosts;
  worker.recompute_chunk_ms = 10;
  worker.read_mib_ms = 99;  // a worker knows nothing of the disk
  learning.Calibrate(worker);
  EXPECT_DOUBLE_EQ(learning.costs().recompute_chunk_ms, 10);
  EXPECT_DOUBLE_EQ(learning.costs().read_fixed_ms, 0.5);
  EXPECT_DOUBLE_EQ(learning.costs().read_mib_ms, 7);
}

}  // namespace
}  // namespace withy::policy
