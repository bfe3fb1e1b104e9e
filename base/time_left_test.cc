#include "base/time_left.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/progress_line.h"
#include "base/test_seed.h"

namespace withy {
namespace {

// One stage of a simulated run: its estimate, number of steps and actual time per step.
struct TraceStage {
  std::string kind;
  double estimate_s = 0;
  int steps = 1;
  double really_s = 0;
};

// A run like withy-elasticize's: a stage of each kind for each of eight levels, the last ones
// longest. `bias`: actual seconds per estimated second, by kind.
std::vector<TraceStage> ManyLevels(const std::function<double(const std::string&)>& bias) {
  std::vector<TraceStage> trace = {{"units", 60, 32, 0}, {"layers", 100, 500, 0}};
  for (const double weight : {0.1, 0.2, 0.4, 0.7, 1.0, 1.8, 3.0, 6.0}) {
    trace.push_back({"units", 50, 32, 0});
    trace.push_back({"cuts", 300, 800, 0});
    trace.push_back({"splits", 400 * weight, 200, 0});
    trace.push_back({"recovery", 900 * weight, 400, 0});
  }
  for (TraceStage& stage : trace) stage.really_s = stage.estimate_s * bias(stage.kind);
  return trace;
}

struct Look {
  double at_s = 0;
  double share = 0;  // share of the actual time
  double left_s = 0;
  double really_left_s = 0;
  double stage_left_s = 0;
  double stage_really_left_s = 0;
};

// Replays a trace and reads the estimates before, in the middle of and after every step. `noise`: a
// step takes 1 ± that of its time.
std::vector<Look> Replay(const std::vector<TraceStage>& trace, double noise, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> spread(1 - noise, 1 + noise);
  std::vector<std::vector<double>> steps;
  double all = 0;
  std::vector<TimeLeft::Stage> stages;
  for (const TraceStage& stage : trace) {
    stages.push_back({stage.kind, stage.estimate_s});
    for (std::vector<double>& of = steps.emplace_back(); static_cast<int>(of.size()) < stage.steps;)
      of.push_back(stage.really_s / stage.steps * spread(random));
    for (const double step : steps.back()) all += step;
  }
  TimeLeft left(stages);
  std::vector<Look> looks;
  double now = 1000;
  const double end = now + all;
  for (size_t i = 0; i < trace.size(); ++i) {
    const double cost = trace[i].estimate_s / trace[i].steps;
    double stage_end = now;
    for (const double step : steps[i]) stage_end += step;
    left.Begin(i, 0, cost, now);
    const auto look = [&] {
      looks.push_back({now, 1 - (end - now) / all, left.OfAll(now), end - now, left.OfStage(now),
                       stage_end - now});
    };
    look();
    for (const double step : steps[i]) {
      now += step / 2;
      look();
      now += step / 2;
      left.Advance(cost, now);
      look();
    }
    left.End(now);
  }
  return looks;
}

TEST(TimeLeftTest, AGoodEstimateStaysGood) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    for (const Look& look : Replay(ManyLevels([](const std::string&) { return 1.0; }), 0.3, seed)) {
      EXPECT_NEAR(look.left_s, look.really_left_s, 0.1 * look.really_left_s + 10) << seed;
    }
  }
}

TEST(TimeLeftTest, IsNeverNothingWhileSomethingIsLeft) {
  const auto slower = [](const std::string&) { return 6.0; };
  for (const Look& look : Replay(ManyLevels(slower), 0.2, 3)) {
    if (look.stage_really_left_s > 60) {
      EXPECT_GT(look.stage_left_s, 2) << look.share;
    }
    if (look.really_left_s > 120) {
      EXPECT_GT(look.left_s, 30) << look.share;
    }
  }
}

// The machine is busier, or less busy, than when it was measured.
TEST(TimeLeftTest, AWrongEstimateIsMendedInTheFirstPerCents) {
  for (const double factor : {0.3, 0.5, 2.0, 4.0}) {
    for (uint32_t seed = 1; seed <= 5; ++seed) {
      for (const Look& look :
           Replay(ManyLevels([&](const std::string&) { return factor; }), 0.3, seed)) {
        if (look.share < 0.05) continue;
        EXPECT_NEAR(look.left_s, look.really_left_s, 0.3 * look.really_left_s + 20)
            << factor << " at " << look.share << ", seed " << seed;
      }
    }
  }
}

// Kinds deviate in different directions, so the time of one says little about the others.
TEST(TimeLeftTest, KindsThatAreOffEachInItsWayAreMendedOnceSeen) {
  const uint32_t first = TestSeed();
  for (uint32_t seed = first; seed != first + 30; ++seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> log_bias(std::log(0.5), std::log(2.0));
    std::map<std::string, double> biases;
    for (const char* kind : {"units", "layers", "cuts", "splits", "recovery"})
      biases[kind] = std::exp(log_bias(random));
    for (const Look& look :
         Replay(ManyLevels([&](const std::string& kind) { return biases[kind]; }), 0.3, seed)) {
      if (look.share < 0.1) continue;
      EXPECT_NEAR(look.left_s, look.really_left_s, 0.3 * look.really_left_s + 20)
          << "at " << look.share << ", seed " << seed;
    }
  }
}

TEST(TimeLeftTest, DoesNotJumpUpAtASteadyPace) {
  const std::vector<Look> looks =
      Replay(ManyLevels([](const std::string&) { return 1.1; }), 0.2, 9);
  double least = 1e9;
  for (const Look& look : looks) {
    if (look.share < 0.02)
      continue;  // until then it is not known that everything takes a tenth longer
    EXPECT_LT(look.left_s, 1.05 * least + 5) << look.share;
    least = std::min(least, look.left_s);
  }
}

// One long step that is overdue: the expected rest grows and does not become zero.
TEST(TimeLeftTest, AStepThatTakesLongerIsNotOverInASecond) {
  TimeLeft left({{"units", 100}});
  left.Begin(0, 0, 25, 0);
  for (int i = 1; i <= 3; ++i) left.Advance(25, 25.0 * i);
  EXPECT_NEAR(left.OfStage(75), 25, 1);
  EXPECT_GT(left.OfStage(99), 2);
  EXPECT_GT(left.OfStage(200), 10);
  EXPECT_LT(left.OfStage(200), 100);
}

TEST(TimeLeftTest, WhatAnEarlierRunHasDoneIsNotCountedAgain) {
  TimeLeft left({{"units", 100}, {"layers", 100}, {"recovery", 800}});
  left.Skip(0);
  EXPECT_NEAR(left.OfAll(0), 900, 1e-6);
  left.Begin(1, 50, 10, 0);
  EXPECT_NEAR(left.OfAll(0), 850, 1e-6);
  EXPECT_NEAR(left.Share(0), 0.15, 1e-3);
  left.Advance(10, 10);
  EXPECT_NEAR(left.OfStage(10), 40, 1);
  left.End(50);
  left.Begin(2, 0, 1, 50);
  left.End(850);
  EXPECT_EQ(left.OfAll(850), 0);
  EXPECT_EQ(left.Share(850), 1);
}

TEST(DurationTextTest, SaysNoMoreThanIsKnown) {
  EXPECT_EQ(DurationText(0.2), "less than 1 s");
  EXPECT_EQ(DurationText(42.4), "42 s");
  EXPECT_EQ(DurationText(12 * 60 + 20), "12 min");
  EXPECT_EQ(DurationText(98.0 * 60), "98 min");
  EXPECT_EQ(DurationText(9 * 3600 + 41 * 60), "9 h 40 min");
  EXPECT_EQ(DurationText(10 * 3600), "10 h");
  EXPECT_EQ(DurationText(76 * 3600), "3 days 4 h");
}

TEST(ProgressTextTest, SaysWhatIsLeftOfTheStageAndOfAll) {
  EXPECT_EQ(
      ProgressText("level 80 %, recovery", 0.379, 720, 5 * 3600 + 600),
      "[#######             ]  37 % level 80 %, recovery: 12 min left, 5 h 10 min for the whole");
  EXPECT_EQ(ProgressText("words", 0, std::nullopt, std::nullopt),
            "[                    ]   0 % words: measuring");
  EXPECT_EQ(ProgressText("words", 1, 0.0, 0.0), "[####################] 100 % words: done");
}

class WriteWholeTest : public testing::Test {
 protected:
  WriteWholeTest() {
    std::string name = "/tmp/withy_whole_XXXXXX";
    directory_ = mkdtemp(name.data());
    path_ = directory_ + "/state";
  }
  ~WriteWholeTest() override { std::filesystem::remove_all(directory_); }
  std::string Content() const {
    std::ifstream in(path_);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string directory_;
  std::string path_;
};

TEST_F(WriteWholeTest, ReplacesAFile) {
  ASSERT_TRUE(WriteAtomically(path_, "one").ok());
  ASSERT_TRUE(WriteAtomically(path_, "another").ok());
  EXPECT_EQ(Content(), "another");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".partial"));
  EXPECT_EQ(WriteAtomically(directory_ + "/none/state", "x").code(), absl::StatusCode::kNotFound);
}

// A limit on file sizes ends a write in the middle, as a full disk does.
TEST_F(WriteWholeTest, AFullDiskLeavesWhatWasThere) {
  ASSERT_TRUE(WriteAtomically(path_, "one").ok());
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const absl::Status status = WriteAtomically(path_, std::string(10000, 'x'));
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find(path_), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("10000 bytes"), absl::string_view::npos) << status;
  EXPECT_EQ(Content(), "one");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".partial"));
}

}  // namespace
}  // namespace withy
