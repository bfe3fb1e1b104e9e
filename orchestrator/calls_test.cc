#include "orchestrator/calls.h"

#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "orchestrator/auth_cache.h"
#include "orchestrator/executor.h"

namespace withy::orchestrator {
namespace {

constexpr int64_t kSecond = kNanosPerSecond;

TEST(QueueOrderTest, DeadlineThenPriorityThenArrival) {
  const QueueKey urgent{.deadline_ns = 5 * kSecond, .arrived_ns = 2, .id = 1};
  const QueueKey later{.deadline_ns = 9 * kSecond, .priority = 10, .arrived_ns = 1, .id = 2};
  const QueueKey important{.priority = 3, .arrived_ns = 3, .id = 3};
  const QueueKey first{.arrived_ns = 1, .id = 4};
  const QueueKey second{.arrived_ns = 2, .id = 5};
  EXPECT_TRUE(GoesBefore(urgent, later, 0));
  EXPECT_TRUE(GoesBefore(later, important, 0));
  EXPECT_TRUE(GoesBefore(important, first, 0));
  EXPECT_TRUE(GoesBefore(first, second, 0));
  QueueKey equal = urgent;
  equal.priority = 1;
  EXPECT_TRUE(GoesBefore(equal, urgent, 0));
  // Nobody waits for ever behind calls with deadlines.
  EXPECT_TRUE(GoesBefore(first, urgent, 31 * kSecond));
}

TEST(QueueOrderTest, IsAStrictWeakOrder) {
  const unsigned seed = 5;
  std::mt19937 random(seed);
  const auto key = [&] {
    return QueueKey{static_cast<int64_t>(random() % 3) * kSecond,
                    static_cast<int32_t>(random() % 3),
                    static_cast<int64_t>(random() % 60) * kSecond, random() % 4};
  };
  for (int i = 0; i < 20000; ++i) {
    const QueueKey a = key(), b = key(), c = key();
    const int64_t now = 60 * kSecond;
    ASSERT_FALSE(GoesBefore(a, b, now) && GoesBefore(b, a, now)) << "seed " << seed;
    if (GoesBefore(a, b, now) && GoesBefore(b, c, now)) {
      ASSERT_TRUE(GoesBefore(a, c, now)) << "seed " << seed;
    }
  }
}

class CallTableTest : public ::testing::Test {
 protected:
  absl::Status Wait(CallTable& table, uint64_t id, CallControl& control, int priority = 0) {
    return table.WaitForSlot(
        Lane::kTarget, {.priority = priority, .arrived_ns = static_cast<int64_t>(id), .id = id},
        {10, 20}, demand_, control);
  }
  CallDemand demand_;
  FakeClock clock_;
  CallControl forever_{absl::InfiniteFuture()};
};

TEST_F(CallTableTest, BoundsAndDrains) {
  CallTable table({.limit = 2, .slots = {1, 1}}, clock_);
  EXPECT_TRUE(table.Arrive(1).ok());
  EXPECT_TRUE(table.Arrive(2).ok());
  EXPECT_EQ(table.Arrive(3).code(), absl::StatusCode::kResourceExhausted);
  table.Leave(1);
  EXPECT_TRUE(table.Arrive(3).ok());
  table.Leave(3);
  table.StopAdmitting();
  EXPECT_EQ(table.Arrive(4).code(), absl::StatusCode::kUnavailable);
}

TEST_F(CallTableTest, GrantsInOrderAsSlotsComeFree) {
  CallTable table({.limit = 8, .slots = {1, 1}}, clock_);
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(table.Arrive(id).ok());
  ASSERT_TRUE(Wait(table, 1, forever_).ok());
  std::vector<uint64_t> order;
  absl::Mutex mutex;
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<CallControl>> controls;
  for (uint64_t id = 2; id <= 4; ++id) {
    CallControl& control =
        *controls.emplace_back(std::make_unique<CallControl>(absl::InfiniteFuture()));
    threads.emplace_back([&, id] {
      EXPECT_TRUE(Wait(table, id, control, static_cast<int>(id)).ok());
      absl::MutexLock lock(&mutex);
      order.push_back(id);
      table.Leave(id);
    });
  }
  // All three wait before the slot comes free.
  while (
      table.LoadBefore(Lane::kTarget, {.priority = -5, .arrived_ns = 99, .id = 99}).ahead.size() <
      3)
    std::this_thread::yield();
  table.Leave(1);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order, (std::vector<uint64_t>{4, 3, 2}));
}

TEST_F(CallTableTest, WhoDoesNotBlockIsStartedByTheSameRules) {
  CallTable table({.limit = 8, .slots = {1, 1}}, clock_);
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(table.Arrive(id).ok());
    EXPECT_FALSE(table.Started(Lane::kTarget, id)) << "not queued yet";
  }
  table.Queue(Lane::kTarget, {.arrived_ns = 1, .id = 1}, {10, 20}, demand_);
  EXPECT_TRUE(table.Started(Lane::kTarget, 1));
  table.Queue(Lane::kTarget, {.arrived_ns = 2, .id = 2}, {10, 20}, demand_);
  table.Queue(Lane::kTarget, {.priority = 1, .arrived_ns = 3, .id = 3}, {10, 20}, demand_);
  EXPECT_FALSE(table.Started(Lane::kTarget, 2));
  EXPECT_FALSE(table.Started(Lane::kTarget, 3));
  table.Leave(1);
  EXPECT_FALSE(table.Started(Lane::kTarget, 2)) << "the third has the higher priority";
  EXPECT_TRUE(table.Started(Lane::kTarget, 3));
  table.Leave(3);
  EXPECT_TRUE(table.Started(Lane::kTarget, 2));
  EXPECT_FALSE(table.Started(Lane::kTarget, 9)) << "never arrived";
}

TEST_F(CallTableTest, CancelAndDeadlineEndTheWait) {
  CallTable table({.limit = 8, .slots = {1, 1}}, clock_);
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(table.Arrive(id).ok());
  ASSERT_TRUE(Wait(table, 1, forever_).ok());
  CallControl soon(absl::Now() + absl::Milliseconds(1));
  EXPECT_EQ(Wait(table, 2, soon).code(), absl::StatusCode::kDeadlineExceeded);
  table.Leave(2);
  CallControl cancelled(absl::InfiniteFuture());
  std::thread canceller([&] { cancelled.Cancel(); });
  EXPECT_EQ(Wait(table, 3, cancelled).code(), absl::StatusCode::kCancelled);
  canceller.join();
  table.Leave(3);
  EXPECT_EQ(table.counts().running, 1u);
  EXPECT_EQ(table.counts().waiting, 0u);
}

// Whether a call that waits has been let go, once it has had the time for it.
bool Granted(CallTable& table, uint32_t running) {
  for (int i = 0; i < 20 && table.counts().running < running; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  return table.counts().running >= running;
}

TEST_F(CallTableTest, APrefillWaitsForTheSlackOfWhatRuns) {
  CallTable table({.limit = 8, .slots = {4, 4}, .piece_ms = 50}, clock_);
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(table.Arrive(id).ok());
  // 10 ms a token and 12 promised: 8 ms of slack at its first token.
  demand_.token_ms = 10;
  demand_.tpot_limit_ms = 12;
  ASSERT_TRUE(Wait(table, 1, forever_).ok());
  table.FirstToken(1);
  table.Generated(1, 1);
  demand_ = CallDemand();
  demand_.prefill_ms = 200;
  CallControl control(absl::InfiniteFuture());
  std::thread longer([&] { EXPECT_TRUE(Wait(table, 2, control).ok()); });
  EXPECT_FALSE(Granted(table, 2));
  // A short one passes.
  demand_.prefill_ms = 6;
  ASSERT_TRUE(Wait(table, 3, forever_).ok());
  table.Leave(3);
  const Load load = table.LoadBefore(Lane::kTarget, {.arrived_ns = 99, .id = 9});
  ASSERT_EQ(load.running.size(), 1u);
  EXPECT_DOUBLE_EQ(load.running[0].slack.ms, 8);
  // Its tokens come faster than promised, until it can bear the long one.
  table.Generated(1, 10);
  clock_.Advance(100 * kNanosPerMilli);
  EXPECT_FALSE(Granted(table, 2));
  table.Generated(1, 7);
  EXPECT_TRUE(Granted(table, 2)) << "two tokens are left, and 108 ms";
  longer.join();
}

TEST_F(CallTableTest, NobodyIsHeldForEver) {
  CallTable table({.limit = 8, .slots = {4, 4}, .piece_ms = 50}, clock_);
  for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(table.Arrive(id).ok());
  demand_.token_ms = 10;
  demand_.end_by_ns = 3000 * kSecond;
  demand_.prefill_ms = 1e9;
  ASSERT_TRUE(Wait(table, 1, forever_).ok());
  table.FirstToken(1);
  demand_.prefill_ms = 1e9;
  demand_.row_ms = 1e9;
  CallControl control(absl::InfiniteFuture());
  std::thread held([&] { EXPECT_TRUE(Wait(table, 2, control).ok()); });
  EXPECT_FALSE(Granted(table, 2));
  clock_.Advance(kPatienceNs + 2);
  EXPECT_TRUE(Granted(table, 2));
  held.join();
}

TEST_F(CallTableTest, TellsTheLoadAndWhatRanBeside) {
  CallTable table({.limit = 8, .slots = {4, 4}}, clock_);
  for (uint64_t id = 1; id <= 2; ++id) {
    ASSERT_TRUE(table.Arrive(id).ok());
    ASSERT_TRUE(Wait(table, id, forever_).ok());
  }
  Load load = table.LoadBefore(Lane::kTarget, {.id = 9});
  ASSERT_EQ(load.running.size(), 2u);
  EXPECT_EQ(load.running[0].prefill_tokens, 10u);
  EXPECT_TRUE(table.LoadBefore(Lane::kDraft, {.id = 9}).running.empty());

  table.FirstToken(1);
  clock_.Advance(kSecond);
  table.FirstToken(2);  // its 10 prompt tokens ran beside call 1
  clock_.Advance(kSecond);
  table.Generated(1, 15);
  EXPECT_EQ(table.LoadBefore(Lane::kTarget, {.id = 9}).running[0].remaining_tokens, 5u);
  EXPECT_DOUBLE_EQ(table.Surroundings(1).mean_rows, 1.5);
  EXPECT_DOUBLE_EQ(table.Surroundings(1).foreign_prefill_tokens, 10);
  EXPECT_DOUBLE_EQ(table.Surroundings(2).mean_rows, 2);
  EXPECT_DOUBLE_EQ(table.Surroundings(2).foreign_prefill_tokens, 0);
  EXPECT_FALSE(table.Surroundings(1).alone);
  EXPECT_FALSE(table.Surroundings(2).alone);
  table.Leave(1);
  clock_.Advance(kSecond);
  EXPECT_DOUBLE_EQ(table.Surroundings(2).mean_rows, 1.5);
}

TEST_F(CallTableTest, AnAnswerOfUnknownLengthIsNeverTakenToHaveEnded) {
  CallTable table({.limit = 8, .slots = {4, 4}}, clock_);
  for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(table.Arrive(id).ok());
  table.Queue(Lane::kTarget, {.id = 1}, {.remaining_tokens = 20, .open_ended = true}, {});
  table.Queue(Lane::kTarget, {.id = 2}, {.remaining_tokens = 20}, {});
  for (uint64_t id = 1; id <= 2; ++id) {
    ASSERT_TRUE(table.Started(Lane::kTarget, id));
    table.FirstToken(id);
    table.Generated(id, 5);
  }
  const auto left = [&](size_t i) {
    return table.LoadBefore(Lane::kTarget, {.id = 9}).running[i].remaining_tokens;
  };
  EXPECT_EQ(left(0), 15u);
  for (uint64_t id = 1; id <= 2; ++id) table.Generated(id, 100);
  EXPECT_EQ(left(0), kSlackTokens);
  EXPECT_EQ(left(1), 0u);
}

TEST_F(CallTableTest, TellsHowDeepTheContextsBesideAreAndWere) {
  CallTable table({.limit = 8, .slots = {4, 4}}, clock_);
  for (uint64_t id = 1; id <= 2; ++id) {
    ASSERT_TRUE(table.Arrive(id).ok());
    table.Queue(
        Lane::kTarget, {.id = id},
        {.prefill_tokens = 100, .remaining_tokens = 50, .resident_tokens = id == 2 ? 1000u : 0u},
        {});
    ASSERT_TRUE(table.Started(Lane::kTarget, id));
  }
  EXPECT_EQ(table.LoadBefore(Lane::kTarget, {.id = 9}).running[1].resident_tokens, 1000u);
  table.FirstToken(1);
  table.FirstToken(2);
  EXPECT_EQ(table.LoadBefore(Lane::kTarget, {.id = 9}).running[1].resident_tokens, 1100u);
  // 1,000 tokens of context before the prompt, and half of itself before each of its tokens.
  EXPECT_DOUBLE_EQ(table.Surroundings(1).foreign_prefill_context, 100 * 1050);
  clock_.Advance(kSecond);
  table.Generated(1, 10);
  table.Generated(2, 10);
  clock_.Advance(kSecond);
  table.Generated(1, 10);
  table.Generated(2, 10);
  EXPECT_EQ(table.LoadBefore(Lane::kTarget, {.id = 9}).running[1].resident_tokens, 1120u);
  EXPECT_NEAR(table.Surroundings(1).other_depth_tokens, 1105, 10);
  EXPECT_NEAR(table.Surroundings(2).other_depth_tokens, 105, 10);
  table.Leave(1);
  clock_.Advance(2 * kSecond);
  EXPECT_NEAR(table.Surroundings(2).other_depth_tokens, 105 / 2.0, 15);
  table.Leave(2);
  EXPECT_TRUE(table.LoadBefore(Lane::kTarget, {.id = 9}).running.empty());
}

TEST_F(CallTableTest, TellsHowFastCallsCome) {
  CallTable table({.limit = 4}, clock_);
  EXPECT_EQ(table.LoadBefore(Lane::kTarget, {.id = 1000}).arrivals_per_ms, 0);
  uint64_t id = 0;
  for (int second = 0; second < 60; ++second) {  // five a second
    for (int i = 0; i < 5; ++i) {
      clock_.Advance(kSecond / 5);
      ASSERT_TRUE(table.Arrive(++id).ok());
      table.Leave(id);
    }
  }
  EXPECT_NEAR(table.LoadBefore(Lane::kTarget, {.id = 1000}).arrivals_per_ms, 0.0049, 0.0003);
  clock_.Advance(60 * kSecond);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(table.Arrive(++id).ok());
  EXPECT_LT(table.LoadBefore(Lane::kTarget, {.id = id}).arrivals_per_ms, 2e-5)
      << "one call beside this one may be chance";
}

TEST(AuthCacheTest, ExpiresForgetsAndIsBounded) {
  AuthCache cache(10, 2);
  cache.Put("t1", "app1", 0);
  EXPECT_EQ(cache.Find("t1", 9), "app1");
  EXPECT_FALSE(cache.Find("t1", 10).has_value());
  cache.Put("t1", "app1", 0);
  cache.Put("t2", "app2", 1);
  cache.Put("t3", "app3", 2);
  EXPECT_FALSE(cache.Find("t1", 3).has_value());
  EXPECT_EQ(cache.Find("t3", 3), "app3");
  cache.ForgetApp("app3");
  EXPECT_FALSE(cache.Find("t3", 3).has_value());
  EXPECT_EQ(cache.Find("t2", 3), "app2");
}

TEST(ExecutorTest, RunsEverythingItTookAndBoundsTheRest) {
  std::atomic<int> ran = 0;
  absl::Mutex gate;
  gate.Lock();
  {
    Executor executor(2, 4, Clock::Real());
    int taken = 0;
    for (int i = 0; i < 20; ++i) {
      taken += executor.Run([&] {
        absl::MutexLock lock(&gate);
        ++ran;
      });
    }
    EXPECT_GE(taken, 4);
    EXPECT_LE(taken, 6);
    gate.Unlock();
  }
  EXPECT_GE(ran, 4);
}

TEST(CallControlTest, TheHookIsCalledOnce) {
  CallControl control(absl::InfiniteFuture());
  int called = 0;
  control.SetHook([&] { ++called; });
  control.Cancel();
  control.Cancel();
  EXPECT_EQ(called, 1);
  control.SetHook([&] { ++called; });
  EXPECT_EQ(called, 2) << "already cancelled: at once";
  control.SetHook(nullptr);
}

}  // namespace
}  // namespace withy::orchestrator
