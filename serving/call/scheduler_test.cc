#include "serving/call/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "engine/model/testing.h"
#include "serving/call/scheduler_testing.h"

namespace withy::serving {
namespace {

using engine::FinishReason;
using testing::HasSubstr;

// Waits until at least so many of the store's 256 slots are with calls.
bool AwaitClaims(Rig& rig, size_t chunks) {
  return Eventually([&] {
    return rig.store.With([](FakeStore::State& s) { return s.free.size(); }) <= 256 - chunks;
  });
}

// Where a step waits until the test has done what it wants to do meanwhile. Shared, for a test that
// fails is gone before the step.
struct Gate {
  void Pass() {
    reached.release();
    EXPECT_TRUE(Acquire(go));
  }
  std::binary_semaphore reached{0};
  std::binary_semaphore go{0};
};

// A rig whose steps of many rows last until they are released, however long that is: nobody's
// patience ends before.
struct LongSteps {
  LongSteps() {
    stepped.on_step = [this] {
      {
        absl::MutexLock lock(&stepped.mutex);
        rows.push_back(stepped.rows);
      }
      if (released && on_step) on_step();
    };
    stepped.model.may_finish = [this](const engine::Batch& batch) {
      const bool many = static_cast<int32_t>(batch.rows.size()) > kMany;
      if (many) begun = true;
      return !many || released;
    };
  }
  // A call with a long prompt, whose first step has begun and does not end.
  Rig::Running BeginLong(int64_t deadline_ns = 0) {
    CallRequest request = Rig::Ask("", std::string(190, 'x'), 4);
    request.turn.deadline_ns = deadline_ns;
    Rig::Running call = rig.Submit(std::move(request));
    EXPECT_TRUE(Eventually([&] { return begun.load(); }));
    return call;
  }
  Rig::Running Submit(int64_t deadline_ns, CallRequest request = Rig::Ask("", "hello", 4)) {
    request.turn.deadline_ns = deadline_ns;
    return rig.Submit(std::move(request));
  }
  // One whose prompt goes in between: what it has to answer yet waits for the long step's end.
  Rig::Running Prefill(const std::string& context, int32_t max_tokens) {
    Rig::Running call =
        Submit(clock.SteadyNanos() + kNanosPerSecond, Rig::Ask(context, "hello", max_tokens));
    call.sink->WaitForTokens(1);
    return call;
  }
  // Steps of many rows that were begun.
  int ManyRows() {
    absl::MutexLock lock(&stepped.mutex);
    return static_cast<int>(
        std::count_if(rows.begin(), rows.end(), [](int32_t count) { return count > kMany; }));
  }

  static constexpr int32_t kMany = 100;
  SteppedModel stepped{kFakeVocab};
  std::vector<int32_t> rows;  // of each step; guarded by stepped.mutex
  std::atomic<bool> begun{false};
  std::atomic<bool> released{false};
  std::function<void()> on_step;  // of steps after the release; set before it
  CrawlingClock clock;
  // A step of 128 rows is thought to take 1.3 s, a token 1 ms.
  Rig rig{stepped.model,
          {.paces = {{.row_ms = 10, .token_ms = 1}}},
          512,
          256,
          {.prefill_us_per_token = 1},
          clock};
};

TEST(SchedulerTest, AnswersAndCommits) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model);
  CallRequest request = Rig::Ask("c", "hello", 6);
  request.request_id = "r1";
  const auto call = rig.Submit(request);
  const auto outcome = call.sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->reason, FinishReason::kMaxTokens);
  EXPECT_EQ(outcome->text.size(), 6u);
  EXPECT_EQ(call.sink->text(), outcome->text);
  EXPECT_EQ(call.sink->tokens(), 6);
  EXPECT_GT(outcome->times.first_token_ns, outcome->times.arrived_ns);
  rig.store.With([&](FakeStore::State& state) {
    ASSERT_EQ(state.commits.size(), 1u);
    EXPECT_EQ(state.commits[0].request_id, "r1");
    EXPECT_EQ(state.commits[0].outcome.text, outcome->text);
    EXPECT_EQ(state.contexts["c"].segments.back().text, outcome->text);
  });
}

TEST(SchedulerTest, APromptsProgressIsToldWhereItIsAskedFor) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model);
  CallRequest request = Rig::Ask("c", std::string(200, 'x'), 4);
  request.report_progress = true;
  const auto call = rig.Submit(request);
  ASSERT_TRUE(call.sink->Wait().ok());
  const auto progress = call.sink->progress();
  ASSERT_FALSE(progress.empty()) << "two pieces at least";
  const int32_t tokens = call.sink->accepted().prefill_tokens;
  int32_t before = 0;
  for (const auto& [computed, all] : progress) {
    EXPECT_EQ(all, tokens);
    EXPECT_GT(computed, before);
    EXPECT_LT(computed, tokens);
    before = computed;
  }
  const auto silent = rig.Submit(Rig::Ask("d", std::string(200, 'x'), 4));
  ASSERT_TRUE(silent.sink->Wait().ok());
  EXPECT_TRUE(silent.sink->progress().empty());
}

TEST(SchedulerTest, NextCallOfAContextReusesItsKv) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model);
  ASSERT_TRUE(rig.Submit(Rig::Ask("c", "first")).sink->Wait().ok());
  const auto second = rig.Submit(Rig::Ask("c", "second"));
  const auto outcome = second.sink->Wait();
  ASSERT_TRUE(outcome.ok());
  EXPECT_GT(outcome->usage.reused_tokens, 16);
  EXPECT_EQ(second.sink->accepted().reused_tokens, outcome->usage.reused_tokens);
  EXPECT_EQ(outcome->usage.context_tokens, outcome->usage.reused_tokens + 1);
}

TEST(SchedulerTest, CallsShareStepsAndTheSameContextTakesTurns) {
  LongSteps steps;
  std::vector<Rig::Running> calls = {steps.BeginLong()};
  for (int i = 0; i < 5; ++i) calls.push_back(steps.Prefill("c" + std::to_string(i), 100));
  const auto again = steps.rig.Submit(Rig::Ask("c0", "again", 5));
  steps.released = true;
  for (const auto& call : calls) EXPECT_TRUE(call.sink->Wait().ok());
  EXPECT_TRUE(again.sink->Wait().ok());
  EXPECT_EQ(steps.stepped.most_contexts, 6);
  steps.rig.store.With([](FakeStore::State& state) {
    EXPECT_EQ(state.contexts["c0"].segments.size(), 4u);
    EXPECT_EQ(state.contexts["c0"].segments[2].text, "again");
  });
}

// What a sink keeps back is told before anything that takes long: another call's prompt, the
// record.
TEST(SchedulerTest, AnAnswerIsFlushedBeforeAPromptBesideItAndAtItsEnd) {
  SteppedModel stepped(kFakeVocab);
  const auto gate = std::make_shared<Gate>();
  stepped.on_step = [gate, &stepped] {
    if (stepped.Steps() == 5) gate->Pass();
  };
  Rig rig(stepped.model, {}, /*chunks=*/4096, /*window=*/8192);
  const auto call = rig.Submit(Rig::Ask("c", "hello", 8000));  // goes on for long enough
  ASSERT_TRUE(Acquire(gate->reached));
  EXPECT_THAT(call.sink->flushes(), testing::IsEmpty()) << "its next token is a step away";
  const auto other = rig.Submit(Rig::Ask("d", "hello", 2));
  gate->go.release();
  ASSERT_TRUE(other.sink->Wait().ok());
  EXPECT_EQ(other.sink->flushes().back(), 2);
  const std::vector<int> flushes = call.sink->flushes();
  rig.scheduler.Cancel(call.ticket);
  ASSERT_TRUE(call.sink->Wait().ok());
  ASSERT_FALSE(flushes.empty());
  EXPECT_GE(flushes.front(), 5);
  EXPECT_LT(flushes.front(), 8000);
}

TEST(SchedulerTest, CancelStopsWithinAStepAndKeepsThePartialAnswer) {
  SteppedModel stepped(kFakeVocab);
  const auto gate = std::make_shared<Gate>();
  stepped.on_step = [gate, &stepped] {
    if (stepped.Steps() == 5) gate->Pass();
  };
  Rig rig(stepped.model);
  const auto call = rig.Submit(Rig::Ask("c", "hello", 200));
  ASSERT_TRUE(Acquire(gate->reached));
  rig.scheduler.Cancel(call.ticket);
  gate->go.release();
  const auto outcome = call.sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->reason, FinishReason::kCancelled);
  EXPECT_EQ(stepped.Steps(), 5) << "the step that was under way is given up";
  rig.store.With([&](FakeStore::State& state) {
    const engine::Segment& answer = state.contexts["c"].segments.back();
    EXPECT_TRUE(answer.cancelled);
    EXPECT_EQ(answer.text, outcome->text);
    EXPECT_EQ(answer.text.size(), 4u);
  });
}

// Cancels a call inside its prefill, at its second step.
void CancelInPrefill(SteppedModel& stepped, Rig& rig, CallRequest request) {
  const auto gate = std::make_shared<Gate>();
  stepped.on_step = [gate, &stepped] {
    if (stepped.Steps() == 2) gate->Pass();
  };
  const auto call = rig.Submit(std::move(request));
  ASSERT_TRUE(Acquire(gate->reached));
  rig.scheduler.Cancel(call.ticket);
  gate->go.release();
  EXPECT_EQ(call.sink->Wait().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(stepped.Steps(), 2) << "it stops within a piece";
}

TEST(SchedulerTest, CancelInsideAStatelessPrefillLeavesNothing) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model);
  CancelInPrefill(stepped, rig, Rig::Ask("", std::string(200, 'x'), 10));
  rig.store.With([](FakeStore::State& state) {
    EXPECT_EQ(state.aborts, 1);
    EXPECT_EQ(state.free.size(), 256u);
  });
}

TEST(SchedulerTest, CancelInsidePrefillKeepsTheKvForTheRetryAndNothingOfTheRecord) {
  SteppedModel stepped(kFakeVocab);
  std::string expected;
  {
    Rig other(stepped.model);
    expected = other.Submit(Rig::Ask("c", std::string(200, 'x'), 10)).sink->Wait()->text;
  }
  stepped.steps = 0;
  Rig rig(stepped.model);
  const CallRequest request = Rig::Ask("c", std::string(200, 'x'), 10);
  CancelInPrefill(stepped, rig, request);
  rig.store.With([](FakeStore::State& state) {
    EXPECT_TRUE(state.contexts["c"].segments.empty());
    ASSERT_EQ(state.commits.size(), 1u);
    EXPECT_TRUE(state.commits[0].appended.empty());
    EXPECT_EQ(state.commits[0].context_tokens, 0);
    EXPECT_GE(state.contexts["c"].resident.size(), 8u);
  });
  const auto retried = rig.Submit(request).sink->Wait();
  ASSERT_TRUE(retried.ok()) << retried.status();
  EXPECT_GE(retried->usage.reused_tokens, 128);
  EXPECT_EQ(retried->text, expected);
  rig.store.With([](FakeStore::State& state) {
    EXPECT_EQ(state.contexts["c"].segments.size(), 2u);
    EXPECT_EQ(state.faults, 0);
  });
}

TEST(SchedulerTest, AnotherPromptAfterACancelledOneTakesWhatFitsAndIsNoFault) {
  SteppedModel stepped(kFakeVocab);
  const auto talk = [](Rig& rig) {
    return rig.Submit(Rig::Ask("c", "hello there, how are you", 10)).sink->Wait()->text;
  };
  std::string expected;
  {
    Rig other(stepped.model);
    talk(other);
    expected = other.Submit(Rig::Ask("c", std::string(60, 'y'), 10)).sink->Wait()->text;
  }
  Rig rig(stepped.model);
  talk(rig);
  stepped.steps = 0;
  CancelInPrefill(stepped, rig, Rig::Ask("c", std::string(150, 'x'), 10));
  const auto next = rig.Submit(Rig::Ask("c", std::string(60, 'y'), 10)).sink->Wait();
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->text, expected);
  EXPECT_GT(next->usage.reused_tokens, 16) << "the conversation before";
  rig.store.With([](FakeStore::State& state) {
    EXPECT_EQ(state.faults, 0);
    EXPECT_EQ(state.contexts["c"].segments.size(), 4u);
  });
}

TEST(SchedulerTest, AnUrgentPromptGoesInBetweenAndNothingIsComputedTwice) {
  LongSteps steps;
  const int64_t now = steps.clock.SteadyNanos();
  const auto longer = steps.BeginLong();
  const auto urgent = steps.Submit(now + kNanosPerSecond);
  urgent.sink->WaitForTokens(1);
  EXPECT_EQ(longer.sink->tokens(), 0);
  steps.released = true;
  ASSERT_TRUE(urgent.sink->Wait().ok());
  const auto outcome = longer.sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(steps.ManyRows(), 1);
  EXPECT_EQ(outcome->text, steps.BeginLong().sink->Wait()->text);
}

// As long as it would fall behind 100 ms a token by waiting. At the 13th it has saved 1.3 s; what
// is learnt of fast steps meanwhile makes that fewer.
TEST(SchedulerTest, AnAnswerThatCannotWaitGoesOnInBetween) {
  LongSteps steps;
  const auto longer = steps.BeginLong();
  const int64_t soon = steps.clock.SteadyNanos() + kNanosPerSecond;
  CallRequest brief = Rig::Ask("", "hello", 4);
  brief.targets.tpot_ms = 100;
  EXPECT_TRUE(steps.Submit(soon, brief).sink->Wait().ok());
  CallRequest talkative = Rig::Ask("", "hello", 30);
  talkative.targets.tpot_ms = 100;
  const auto call = steps.Submit(soon, talkative);
  call.sink->WaitForTokens(6);
  // Prepared after it, so that it could have gone on by now.
  steps.Submit(soon, Rig::Ask("", "hello", 2)).sink->WaitForTokens(1);
  EXPECT_LE(call.sink->tokens(), 13);
  EXPECT_GE(call.sink->flushes().size(), 5u) << "nobody knows when the next one may go in between";
  EXPECT_EQ(longer.sink->tokens(), 0);
  steps.released = true;
  EXPECT_TRUE(call.sink->Wait().ok());
  EXPECT_TRUE(longer.sink->Wait().ok());
  EXPECT_EQ(steps.ManyRows(), 1) << "nothing is computed twice";
}

TEST(SchedulerTest, AShortPromptIsNotStuckBehindALongStep) {
  LongSteps steps;
  const auto longer = steps.BeginLong();
  steps.Submit(0).sink->WaitForTokens(1);
  EXPECT_EQ(longer.sink->tokens(), 0);
  steps.released = true;
  EXPECT_TRUE(longer.sink->Wait().ok());
}

// An answer that has told three tokens, and whose next step takes until `go`. A row is thought to
// take 5 ms: pieces of 8 rows beside an answer.
struct LongToken {
  explicit LongToken(CallRequest talkative) {
    stepped.on_step = [this] {
      if (stepped.rows == 1) return;
      const std::vector<int> flushes = talker->flushes();
      flushed = flushes.empty() ? 0 : flushes.back();
      ++prompt_steps;
    };
    stepped.model.may_finish = [this](const engine::Batch& batch) {
      return talker->tokens() < 3 || batch.rows.size() > 1 || go.load();
    };
    EXPECT_TRUE(rig.scheduler.Submit(std::move(talkative), talker).ok());
    talker->WaitForTokens(3);
    prompt_steps = 0;
  }

  // Of 200 rows, more urgent than the answer; its first token is due in `ttft_ms`.
  Rig::Running SubmitPrompt(double ttft_ms) {
    CallRequest request = Rig::Ask("b", std::string(200, 'x'), 2);
    request.turn.deadline_ns = clock.SteadyNanos() + kNanosPerSecond;
    request.targets = {.ttft_ms = ttft_ms, .arrived_ns = clock.SteadyNanos()};
    return rig.Submit(std::move(request));
  }

  SteppedModel stepped{kFakeVocab};
  std::shared_ptr<RecordingSink> talker = std::make_shared<RecordingSink>();
  std::atomic<bool> go = false;
  std::atomic<int> prompt_steps = 0;  // since then
  std::atomic<int> flushed = 0;       // of its tokens, before the last of them
  CrawlingClock clock;
  Rig rig{stepped.model, {}, 512, 256, {.prefill_us_per_token = 5000}, clock};
};

TEST(SchedulerTest, AStepThatAnswersWaitForGivesWayOnce) {
  LongToken token(Rig::Ask("a", "t", 150));
  const auto urgent = token.SubmitPrompt(policy::kNoLimit);
  ASSERT_TRUE(Eventually([&] { return token.prompt_steps > 0; }));
  EXPECT_EQ(token.flushed, 3) << "what was kept back is told before a prompt goes in between";
  // When this call has been accepted the scheduler has come by since.
  const auto patient = token.rig.Submit(Rig::Ask("c", "hello", 2));
  ASSERT_TRUE(Eventually([&] { return patient.sink->accepted().prefill_tokens > 0; }));
  EXPECT_EQ(token.prompt_steps, 1);
  token.go = true;
  for (const auto& sink : {urgent.sink, patient.sink, token.talker}) {
    EXPECT_TRUE(sink->Wait().ok());
  }
}

// A prompt of a second beside an answer that has 10 ms for each token: it waits for the answer's
// step, since it can, and goes in between where it cannot.
TEST(SchedulerTest, APromptThatCanWaitDoesNotComeBeforeATokenThatCannot) {
  for (const bool can_wait : {true, false}) {
    CallRequest talkative = Rig::Ask("a", "t", 20);
    talkative.targets.tpot_ms = 10;
    LongToken token(std::move(talkative));
    const auto prompt = token.SubmitPrompt(can_wait ? 100'000 : 0.001);
    if (!can_wait) {
      ASSERT_TRUE(Eventually([&] { return token.prompt_steps > 0; }));
    }
    // When a call after it has been accepted the scheduler has come by since.
    ASSERT_TRUE(Eventually([&] { return prompt.sink->accepted().prefill_tokens > 0; }));
    const auto last = token.rig.Submit(Rig::Ask("c", "hello", 2));
    ASSERT_TRUE(Eventually([&] { return last.sink->accepted().prefill_tokens > 0; }));
    EXPECT_EQ(token.prompt_steps, can_wait ? 0 : 1);
    token.go = true;
    for (const auto& sink : {prompt.sink, last.sink, token.talker}) EXPECT_TRUE(sink->Wait().ok());
  }
}

TEST(SchedulerTest, LaterDeadlinesWaitForTheStepUnderWay) {
  LongSteps steps;
  const int64_t now = steps.clock.SteadyNanos();
  const auto longer = steps.BeginLong(now + 20 * kNanosPerSecond);
  const auto later = steps.Submit(now + 30 * kNanosPerSecond);
  const auto none = steps.Submit(0);
  // Prepared after both, so that they could have gone by now.
  steps.Submit(now + 10 * kNanosPerSecond).sink->WaitForTokens(1);
  EXPECT_EQ(later.sink->tokens(), 0);
  EXPECT_EQ(none.sink->tokens(), 0);
  steps.released = true;
  for (const auto& call : {longer, later, none}) EXPECT_TRUE(call.sink->Wait().ok());
}

TEST(SchedulerTest, ALongStepIsGivenUpWhenItsCallIsCancelledOrItsLeaseBreaks) {
  LongSteps steps;
  const auto cancelled = steps.BeginLong();
  steps.rig.scheduler.Cancel(cancelled.ticket);
  EXPECT_EQ(cancelled.sink->Wait().status().code(), absl::StatusCode::kCancelled);
  steps.begun = false;
  const auto broken = steps.BeginLong();
  steps.rig.scheduler.FailLeases(absl::UnavailableError("store gone"));
  EXPECT_EQ(broken.sink->Wait().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(steps.released);
}

TEST(SchedulerTest, CancelCostsNeighboursNothing) {
  LongSteps steps;
  const auto longer = steps.BeginLong();
  const auto first = steps.Prefill("a", 100);
  const auto second = steps.Prefill("b", 100);
  const auto gate = std::make_shared<Gate>();
  steps.on_step = [gate, &steps, gated = false]() mutable {
    if (steps.stepped.contexts >= 2 && !std::exchange(gated, true)) gate->Pass();
  };
  steps.released = true;
  ASSERT_TRUE(Acquire(gate->reached));
  steps.rig.scheduler.Cancel(first.ticket);
  gate->go.release();
  const auto outcome = second.sink->Wait();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->tokens.size(), 100u);
  const auto cut = first.sink->Wait();
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->reason, FinishReason::kCancelled);
  EXPECT_TRUE(longer.sink->Wait().ok());
  EXPECT_EQ(outcome->text, steps.rig.Submit(Rig::Ask("", "hello", 100)).sink->Wait()->text);
}

TEST(SchedulerTest, LongPrefillLetsOthersStream) {
  SteppedModel stepped(kFakeVocab);
  auto talker = std::make_shared<RecordingSink>();
  auto longer = std::make_shared<RecordingSink>();
  std::atomic<bool> go = false;
  std::vector<int>
      streamed;  // the talker's tokens at each step that it shares with the long prefill
  stepped.on_step = [&] {
    absl::MutexLock lock(&stepped.mutex);
    if (stepped.contexts == 2 && stepped.rows > 2) streamed.push_back(talker->tokens());
  };
  // The talker streams when the long prompt comes.
  stepped.model.may_finish = [&](const engine::Batch&) {
    return talker->tokens() < 3 || go.load();
  };
  // A row is thought to take 5 ms: pieces of 8 rows beside an answer.
  CrawlingClock clock;
  Rig rig(stepped.model, {}, 256, 256, {.prefill_us_per_token = 5000}, clock);
  ASSERT_TRUE(rig.scheduler.Submit(Rig::Ask("a", "t", 150), talker).ok());
  talker->WaitForTokens(3);
  ASSERT_TRUE(rig.scheduler.Submit(Rig::Ask("b", std::string(200, 'x'), 2), longer).ok());
  ASSERT_TRUE(AwaitClaims(rig, 200 / 16));
  go = true;
  ASSERT_TRUE(longer->Wait().ok());
  ASSERT_TRUE(talker->Wait().ok());
  absl::MutexLock lock(&stepped.mutex);
  ASSERT_GE(streamed.size(), 4u) << "the prefill was cut";
  for (size_t i = 1; i < streamed.size(); ++i) {
    EXPECT_GT(streamed[i], streamed[i - 1]) << "piece " << i;
  }
}

TEST(SchedulerTest, QueueIsBounded) {
  SteppedModel stepped(kFakeVocab);
  std::counting_semaphore<> go(0);
  stepped.on_step = [&] { EXPECT_TRUE(Acquire(go)); };
  Rig rig(stepped.model, {.max_batch = 1, .queue_limit = 2});
  std::vector<Rig::Running> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(rig.Submit(Rig::Ask("", "hello", 2)));
  const auto refused =
      rig.scheduler.Submit(Rig::Ask("", "hello", 2), std::make_shared<RecordingSink>());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("2 wait"));
  go.release(100);
  for (const auto& call : calls) EXPECT_TRUE(call.sink->Wait().ok());
  EXPECT_EQ(calls[2].sink->accepted().queue_position, 2);
}

TEST(SchedulerTest, FullArenaEndsAnAnswerAndRefusesAPrompt) {
  SteppedModel stepped(kFakeVocab);
  // Room for six chunks of two layers.
  Rig rig(stepped.model, {}, /*chunks=*/6);
  const auto answer = rig.Submit(Rig::Ask("c", "hello", 200)).sink->Wait();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->reason, FinishReason::kKvFull);
  EXPECT_GT(answer->text.size(), 10u);
  const auto refused = rig.Submit(Rig::Ask("d", std::string(100, 'x'), 5)).sink->Wait();
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("store.arena_bytes"));
}

TEST(SchedulerTest, SlowReaderPausesOnlyItself) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model);
  auto slow = std::make_shared<RecordingSink>();
  slow->set_has_room(false);
  ASSERT_TRUE(rig.scheduler.Submit(Rig::Ask("a", "hello", 50), slow).ok());
  EXPECT_TRUE(rig.Submit(Rig::Ask("b", "hello", 50)).sink->Wait().ok());
  EXPECT_EQ(slow->tokens(), 0);
  slow->set_has_room(true);
  EXPECT_TRUE(slow->Wait().ok());
}

TEST(SchedulerTest, LostStoreFailsCallsWithLeasesAndTheWorkerGoesOn) {
  SteppedModel stepped(kFakeVocab);
  std::binary_semaphore reached(0);
  auto sink = std::make_shared<RecordingSink>();
  stepped.on_step = [&] {
    if (stepped.Steps() != 3) return;
    sink->set_has_room(false);  // the call stays where it is
    reached.release();
  };
  Rig rig(stepped.model);
  ASSERT_TRUE(rig.scheduler.Submit(Rig::Ask("c", "hello", 100), sink).ok());
  ASSERT_TRUE(Acquire(reached));
  rig.scheduler.FailLeases(absl::UnavailableError("store gone"));
  EXPECT_EQ(sink->Wait().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stepped.Steps(), 3);
  EXPECT_TRUE(rig.Submit(Rig::Ask("c", "hello again", 5)).sink->Wait().ok());
}

TEST(SchedulerTest, StoreThatIsAwayIsUnavailable) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model);
  rig.store.With([](FakeStore::State& s) { s.open_error = absl::UnavailableError("away"); });
  EXPECT_EQ(rig.Submit(Rig::Ask("c", "hi")).sink->Wait().status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(SchedulerTest, DrainLetsCallsFinishAndRefusesNewOnes) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model);
  const auto call = rig.Submit(Rig::Ask("c", "hello", 30));
  rig.scheduler.Drain(absl::Seconds(60));
  ASSERT_TRUE(call.sink->over());
  EXPECT_EQ(call.sink->Wait()->reason, FinishReason::kMaxTokens);
  EXPECT_EQ(
      rig.scheduler.Submit(Rig::Ask("c", "x"), std::make_shared<RecordingSink>()).status().code(),
      absl::StatusCode::kUnavailable);
}

TEST(SchedulerTest, DrainStopsTheStepUnderWay) {
  LongSteps steps;
  const auto call = steps.BeginLong();
  steps.rig.scheduler.Drain(absl::ZeroDuration());
  ASSERT_TRUE(call.sink->over());
  EXPECT_EQ(call.sink->Wait().status().code(), absl::StatusCode::kUnavailable);
}

// Runs a call until its commit is with a store that holds it.
Rig::Running RunToHeldCommit(Rig& rig, CallRequest request) {
  rig.store.With([](FakeStore::State& state) { state.hold_commits = true; });
  Rig::Running call = rig.Submit(std::move(request));
  EXPECT_TRUE(Eventually(
      [&] { return rig.store.With([](FakeStore::State& state) { return !state.held.empty(); }); }));
  return call;
}

TEST(SchedulerTest, DrainDoesNotWaitForAStoreThatHangs) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model, {.commit_grace = absl::ZeroDuration()});
  const auto call = RunToHeldCommit(rig, Rig::Ask("c", "hello", 3));
  rig.scheduler.Drain(absl::ZeroDuration());
  ASSERT_TRUE(call.sink->over());
  EXPECT_EQ(call.sink->Wait().status().code(), absl::StatusCode::kUnavailable);
}

TEST(SchedulerTest, ARetryBesideItsOwnCallIsRefused) {
  SteppedModel stepped(kFakeVocab);
  Rig rig(stepped.model);
  CallRequest request = Rig::Ask("c", "hello", 3);
  request.request_id = "r";
  const auto retry = [&] {
    return rig.scheduler.Submit(request, std::make_shared<RecordingSink>()).status().code();
  };
  const auto call = RunToHeldCommit(rig, request);
  EXPECT_EQ(retry(), absl::StatusCode::kAborted) << "its answer is being committed";
  CallRequest other = Rig::Ask("", "hello", 3);
  other.app_id = "another";
  other.request_id = "r";
  const auto others = rig.Submit(other);
  rig.store.LetCommit();
  EXPECT_TRUE(call.sink->Wait().ok());
  EXPECT_TRUE(others.sink->Wait().ok());
  EXPECT_EQ(retry(), absl::StatusCode::kAborted) << "it looked for the answer before it was stored";
}

TEST(SchedulerTest, ACallThatLeftNoAnswerMayBeTriedAgainAtOnce) {
  LongSteps steps;
  CallRequest request = Rig::Ask("", std::string(190, 'x'), 4);
  request.request_id = "r";
  const auto call = steps.rig.Submit(request);
  steps.rig.scheduler.Cancel(call.ticket);
  EXPECT_EQ(call.sink->Wait().status().code(), absl::StatusCode::kCancelled);
  steps.released = true;
  EXPECT_TRUE(steps.rig.Submit(request).sink->Wait().ok());
}

TEST(SchedulerTest, AModelWithoutCallsRestsOnceAndAgainAfterTheNext) {
  engine::FakeModel model(kFakeVocab);
  SchedulerOptions options;
  options.rest_after = absl::Milliseconds(1);
  Rig rig(model, options);
  for (int i = 1; i <= 2; ++i) {
    ASSERT_TRUE(Eventually([&] { return model.rests == i; })) << i;
    EXPECT_TRUE(rig.Submit(Rig::Ask("", "hello", 4)).sink->Wait().ok());
  }
  ASSERT_TRUE(Eventually([&] { return model.rests == 3; }));
  uint64_t seen = 0;
  EXPECT_TRUE(rig.scheduler.AwaitQuiet(absl::Milliseconds(20), &seen));
  EXPECT_EQ(model.rests, 3) << "it rests already";
}

// The tiny real model: what a call answers does not depend on who answers beside it.
TEST(SchedulerTest, SameTextAloneAndBesideAnyNeighbours) {
  const engine::TestFolder folder;
  engine::SynthShape shape = engine::TinyShape();
  const std::unique_ptr<engine::Model> model =
      engine::OpenTiny(folder, engine::WriteTiny(folder, shape, engine::GgmlType::kQ8_0));
  const auto ask = [](int i) {
    CallRequest request = Rig::Ask("", std::string(5 + static_cast<size_t>(i) * 37, 'q'), 24);
    request.answer.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    request.answer.sampling.seed = static_cast<uint64_t>(i);
    return request;
  };
  std::vector<std::vector<int32_t>> alone;
  {
    Rig rig(*model, {}, 4096);
    for (int i = 0; i < 4; ++i) {
      const auto outcome = rig.Submit(ask(i)).sink->Wait();
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      alone.emplace_back();
      for (const engine::Sample& token : outcome->tokens) alone.back().push_back(token.id);
    }
  }
  for (const double us_per_row : {1.0, 5000.0}) {
    Rig rig(*model, {}, 4096, 256, {.prefill_us_per_token = us_per_row});
    std::vector<Rig::Running> calls;
    for (int i = 3; i >= 0; --i) calls.push_back(rig.Submit(ask(i)));
    for (int i = 0; i < 4; ++i) {
      const auto outcome = calls[static_cast<size_t>(3 - i)].sink->Wait();
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      std::vector<int32_t> ids;
      for (const engine::Sample& token : outcome->tokens) ids.push_back(token.id);
      EXPECT_EQ(ids, alone[static_cast<size_t>(i)]) << "call " << i;
    }
  }
}

}  // namespace
}  // namespace withy::serving
