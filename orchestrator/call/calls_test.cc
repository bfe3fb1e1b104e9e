#include "orchestrator/call/calls.h"

#include <memory>
#include <thread>
#include <vector>

#include "base/executor.h"
#include "gtest/gtest.h"
#include "orchestrator/auth_cache.h"

namespace withy::orchestrator {
namespace {

using policy::CallDemand;
using policy::Lane;

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

// Whether a call that waits is let go within `patience`.
bool Granted(CallTable& table, uint32_t running, absl::Duration patience) {
  const absl::Time end = absl::Now() + patience;
  while (table.counts().running < running && absl::Now() < end) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  return table.counts().running >= running;
}

// Nothing tells the waiting call that the running one can bear it by now: it looks by itself.
TEST_F(CallTableTest, AHeldCallStartsOnceSlackAllowsIt) {
  CallTable table({.limit = 8, .slots = {4, 4}, .piece_ms = 50}, clock_);
  for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(table.Arrive(id).ok());
  demand_.token_ms = 10;
  demand_.targets.end_to_end_ms = 3'000'000;
  demand_.prefill_ms = 1e9;
  ASSERT_TRUE(Wait(table, 1, forever_).ok());
  table.FirstToken(1);
  demand_.row_ms = 1e9;
  CallControl control(absl::InfiniteFuture());
  std::thread held([&] { EXPECT_TRUE(Wait(table, 2, control).ok()); });
  EXPECT_FALSE(Granted(table, 2, absl::Milliseconds(200)));
  clock_.Advance(policy::kPatienceNs + 2);
  EXPECT_TRUE(Granted(table, 2, absl::Seconds(60)));
  held.join();
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
