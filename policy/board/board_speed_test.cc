#include "policy/board/board_speed.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace withy::policy {
namespace {

// A board whose calibration is off by some per cent in each term, with noise and stalls.
class SimulatedBoard {
 public:
  explicit SimulatedBoard(uint32_t seed) : random_(seed) {
    constant_ms_ = Uniform(0, 0.2);
    weights_ = Uniform(0.9, 1.2);
    rows_ = Uniform(0.2, 0.6);
    depth_ = Uniform(0.7, 1.4);
  }

  // A decode step of some calls at some level and depth, or a piece of a prompt.
  PassShape AnyShape() {
    const double level = 0.2 + 0.1 * static_cast<double>(random_() % 9);
    const bool prompt = random_() % 4 == 0;
    const auto rows = static_cast<int32_t>(prompt ? 16 + random_() % 112 : 1 + random_() % 8);
    const double depth = static_cast<double>(random_() % 2000);
    return {.weights_ms = 10 * level,
            .rows_ms = 2 * level * rows,
            .depth_ms = 0.002 * level * depth * (prompt ? 0.2 * rows : 1),
            .rows = rows};
  }
  double Took(const PassShape& shape, double slowdown) {
    const double ms = shape.many_rows()
                          ? constant_ms_ + 1.05 * shape.rows_ms + depth_ * shape.depth_ms
                          : constant_ms_ + weights_ * shape.weights_ms +
                                rows_ * shape.rows_ms * (shape.rows - 1) / shape.rows +
                                depth_ * shape.depth_ms;
    return ms * slowdown * std::exp(std::normal_distribution(0.0, 0.02)(random_));
  }
  uint32_t Random() { return random_(); }

 private:
  double Uniform(double low, double high) {
    return std::uniform_real_distribution(low, high)(random_);
  }
  std::mt19937 random_;
  double constant_ms_, weights_, rows_, depth_;
};

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

class BoardSpeedTest : public ::testing::Test {
 protected:
  BoardSpeedTest() { Train(300, 1); }

  // Errors of the predictions made before each of some passes.
  std::vector<double> Train(int passes, double slowdown) {
    std::vector<double> errors;
    for (int i = 0; i < passes; ++i) {
      const PassShape shape = board_.AnyShape();
      const double took = board_.Took(shape, slowdown);
      errors.push_back(std::abs(speed_.PredictMs(shape) / took - 1));
      speed_.Observe(shape, took);
    }
    return errors;
  }

  const uint32_t seed_ = TestSeed();
  const ::testing::ScopedTrace trace_{__FILE__, __LINE__, ::testing::Message() << "seed " << seed_};
  SimulatedBoard board_{seed_};
  BoardSpeed speed_;
};

TEST_F(BoardSpeedTest, PredictsPassesOfAnyShape) {
  const std::vector<double> errors = Train(400, 1);
  EXPECT_LE(Quantile(errors, 0.5), 0.03);
  EXPECT_LE(Quantile(errors, 0.95), 0.10);
  EXPECT_LE(speed_.MedianError(), 0.05);
  EXPECT_LE(speed_.changes(), 1u) << "noise is no change";
}

TEST_F(BoardSpeedTest, ABoardThatLosesHalfItsSpeedIsNoticedWithinAFewPasses) {
  const double before = speed_.slowdown();
  Train(8, 2);
  EXPECT_GT(speed_.changes(), 0u);
  EXPECT_NEAR(speed_.slowdown() / before, 2, 0.3);
  EXPECT_LE(Quantile(Train(100, 2), 0.5), 0.04);
  // Whether it is fast again, or only between two stalls, a few blocks of passes tell.
  const uint32_t changes = speed_.changes();
  Train(8, 1);
  EXPECT_GT(speed_.changes(), changes);
  EXPECT_LE(Quantile(Train(100, 1), 0.5), 0.04);
  EXPECT_NEAR(speed_.slowdown() / before, 1, 0.2);
}

TEST_F(BoardSpeedTest, OneStallMovesLittle) {
  const double before = speed_.slowdown();
  const PassShape shape = board_.AnyShape();
  speed_.Observe(shape, 20 * board_.Took(shape, 1));
  EXPECT_NEAR(speed_.slowdown() / before, 1, 0.05);
  EXPECT_LE(Quantile(Train(100, 1), 0.5), 0.03);
}

// A busy process on each core takes every second time slice of 4 ms: most short passes take what
// they always took, one in a slice stands still for another.
class SlicedBoard {
 public:
  double Took(double ms) {
    ran_ms_ += ms;
    if (ran_ms_ < kSliceMs) return ms;
    ran_ms_ = std::fmod(ran_ms_, kSliceMs);
    return ms + kSliceMs;
  }

 private:
  static constexpr double kSliceMs = 4;
  double ran_ms_ = 0;
};

TEST_F(BoardSpeedTest, TimeSlicesOfANeighbourAreASlowdownAndNoErrorOfMostPasses) {
  const PassShape step{.weights_ms = 0.3, .rows_ms = 0.06, .depth_ms = 0.02, .rows = 1};
  for (int i = 0; i < 200; ++i) speed_.Observe(step, 0.32);
  EXPECT_NEAR(speed_.slowdown(), 1, 0.1);
  SlicedBoard sliced;
  const double prompts = speed_.PromptRatio();
  for (int i = 0; i < 130; ++i) speed_.Observe(step, sliced.Took(0.32));
  EXPECT_NEAR(speed_.slowdown(), 2, 0.4) << "within 42 ms of computing: three whole blocks";
  EXPECT_NEAR(speed_.PromptRatio() / prompts, 2, 0.4) << "which prompts meet as well";
  for (int i = 0; i < 2000; ++i) speed_.Observe(step, sliced.Took(0.32));
  EXPECT_NEAR(speed_.slowdown(), 2, 0.3) << "and it stays so";
  EXPECT_NEAR(speed_.PredictMs(step), 0.32, 0.05) << "what most passes take";
  for (int i = 0; i < 150; ++i) speed_.Observe(step, 0.32);
  EXPECT_NEAR(speed_.slowdown(), 1, 0.1) << "the neighbour is gone";
}

TEST_F(BoardSpeedTest, TimeSlicesOfANeighbourOfLongPassesAreThePace) {
  const PassShape step{.weights_ms = 30, .rows_ms = 6, .depth_ms = 2, .rows = 1};
  for (int i = 0; i < 50; ++i) speed_.Observe(step, 32);
  for (int i = 0; i < 8; ++i) speed_.Observe(step, 64);
  EXPECT_NEAR(speed_.slowdown(), 2, 0.3) << "once, not by its pace and its stalls";
  EXPECT_NEAR(speed_.PredictMs(step), 64, 10);
  for (int i = 0; i < 8; ++i) speed_.Observe(step, 32);
  EXPECT_NEAR(speed_.slowdown(), 1, 0.2);
}

TEST_F(BoardSpeedTest, WhatGrowsSlowlyIsFollowedWithoutAnAlarm) {
  const uint32_t changes = speed_.changes();
  double slowdown = 1;
  std::vector<double> errors;
  for (int i = 0; i < 300; ++i) {
    slowdown *= 1.001;
    const PassShape shape = board_.AnyShape();
    const double took = board_.Took(shape, slowdown);
    errors.push_back(std::abs(speed_.PredictMs(shape) / took - 1));
    speed_.Observe(shape, took);
  }
  EXPECT_LE(Quantile(errors, 0.5), 0.04);
  EXPECT_LE(speed_.changes(), changes + 1);
}

// The first step behind a prompt reads weights that the prompt left out of the caches.
TEST_F(BoardSpeedTest, TheFirstStepBehindAPromptTeachesNothing) {
  const PassShape prompt{.weights_ms = 10, .rows_ms = 64, .depth_ms = 1, .rows = 32};
  const PassShape step{.weights_ms = 10, .rows_ms = 2, .depth_ms = 1, .rows = 1};
  for (int i = 0; i < 20; ++i) {
    speed_.Observe(prompt, speed_.PredictMs(prompt));
    const double predicted = speed_.PredictMs(step);
    const double slowdown = speed_.slowdown();
    speed_.Observe(step, 3 * predicted);
    EXPECT_EQ(speed_.PredictMs(step), predicted);
    EXPECT_EQ(speed_.slowdown(), slowdown);
    speed_.Observe(step, predicted);
  }
}

// Answers to batches of calls: what a pass takes has a constant, and depth costs more where calls
// share a pass, neither of which is calibrated. All passes of an answer are off by the same tenth
// or so, and each by a twentieth more.
class BatchedAnswers {
 public:
  explicit BatchedAnswers(uint32_t seed) : random_(seed) {}

  // Of `calls` calls at random depths, 16 tokens each. Returns the errors of the predictions made
  // before each pass, those of the first answer left out.
  std::vector<double> Run(BoardSpeed& speed, int32_t calls, int answers) {
    std::vector<double> errors;
    for (int answer = 0; answer < answers; ++answer) {
      const double depth = std::uniform_real_distribution(0.0, 2000.0 * calls)(random_);
      const PassShape shape{
          .weights_ms = 0.2, .rows_ms = 0.08 * calls, .depth_ms = 0.0003 * depth, .rows = calls};
      const double ms =
          (0.03 + shape.weights_ms + 0.08 * (calls - 1) + (1 + 0.15 * calls) * shape.depth_ms) *
          std::exp(std::normal_distribution(0.0, 0.1)(random_));
      for (int step = 0; step < 16; ++step) {
        const double took = ms * std::exp(std::normal_distribution(0.0, 0.05)(random_));
        if (answer > 0) errors.push_back(std::abs(speed.PredictMs(shape) / took - 1));
        speed.Observe(shape, took);
      }
    }
    return errors;
  }

 private:
  std::mt19937 random_;
};

TEST_F(BoardSpeedTest, ManyCallsOfOneSizeDoNotSpoilPredictionsOfAnother) {
  for (uint32_t board = 0; board < 30; ++board) {
    SCOPED_TRACE(board);
    BatchedAnswers batches(seed_ + board);
    BoardSpeed speed;
    for (int i = 0; i < 20; ++i) {
      batches.Run(speed, 1, 1);
      batches.Run(speed, 4, 1);
    }
    batches.Run(speed, 4, 1000);
    EXPECT_LE(Quantile(batches.Run(speed, 1, 40), 0.95), 0.3);
    batches.Run(speed, 1, 1000);
    EXPECT_LE(Quantile(batches.Run(speed, 4, 40), 0.95), 0.3);
  }
}

TEST_F(BoardSpeedTest, ImpossibleObservationsTeachNothing) {
  const double before = speed_.slowdown();
  const uint32_t passes = speed_.passes();
  const PassShape shape = board_.AnyShape();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double ms : {0.0, -1.0, nan, infinity}) speed_.Observe(shape, ms);
  speed_.Observe({}, 5);
  speed_.Observe({.weights_ms = nan, .rows_ms = 1, .depth_ms = 0, .rows = 1}, 5);
  EXPECT_EQ(speed_.slowdown(), before);
  EXPECT_EQ(speed_.passes(), passes);
}

TEST(BoardSpeed, WhatIsAsFarOffAsPredictionsUsuallyAreIsNoSlowdown) {
  const PassShape step{.weights_ms = 10, .rows_ms = 2, .depth_ms = 1, .rows = 1};
  BoardSpeed speed;
  const auto learn = [&](double ms) {
    for (int i = 0; i < 200; ++i) speed.Observe(step, ms);
  };
  learn(11);
  learn(11.4);
  EXPECT_EQ(speed.slowdown(), 1);
  EXPECT_NEAR(speed.PredictMs(step), 11.4, 0.1);
  learn(14);
  EXPECT_GT(speed.slowdown(), 1.1);
}

TEST(BoardSpeed, BeginsWithWhatWasCalibrated) {
  const BoardSpeed speed;
  EXPECT_DOUBLE_EQ(speed.PredictMs({.weights_ms = 10, .rows_ms = 2, .depth_ms = 3, .rows = 1}), 13);
  EXPECT_DOUBLE_EQ(speed.PredictMs({.weights_ms = 10, .rows_ms = 64, .depth_ms = 6, .rows = 32}),
                   70);
  EXPECT_EQ(speed.slowdown(), 1);
  EXPECT_EQ(speed.MedianError(), 0);
}

}  // namespace
}  // namespace withy::policy
