#include "base/compute_baton.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "absl/time/clock.h"

namespace withy {
namespace {

using Turn = ComputeBaton::Turn;

class ComputeBatonTest : public testing::Test {
 protected:
  ComputeBaton Open() const {
    auto baton = ComputeBaton::Open(path_);
    EXPECT_TRUE(baton.ok()) << baton.status();
    return *std::move(baton);
  }
  const std::string path_ = testing::TempDir() + "/baton_" + std::to_string(getpid());
  ~ComputeBatonTest() override { unlink(path_.c_str()); }
};

TEST_F(ComputeBatonTest, IsBorrowedOnlyWhileItIsLent) {
  ComputeBaton owner = Open(), borrower = Open();
  const uint32_t round = owner.BeginRound();
  EXPECT_EQ(borrower.Borrow(round, absl::ZeroDuration()), Turn::kLater);
  owner.Lend();
  EXPECT_EQ(borrower.Borrow(round, absl::ZeroDuration()), Turn::kMine);
  EXPECT_FALSE(borrower.wanted());
  borrower.Return();
  owner.TakeBack();
  EXPECT_EQ(borrower.Borrow(round, absl::Milliseconds(1)), Turn::kLater);
  owner.Lend();
  owner.BeginRound();
  EXPECT_EQ(borrower.Borrow(round, absl::InfiniteDuration()), Turn::kOver);
}

// The pauses let the other thread fall asleep, so that it must be woken; nothing depends on whether
// it does.
TEST_F(ComputeBatonTest, WhoWaitsIsToldAtOnce) {
  ComputeBaton owner = Open(), borrower = Open();
  const uint32_t round = owner.BeginRound();
  std::thread other([&] {
    EXPECT_EQ(borrower.Borrow(round, absl::InfiniteDuration()), Turn::kMine);
    borrower.Return();
    EXPECT_EQ(borrower.Borrow(round + 1, absl::InfiniteDuration()), Turn::kOver) << "not begun";
    Turn turn = Turn::kMine;
    while (turn == Turn::kMine) {
      turn = borrower.Borrow(round, absl::InfiniteDuration());
      if (turn == Turn::kMine) borrower.Return();
    }
    EXPECT_EQ(turn, Turn::kOver) << "the owner ended the round";
  });
  absl::SleepFor(absl::Milliseconds(5));
  owner.Lend();
  absl::SleepFor(absl::Milliseconds(5));
  owner.TakeBack();
  absl::SleepFor(absl::Milliseconds(5));
  owner.BeginRound();
  other.join();
}

TEST_F(ComputeBatonTest, TheTwoNeverComputeBesideEachOther) {
  ComputeBaton owner = Open(), borrower = Open();
  const uint32_t round = owner.BeginRound();
  std::atomic<int> computing{0};
  std::atomic<int> turns{0};
  std::thread other([&] {
    for (Turn turn = Turn::kLater; turn != Turn::kOver;) {
      turn = borrower.Borrow(round, absl::InfiniteDuration());
      if (turn != Turn::kMine) continue;
      EXPECT_EQ(++computing, 1);
      for (int i = 0; i < 1000 && !borrower.wanted(); ++i) std::this_thread::yield();
      ++turns;
      EXPECT_EQ(--computing, 0);
      borrower.Return();
    }
  });
  for (int i = 0; i < 2000 || turns < 100; ++i) {
    owner.Lend();
    if (i % 2 == 0) std::this_thread::yield();
    if (i % 7 == 0) absl::SleepFor(absl::Microseconds(20));
    owner.TakeBack();
    EXPECT_EQ(++computing, 1);
    for (int work = 0; work < 20; ++work) std::this_thread::yield();
    EXPECT_EQ(--computing, 0);
  }
  owner.BeginRound();
  other.join();
}

// A borrower that is killed while it computes keeps the owner waiting once, and the next one works.
TEST_F(ComputeBatonTest, ABorrowerMayBeKilled) {
  ComputeBaton owner = Open();
  const uint32_t round = owner.BeginRound();
  owner.Lend();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto baton = ComputeBaton::Open(path_);
    const bool mine = baton.ok() && baton->Borrow(round, absl::Seconds(10)) == Turn::kMine;
    if (!mine || write(ready[1], "b", 1) != 1) _exit(1);
    while (true) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const absl::Time began = absl::Now();
  owner.TakeBack();
  EXPECT_GE(absl::Now() - began, ComputeBaton::kPatience * 0.9);
  ComputeBaton next = Open();
  EXPECT_EQ(next.Borrow(round, absl::ZeroDuration()), Turn::kLater);
  owner.Lend();
  EXPECT_EQ(next.Borrow(round, absl::ZeroDuration()), Turn::kMine);
  next.Return();
  owner.TakeBack();
  close(ready[0]);
  close(ready[1]);
}

// An owner that is killed while it lends: the one after it takes the baton back first.
TEST_F(ComputeBatonTest, AnOwnerMayBeKilled) {
  uint32_t round = 0;
  {
    ComputeBaton killed = Open();
    round = killed.BeginRound();
    killed.Lend();
  }
  ComputeBaton owner = Open(), borrower = Open();
  owner.TakeBack();
  EXPECT_EQ(borrower.Borrow(round, absl::ZeroDuration()), Turn::kLater);
  EXPECT_NE(owner.BeginRound(), round);
}

TEST_F(ComputeBatonTest, AnotherFileIsNotTaken) {
  std::ofstream(path_) << "this is a user's file";
  const auto baton = ComputeBaton::Open(path_);
  ASSERT_FALSE(baton.ok());
  EXPECT_NE(baton.status().message().find(path_), std::string::npos) << baton.status();
  EXPECT_NE(baton.status().message().find("remove it"), std::string::npos) << baton.status();
  EXPECT_FALSE(ComputeBaton::Open("/nowhere/at/all").ok());
}

}  // namespace
}  // namespace withy
