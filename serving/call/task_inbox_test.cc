#include "serving/call/task_inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "serving/call/testing.h"

namespace withy::serving {
namespace {

TEST(TaskInboxTest, RunsTasksInTheirOrderUntilItIsStopped) {
  TaskInbox inbox(Clock::Real());
  std::vector<int> ran;
  inbox.Post([&] {
    ran.push_back(1);
    inbox.Post([&] { ran.push_back(3); });
  });
  inbox.Post([&] { ran.push_back(2); });
  EXPECT_TRUE(inbox.Run(absl::InfiniteDuration()));
  EXPECT_THAT(ran, testing::ElementsAre(1, 2));
  inbox.Stop();
  EXPECT_TRUE(inbox.Run(absl::InfiniteDuration())) << "what was posted before still runs";
  EXPECT_THAT(ran, testing::ElementsAre(1, 2, 3));
  EXPECT_FALSE(inbox.Run(absl::InfiniteDuration()));
}

TEST(TaskInboxTest, WaitsAsLongAsItIsToldTo) {
  TaskInbox inbox(Clock::Real());
  EXPECT_TRUE(inbox.Run(absl::ZeroDuration()));
  EXPECT_TRUE(inbox.Run(absl::Milliseconds(1)));
  bool ran = false;
  std::thread other([&] { inbox.Post([&] { ran = true; }); });
  EXPECT_TRUE(inbox.Run(absl::InfiniteDuration()));
  EXPECT_TRUE(ran);
  other.join();
}

TEST(TaskInboxTest, ATaskInterruptsAStep) {
  TaskInbox inbox(Clock::Real());
  inbox.Post([] {});
  EXPECT_TRUE(*inbox.interrupt());
  EXPECT_TRUE(inbox.ResetInterrupt()) << "the task is there before the step begins";
  EXPECT_FALSE(*inbox.interrupt());
  EXPECT_TRUE(inbox.Run(absl::ZeroDuration()));
  EXPECT_FALSE(inbox.ResetInterrupt());
  inbox.Post([] {}, /*interrupts=*/false);
  EXPECT_FALSE(*inbox.interrupt());
}

TEST(TaskInboxTest, SaysHowLongItHasBeenBusy) {
  FakeClock clock;
  TaskInbox inbox(clock);
  EXPECT_EQ(inbox.BusyNanos(), 0);
  EXPECT_TRUE(inbox.Run(absl::ZeroDuration()));
  clock.Advance(5);
  EXPECT_EQ(inbox.BusyNanos(), 5) << "at a step";
  EXPECT_TRUE(inbox.Run(absl::ZeroDuration()));
  EXPECT_EQ(inbox.BusyNanos(), 0) << "a new round";
  clock.Advance(7);
  inbox.Stop();
  EXPECT_FALSE(inbox.Run(absl::ZeroDuration()));
  EXPECT_EQ(inbox.BusyNanos(), 0);
}

}  // namespace
}  // namespace withy::serving
