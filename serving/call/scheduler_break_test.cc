// How calls end before their answer does: by their caller, who wants what there is, or because they
// cannot go on, and then what there is of them is no result.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <utility>

#include "base/test_seed.h"
#include "serving/call/scheduler_testing.h"

namespace withy::serving {
namespace {

using engine::FinishReason;

// A rig whose calls stop in the middle of a step of the test's choice, for as long as it wants.
struct HeldSteps {
  HeldSteps() {
    stepped.model.may_finish = [this](const engine::Batch&) { return stepped.Steps() <= last; };
  }
  // A call that has answered so many tokens, and is at the next one.
  Rig::Running Begin(CallRequest request, int tokens) {
    last = stepped.Steps() + tokens;
    Rig::Running call = rig.Submit(std::move(request));
    call.sink->WaitForTokens(tokens);
    return call;
  }
  // Breaks a call off after so many tokens; returns what it was told.
  absl::Status BreakOff(CallRequest request, int tokens) {
    const Rig::Running call = Begin(std::move(request), tokens);
    rig.scheduler.BreakOff(call.ticket, absl::CancelledError("gone"));
    const absl::Status told = call.sink->Wait().status();
    last = kNoEnd;
    return told;
  }

  static constexpr int kNoEnd = 1 << 30;
  SteppedModel stepped{kFakeVocab};
  std::atomic<int> last{kNoEnd};  // step that comes to its end
  Rig rig{stepped.model};
};

CallRequest Asking(const std::string& context, int32_t max_tokens = 40) {
  CallRequest request = Rig::Ask(context, "hello", max_tokens);
  request.request_id = "r";
  request.request_digest = "d";
  return request;
}

std::string WholeAnswer(const CallRequest& request) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model);
  return rig.Submit(request).sink->Wait()->text;
}

TEST(SchedulerBreakTest, WhatBreaksOffIsKeptUntilItsRetryAnswersInFull) {
  const std::string whole = WholeAnswer(Asking("c"));
  HeldSteps steps;
  const absl::Status told = steps.BreakOff(Asking("c"), 4);
  EXPECT_EQ(told.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(told.message(), "gone");
  steps.rig.store.With([&](FakeStore::State& state) {
    ASSERT_EQ(state.commits.size(), 1u);
    EXPECT_TRUE(state.commits[0].broken_off);
    ASSERT_EQ(state.contexts["c"].segments.size(), 2u);
    EXPECT_EQ(state.contexts["c"].segments[1].text, whole.substr(0, 4));
    EXPECT_TRUE(state.contexts["c"].segments[1].cancelled);
  });
  const auto retried = steps.rig.Submit(Asking("c")).sink->Wait();
  ASSERT_TRUE(retried.ok()) << retried.status();
  EXPECT_EQ(retried->text, whole);
  EXPECT_GT(retried->usage.reused_tokens, 0) << "the prompt's KV is still good";
  steps.rig.store.With([&](FakeStore::State& state) {
    EXPECT_FALSE(state.commits.back().broken_off);
    ASSERT_EQ(state.contexts["c"].segments.size(), 2u);
    EXPECT_EQ(state.contexts["c"].segments[1].text, whole);
    EXPECT_EQ(state.faults, 0);
  });
}

TEST(SchedulerBreakTest, AStatelessCallThatBreaksOffLeavesNothing) {
  HeldSteps steps;
  EXPECT_EQ(steps.BreakOff(Asking(""), 4).code(), absl::StatusCode::kCancelled);
  steps.rig.store.With([](FakeStore::State& state) {
    EXPECT_TRUE(state.commits.empty());
    EXPECT_EQ(state.free.size(), 256u);
  });
  EXPECT_TRUE(steps.rig.Submit(Asking("")).sink->Wait().ok());
}

TEST(SchedulerBreakTest, CancelByTheCallsNumberIsAResult) {
  HeldSteps steps;
  CallRequest request = Asking("c");
  request.call_id = 7;
  const auto call = steps.Begin(request, 4);
  bool found = false, none = true;
  steps.rig.scheduler.CancelCall(8, [&](bool there) { none = there; });
  steps.rig.scheduler.CancelCall(7, [&](bool there) { found = there; });
  const auto outcome = call.sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->reason, FinishReason::kCancelled);
  EXPECT_EQ(outcome->tokens.size(), 4u);
  EXPECT_TRUE(found);
  EXPECT_FALSE(none);
  steps.rig.store.With([](FakeStore::State& state) {
    ASSERT_EQ(state.commits.size(), 1u);
    EXPECT_FALSE(state.commits[0].broken_off);
    EXPECT_EQ(state.commits[0].request_id, "r");
  });
}

TEST(SchedulerBreakTest, ADrainInMidAnswerIsNoAnswer) {
  const std::string whole = WholeAnswer(Asking("c"));
  HeldSteps steps;
  const auto call = steps.Begin(Asking("c"), 4);
  steps.rig.scheduler.Drain(absl::ZeroDuration());
  EXPECT_EQ(call.sink->Wait().status().code(), absl::StatusCode::kUnavailable);
  steps.rig.store.With([&](FakeStore::State& state) {
    ASSERT_EQ(state.commits.size(), 1u);
    EXPECT_TRUE(state.commits[0].broken_off);
    EXPECT_EQ(state.contexts["c"].segments[1].text, whole.substr(0, 4));
  });
}

// A disk that fails costs the calls that needed it, with its code and text; the worker goes on.
TEST(SchedulerBreakTest, WeightsThatCannotBeReadEndTheCallAndNotTheWorker) {
  SteppedModel stepped(kFakeVocab);
  std::atomic<bool> fails{false};
  stepped.model.failure = [&](const engine::Batch&) {
    return fails ? absl::UnavailableError("weights of layer 3 cannot be read") : absl::OkStatus();
  };
  Rig rig(stepped.model);
  EXPECT_TRUE(rig.Submit(Asking("c", 4)).sink->Wait().ok());
  fails = true;
  const absl::Status told = rig.Submit(Rig::Ask("c", "more", 4)).sink->Wait().status();
  EXPECT_EQ(told.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(told.message()), testing::HasSubstr("weights of layer 3"));
  fails = false;
  EXPECT_TRUE(rig.Submit(Rig::Ask("c", "more", 4)).sink->Wait().ok());
}

// An arena that others have filled ends an answer for now; its retry may find room.
TEST(SchedulerBreakTest, WhatAFullArenaEndsIsTriedAgain) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model, {}, /*chunks=*/6);
  const auto outcome = rig.Submit(Asking("c", 100)).sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->reason, FinishReason::kKvFull);
  rig.store.With([](FakeStore::State& state) {
    EXPECT_TRUE(state.commits.back().broken_off);
    EXPECT_TRUE(state.commits.back().appended.back().cancelled) << "the cut is marked";
    for (const ResidentChunk& chunk : std::exchange(state.contexts["c"].resident, {})) {
      state.free.insert(chunk.where.slot.units);
    }
  });
  EXPECT_TRUE(rig.Submit(Asking("c", 4)).sink->Wait().ok())
      << "no `answered just now` stands in the way of the retry";
}

// However often and wherever a request breaks off, once it is answered its context is as if it had
// been answered at once.
TEST(SchedulerBreakTest, AnyNumberOfBreaksEndsInTheSameContext) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::string whole = WholeAnswer(Asking("c"));
  for (int round = 0; round < 20; ++round) {
    HeldSteps steps;
    for (int tries = static_cast<int>(random() % 4); tries > 0; --tries) {
      EXPECT_FALSE(steps.BreakOff(Asking("c"), static_cast<int>(1 + random() % 30)).ok());
    }
    const auto answered = steps.rig.Submit(Asking("c")).sink->Wait();
    ASSERT_TRUE(answered.ok()) << answered.status();
    EXPECT_EQ(answered->text, whole);
    steps.rig.store.With([&](FakeStore::State& state) {
      ASSERT_EQ(state.contexts["c"].segments.size(), 2u);
      EXPECT_EQ(state.contexts["c"].segments[1].text, whole);
      EXPECT_EQ(state.faults, 0);
    });
  }
}

}  // namespace
}  // namespace withy::serving
