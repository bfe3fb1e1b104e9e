#include "policy/call/admission.h"

#include <vector>

#include "gtest/gtest.h"

namespace withy::policy {
namespace {

class AdmissionTest : public ::testing::Test {
 protected:
  void Arrive(Admission& admission, uint64_t first, uint64_t last) {
    for (uint64_t id = first; id <= last; ++id) ASSERT_TRUE(admission.Arrive(id, now_).ok());
  }
  // Queues the call; whether it runs at once.
  bool Start(Admission& admission, uint64_t id, int priority = 0) {
    admission.Queue(Lane::kTarget,
                    {.priority = priority, .arrived_ns = static_cast<int64_t>(id), .id = id},
                    {10, 20}, demand_);
    return Started(admission, id);
  }
  bool Started(Admission& admission, uint64_t id) const {
    admission.StartReady(Lane::kTarget, now_);
    return admission.running(id);
  }
  // As a call sees it that would come last.
  Load LoadOf(const Admission& admission) const {
    return admission.LoadBefore(Lane::kTarget, {.priority = -5, .arrived_ns = 99, .id = 99}, now_);
  }

  CallDemand demand_;
  int64_t now_ = 1;
};

TEST_F(AdmissionTest, BoundsAndDrains) {
  Admission admission({.limit = 2, .slots = {1, 1}});
  Arrive(admission, 1, 2);
  EXPECT_EQ(admission.Arrive(3, now_).code(), absl::StatusCode::kResourceExhausted);
  admission.Leave(1, now_);
  EXPECT_TRUE(admission.Arrive(3, now_).ok());
  admission.Leave(3, now_);
  admission.StopAdmitting();
  EXPECT_EQ(admission.Arrive(4, now_).code(), absl::StatusCode::kUnavailable);
}

TEST_F(AdmissionTest, StartsInTheOrderOfTurnsAsSlotsComeFree) {
  Admission admission({.limit = 8, .slots = {1, 1}});
  Arrive(admission, 1, 4);
  EXPECT_FALSE(Started(admission, 1)) << "not queued yet";
  ASSERT_TRUE(Start(admission, 1));
  for (uint64_t id = 2; id <= 4; ++id) EXPECT_FALSE(Start(admission, id, static_cast<int>(id)));
  EXPECT_EQ(LoadOf(admission).ahead.size(), 3u);
  for (uint64_t id = 4; id >= 2; --id) {
    admission.Leave(id == 4 ? 1 : id + 1, now_);
    EXPECT_TRUE(admission.running(id)) << id;
    EXPECT_EQ(admission.counts().running, 1u);
  }
  EXPECT_FALSE(Started(admission, 9)) << "never arrived";
}

TEST_F(AdmissionTest, APrefillWaitsForTheSlackOfWhatRuns) {
  Admission admission({.limit = 8, .slots = {4, 4}, .piece_ms = 50});
  Arrive(admission, 1, 3);
  // 10 ms a token and 12 promised: 8 ms of slack at its first token.
  demand_.token_ms = 10;
  demand_.targets.tpot_ms = 12;
  ASSERT_TRUE(Start(admission, 1));
  admission.FirstToken(1, now_);
  admission.Generated(1, 1, now_);
  demand_ = CallDemand();
  demand_.prefill_ms = 200;
  EXPECT_FALSE(Start(admission, 2));
  // A short one passes.
  demand_.prefill_ms = 6;
  ASSERT_TRUE(Start(admission, 3));
  admission.Leave(3, now_);
  const Load load = LoadOf(admission);
  ASSERT_EQ(load.running.size(), 1u);
  EXPECT_DOUBLE_EQ(load.running[0].slack.ms, 8);
  // Its tokens come faster than promised, until it can bear the long one.
  admission.Generated(1, 10, now_);
  now_ += 100 * kNanosPerMilli;
  EXPECT_FALSE(Started(admission, 2));
  admission.Generated(1, 7, now_);
  EXPECT_TRUE(Started(admission, 2)) << "two tokens are left, and 108 ms";
}

TEST_F(AdmissionTest, NobodyIsHeldForEver) {
  Admission admission({.limit = 8, .slots = {4, 4}, .piece_ms = 50});
  Arrive(admission, 1, 2);
  demand_.token_ms = 10;
  demand_.targets.end_to_end_ms = 3'000'000;
  demand_.prefill_ms = 1e9;
  ASSERT_TRUE(Start(admission, 1));
  admission.FirstToken(1, now_);
  demand_.row_ms = 1e9;
  EXPECT_FALSE(Start(admission, 2));
  now_ = kPatienceNs + 1;
  EXPECT_FALSE(Started(admission, 2));
  now_ += 1;
  EXPECT_TRUE(Started(admission, 2));
}

TEST_F(AdmissionTest, TellsTheLoadAndWhatRanBeside) {
  Admission admission({.limit = 8, .slots = {4, 4}});
  for (uint64_t id = 1; id <= 2; ++id) {
    ASSERT_TRUE(admission.Arrive(id, now_).ok());
    ASSERT_TRUE(Start(admission, id));
  }
  Load load = admission.LoadBefore(Lane::kTarget, {.id = 9}, now_);
  ASSERT_EQ(load.running.size(), 2u);
  EXPECT_EQ(load.running[0].prefill_tokens, 10u);
  EXPECT_TRUE(admission.LoadBefore(Lane::kDraft, {.id = 9}, now_).running.empty());

  admission.FirstToken(1, now_);
  now_ += kNanosPerSecond;
  admission.FirstToken(2, now_);  // its 10 prompt tokens ran beside call 1
  now_ += kNanosPerSecond;
  admission.Generated(1, 15, now_);
  EXPECT_EQ(admission.LoadBefore(Lane::kTarget, {.id = 9}, now_).running[0].remaining_tokens, 5u);
  EXPECT_DOUBLE_EQ(admission.Surroundings(1, now_).mean_rows, 1.5);
  EXPECT_DOUBLE_EQ(admission.Surroundings(1, now_).foreign_prefill_tokens, 10);
  EXPECT_DOUBLE_EQ(admission.Surroundings(2, now_).mean_rows, 2);
  EXPECT_DOUBLE_EQ(admission.Surroundings(2, now_).foreign_prefill_tokens, 0);
  EXPECT_FALSE(admission.Surroundings(1, now_).alone);
  EXPECT_FALSE(admission.Surroundings(2, now_).alone);
  admission.Leave(1, now_);
  now_ += kNanosPerSecond;
  EXPECT_DOUBLE_EQ(admission.Surroundings(2, now_).mean_rows, 1.5);
}

TEST_F(AdmissionTest, AnAnswerOfUnknownLengthIsNeverTakenToHaveEnded) {
  Admission admission({.limit = 8, .slots = {4, 4}});
  for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(admission.Arrive(id, now_).ok());
  admission.Queue(Lane::kTarget, {.id = 1}, {.remaining_tokens = 20, .open_ended = true}, {});
  admission.Queue(Lane::kTarget, {.id = 2}, {.remaining_tokens = 20}, {});
  for (uint64_t id = 1; id <= 2; ++id) {
    ASSERT_TRUE(Started(admission, id));
    admission.FirstToken(id, now_);
    admission.Generated(id, 5, now_);
  }
  const auto left = [&](size_t i) {
    return admission.LoadBefore(Lane::kTarget, {.id = 9}, now_).running[i].remaining_tokens;
  };
  EXPECT_EQ(left(0), 15u);
  for (uint64_t id = 1; id <= 2; ++id) admission.Generated(id, 100, now_);
  EXPECT_EQ(left(0), kHorizonTokens);
  EXPECT_EQ(left(1), 0u);
}

TEST_F(AdmissionTest, TellsHowDeepTheContextsBesideAreAndWere) {
  Admission admission({.limit = 8, .slots = {4, 4}});
  for (uint64_t id = 1; id <= 2; ++id) {
    ASSERT_TRUE(admission.Arrive(id, now_).ok());
    admission.Queue(
        Lane::kTarget, {.id = id},
        {.prefill_tokens = 100, .remaining_tokens = 50, .resident_tokens = id == 2 ? 1000u : 0u},
        {});
    ASSERT_TRUE(Started(admission, id));
  }
  EXPECT_EQ(admission.LoadBefore(Lane::kTarget, {.id = 9}, now_).running[1].resident_tokens, 1000u);
  admission.FirstToken(1, now_);
  admission.FirstToken(2, now_);
  EXPECT_EQ(admission.LoadBefore(Lane::kTarget, {.id = 9}, now_).running[1].resident_tokens, 1100u);
  // 1,000 tokens of context before the prompt, and half of itself before each of its tokens.
  EXPECT_DOUBLE_EQ(admission.Surroundings(1, now_).foreign_prefill_context, 100 * 1050);
  now_ += kNanosPerSecond;
  admission.Generated(1, 10, now_);
  admission.Generated(2, 10, now_);
  now_ += kNanosPerSecond;
  admission.Generated(1, 10, now_);
  admission.Generated(2, 10, now_);
  EXPECT_EQ(admission.LoadBefore(Lane::kTarget, {.id = 9}, now_).running[1].resident_tokens, 1120u);
  EXPECT_NEAR(admission.Surroundings(1, now_).other_depth_tokens, 1105, 10);
  EXPECT_NEAR(admission.Surroundings(2, now_).other_depth_tokens, 105, 10);
  admission.Leave(1, now_);
  now_ += 2 * kNanosPerSecond;
  EXPECT_NEAR(admission.Surroundings(2, now_).other_depth_tokens, 105 / 2.0, 15);
  admission.Leave(2, now_);
  EXPECT_TRUE(admission.LoadBefore(Lane::kTarget, {.id = 9}, now_).running.empty());
}

TEST_F(AdmissionTest, TellsHowFastCallsCome) {
  Admission admission({.limit = 4});
  EXPECT_EQ(admission.LoadBefore(Lane::kTarget, {.id = 1000}, now_).arrivals_per_ms, 0);
  uint64_t id = 0;
  for (int second = 0; second < 60; ++second) {  // five a second
    for (int i = 0; i < 5; ++i) {
      now_ += kNanosPerSecond / 5;
      ASSERT_TRUE(admission.Arrive(++id, now_).ok());
      admission.Leave(id, now_);
    }
  }
  EXPECT_NEAR(admission.LoadBefore(Lane::kTarget, {.id = 1000}, now_).arrivals_per_ms, 0.0049,
              0.0003);
  now_ += 60 * kNanosPerSecond;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(admission.Arrive(++id, now_).ok());
  EXPECT_LT(admission.LoadBefore(Lane::kTarget, {.id = id}, now_).arrivals_per_ms, 2e-5)
      << "one call beside this one may be chance";
}

}  // namespace
}  // namespace withy::policy
