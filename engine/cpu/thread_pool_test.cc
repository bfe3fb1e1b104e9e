#include "engine/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <latch>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "engine/cpu/step_trace.h"

namespace withy::engine {
namespace {

TEST(ThreadPoolTest, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int count : {0, 1, 2, 7, 64, 1000}) {
      for (const int grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
        pool.ParallelFor(count, grain, [&](int begin, int end) {
          EXPECT_LE(end - begin, grain);
          for (int i = begin; i < end; ++i) hits[static_cast<size_t>(i)].fetch_add(1);
        });
        for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1);
      }
    }
  }
}

// Pieces are large at first, so that there are few, and small at the end, so that all threads
// finish together.
TEST(ThreadPoolTest, PiecesGetSmallerTowardsTheEndOfARun) {
  constexpr int kCount = 101;
  constexpr int kLeast = 2;
  constexpr int kMost = 16;
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    std::mutex mutex;
    std::map<int, int> pieces;  // end by beginning
    pool.ParallelFor(kCount, {kLeast, kMost}, [&](int begin, int end) {
      const std::lock_guard lock(mutex);
      pieces[begin] = end;
    });
    int covered = 0;
    int largest = 0;
    int smallest = kCount;
    for (const auto& [begin, end] : pieces) {
      ASSERT_EQ(begin, covered);
      EXPECT_EQ(begin % kLeast, 0);
      covered = end;
      largest = std::max(largest, end - begin);
      if (end < kCount) smallest = std::min(smallest, end - begin);
    }
    EXPECT_EQ(covered, kCount);
    EXPECT_LE(largest, kMost);
    if (threads == 1) continue;  // nobody to wait for: pieces are as large as allowed
    EXPECT_GE(largest, 12) << "half of a run, or a quarter";
    EXPECT_EQ(smallest, kLeast);
  }
}

TEST(ThreadPoolTest, MorePiecesThanAStepHoldsGrowLarger) {
  constexpr int kCount = 200'000;
  ThreadPool pool(3);
  std::vector<std::atomic<int>> hits(kCount);
  std::atomic<int> pieces{0};
  pool.ParallelFor(kCount, 1, [&](int begin, int end) {
    pieces.fetch_add(1);
    for (int i = begin; i < end; ++i) hits[static_cast<size_t>(i)].fetch_add(1);
  });
  for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1);
  EXPECT_LT(pieces.load(), 1 << 16);
}

cpu_set_t CoresOfThisThread() {
  cpu_set_t cores;
  EXPECT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  return cores;
}

// Runs in its own thread, because that thread stays bound.
TEST(ThreadPoolTest, PinnedThreadsHaveACoreEach) {
  const cpu_set_t allowed = CoresOfThisThread();
  if (sched_setaffinity(0, sizeof allowed, &allowed) != 0) {
    GTEST_SKIP() << "this system lets no thread be bound to cores";
  }
  std::thread caller([cores = CPU_COUNT(&allowed)] {
    ThreadPool pool(cores);
    EXPECT_TRUE(pool.PinThreads());
    // A piece ends once all have begun, so every thread runs one.
    std::latch begun(cores);
    std::mutex mutex;
    std::set<int> taken;
    pool.ParallelFor(cores, 1, [&](int, int) {
      const cpu_set_t own = CoresOfThisThread();
      EXPECT_EQ(CPU_COUNT(&own), 1);
      {
        const std::lock_guard lock(mutex);
        taken.insert(sched_getcpu());
      }
      begun.arrive_and_wait();
    });
    EXPECT_EQ(taken.size(), static_cast<size_t>(cores)) << "two threads on one core";
  });
  caller.join();
}

TEST(ThreadPoolTest, ThreadsAreNotPinnedWhereThereAreMoreOfThemThanCores) {
  const cpu_set_t before = CoresOfThisThread();
  ThreadPool pool(CPU_COUNT(&before) + 1);
  EXPECT_FALSE(pool.PinThreads());
  const cpu_set_t after = CoresOfThisThread();
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

// Workers that are late for a job must not touch the next one.
TEST(ThreadPoolTest, ManyShortJobsOfDifferentSizes) {
  for (const int spin_us : {0, 50}) {
    ThreadPool pool(4, spin_us);
    std::vector<int> data(64);
    for (int round = 0; round < 20000; ++round) {
      const int count = 1 + round % 64;
      pool.ParallelFor(count, 1 + round % 3, [&](int begin, int end) {
        for (int i = begin; i < end; ++i) data[static_cast<size_t>(i)] = round + i;
      });
      for (int i = 0; i < count; ++i) ASSERT_EQ(data[static_cast<size_t>(i)], round + i);
    }
  }
}

// Every step sees everything that the step before it wrote, on any thread.
TEST(ThreadPoolTest, StepsOfAListFollowEachOther) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads, threads == 4 ? 0 : 20);
    StepList& list = pool.NewList();
    constexpr int kWidth = 24;
    std::vector<int> a(kWidth);
    std::vector<int> b(kWidth);
    for (int round = 0; round < 300; ++round) {
      const int steps = 1 + round % 60;
      std::fill(a.begin(), a.end(), 0);
      for (int step = 0; step < steps; ++step) {
        const std::vector<int>& from = step % 2 == 0 ? a : b;
        std::vector<int>& to = step % 2 == 0 ? b : a;
        list.Add(kWidth, 1 + step % 5, [&from, &to](int begin, int end) {
          for (int i = begin; i < end; ++i) {
            const auto at = static_cast<size_t>(i);
            // Also reads a neighbour's result, which must come from the step before, no other.
            to[at] = from[at] == from[(at + 7) % kWidth] ? from[at] + 1 : -1;
          }
        });
      }
      EXPECT_TRUE(pool.Run(list));
      for (const int value : steps % 2 == 0 ? a : b) ASSERT_EQ(value, steps);
    }
  }
}

// A step that reads much and has FirstRead.
struct ReadingStep {
  const std::byte* data;
  std::atomic<int>* sum;
  std::atomic<uint32_t>* asked;  // bit i: FirstRead(i) was called

  const std::byte* FirstRead(int begin) const {
    asked->fetch_or(1u << begin);
    return data + begin;
  }
  void operator()(int begin, int end) const {
    for (int i = begin; i < end; ++i) sum->fetch_add(static_cast<int>(data[i]));
  }
};

// FirstRead is called only for the items at which threads begin, and only on steps that have it.
// Addresses from an earlier list are forgotten.
TEST(ThreadPoolTest, ToldWhatIsReadFirstOfAStep) {
  const std::vector<std::byte> data(8, std::byte{1});
  std::atomic<uint32_t> asked{0};
  std::atomic<int> sum{0};
  ThreadPool pool(2);
  for (int round = 0; round < 2000; ++round) {
    pool.list().Add(1, 1, [](int, int) {});
    pool.list().Add(8, 2, ReadingStep{data.data(), &sum, &asked});
    pool.list().Add(1, 1, [](int, int) {});
    pool.list().Add(3, 2, ReadingStep{data.data(), &sum, &asked});
    pool.Run(pool.list());
    pool.ParallelFor(2, 1, [](int, int) {});
  }
  EXPECT_EQ(sum.load(), 2000 * (8 + 3));
  EXPECT_EQ(asked.load(), 1u << 0 | 1u << 4 | 1u << 2);
}

TEST(ThreadPoolTest, SaysHowManyStepsAListStillTakes) {
  ThreadPool pool(2);
  StepList& list = pool.NewList();
  int value = 0;
  while (list.room() > 0) list.Add(1, 1, [&value](int, int) { ++value; });
  EXPECT_TRUE(pool.Run(list));
  EXPECT_EQ(value, StepList::kMaxSteps);
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.room(), StepList::kMaxSteps);
}

// The thread that finished the step before runs steps of one piece; they can be stopped like all
// steps.
TEST(ThreadPoolTest, StopsBetweenStepsOfOnePiece) {
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    StepList& list = pool.NewList();
    std::atomic<bool> stop{false};
    std::vector<int> done;
    list.Add(8, 1, [](int, int) {});
    list.Add(1, 1, [&done](int, int) { done.push_back(1); });
    list.Add(1, 1, [&done, &stop](int, int) {
      done.push_back(2);
      stop.store(true);
    });
    list.Add(1, 1, [&done](int, int) { done.push_back(3); });
    EXPECT_FALSE(pool.Run(list, &stop));
    EXPECT_EQ(done, (std::vector{1, 2}));
    stop.store(false);
    EXPECT_TRUE(pool.Run(list, &stop));
    EXPECT_EQ(done, (std::vector{1, 2, 3}));
  }
}

TEST(ThreadPoolTest, FinishesTheStepUnderWayAndGoesOnBehindIt) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    StepList& list = pool.NewList();
    std::atomic<bool> stop{false};
    std::atomic<int> during{0}, after{0};
    list.Add(8, 1, [](int, int) {});
    list.Add(16, 1, [&stop, &during](int, int) {
      stop.store(true);
      during.fetch_add(1);
    });
    list.Add(64, 1, [&after](int, int) { after.fetch_add(1); });
    EXPECT_FALSE(pool.Run(list, &stop));
    EXPECT_EQ(during.load(), 16);
    EXPECT_EQ(after.load(), 0);
    EXPECT_FALSE(pool.Run(list, &stop));
    EXPECT_EQ(after.load(), 0);
    stop.store(false);
    EXPECT_TRUE(pool.Run(list, &stop));
    EXPECT_EQ(during.load(), 16);
    EXPECT_EQ(after.load(), 64);
    EXPECT_TRUE(list.empty());
  }
}

TEST(ThreadPoolTest, RunsUpToAStep) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    StepList& list = pool.NewList();
    std::array<std::atomic<int>, 4> items{};
    for (size_t i = 0; i < items.size(); ++i) {
      list.Add(i == 2 ? 1 : 16, 1, [item = &items[i]](int, int) { item->fetch_add(1); });
    }
    const auto counts = [&items] { return std::vector<int>(items.begin(), items.end()); };
    EXPECT_FALSE(pool.Run(list, nullptr, 0));
    EXPECT_FALSE(pool.Run(list, nullptr, 2));
    EXPECT_EQ(counts(), (std::vector{16, 16, 0, 0})) << "not the step of one piece either";
    EXPECT_EQ(list.steps_done(), 2);
    EXPECT_FALSE(pool.Run(list, nullptr, 1)) << "that is over";
    EXPECT_FALSE(pool.Run(list, nullptr, 3));
    EXPECT_EQ(counts(), (std::vector{16, 16, 1, 0}));
    EXPECT_TRUE(pool.Run(list));
    EXPECT_EQ(counts(), (std::vector{16, 16, 1, 16}));
    EXPECT_TRUE(list.empty());
  }
}

// A list that is stopped in its last step is finished.
TEST(ThreadPoolTest, NothingIsLeftBehindTheLastStep) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    StepList& list = pool.NewList();
    std::atomic<bool> stop{false};
    list.Add(16, 1, [&stop](int, int) { stop.store(true); });
    EXPECT_TRUE(pool.Run(list, &stop));
  }
}

// A list is paused again and again, other lists run in between, and threads come late to all.
TEST(ThreadPoolTest, ListsTakeTurns) {
  constexpr int kWidth = 13;
  constexpr int kSteps = 40;
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads, threads == 4 ? 0 : 20);
    StepList& long_list = pool.NewList();
    StepList& short_list = pool.NewList();
    for (int round = 0; round < 100; ++round) {
      std::atomic<bool> stop{false};
      std::vector<int> values(kWidth, 0);
      for (int step = 0; step < kSteps; ++step) {
        const bool leave = (step + round) % 3 == 0;
        long_list.Add(kWidth, 1, [&values, &stop, step, leave](int begin, int) {
          int& value = values[static_cast<size_t>(begin)];
          value = value == step ? step + 1 : -1;
          if (leave) stop.store(true);
        });
      }
      int left = 0;
      while (!pool.Run(long_list, &stop)) {
        ++left;
        stop.store(false);
        std::atomic<int> sum{0};
        short_list.Add(7, 1, [&sum](int, int) { sum.fetch_add(1); });
        short_list.Add(5, 1, [&sum](int, int) { sum.fetch_add(10); });
        ASSERT_TRUE(pool.Run(short_list));
        ASSERT_EQ(sum.load(), 57);
      }
      EXPECT_GE(left, kSteps / 3 - 1);
      for (const int value : values) ASSERT_EQ(value, kSteps);
    }
  }
}

TEST(ThreadPoolTest, WhatIsForgottenIsNotRun) {
  ThreadPool pool(2);
  StepList& list = pool.NewList();
  std::atomic<bool> stop{false};
  std::atomic<int> after{0};
  list.Add(4, 1, [&stop](int, int) { stop.store(true); });
  list.Add(4, 1, [&after](int, int) { after.fetch_add(1); });
  EXPECT_FALSE(pool.Run(list, &stop));
  list.Clear();
  EXPECT_TRUE(pool.Run(list));
  EXPECT_EQ(after.load(), 0);
}

// Collects what is told of kernels.
class CollectingObserver final : public KernelObserver {
 public:
  CollectingObserver() : KernelObserver(TickClock()) {}
  void OnKernel(const KernelRun& run) override {
    const std::lock_guard lock(mutex_);
    runs_[std::this_thread::get_id()].push_back(run);
  }
  void OnEmbedded(const PassTag& pass, int64_t started, int64_t ended) override {
    EXPECT_EQ(pass.number, 9u);
    EXPECT_LE(started, ended);
    embedded_.fetch_add(1);
  }
  // By thread.
  const std::map<std::thread::id, std::vector<KernelRun>>& runs() const { return runs_; }
  int embedded() const { return embedded_.load(); }

 private:
  std::mutex mutex_;
  std::map<std::thread::id, std::vector<KernelRun>> runs_;
  std::atomic<int> embedded_{0};
};

// Counters of two cores differ: a thread begins a step "before" another one dispatched it.
TEST(StepTraceTest, TimesAscendWhereTheDispatchersClockIsAhead) {
  constexpr int64_t kAheadNs = 3'600'000'000'000;
  CollectingObserver observer;
  StepTrace trace;
  const StepWatch watch{&observer, {.call_id = 3, .number = 9}};
  int64_t dispatched = observer.clock().Now() + kAheadNs;
  for (int op = 0; op < 3; ++op) {
    trace.OnPiece(watch, 1, {.op = static_cast<uint8_t>(op), .number = op}, dispatched);
    if (op == 1) dispatched = trace.OnOperationDone() + kAheadNs;
  }
  trace.Flush();
  ASSERT_EQ(observer.runs().size(), 1u);
  const std::vector<KernelRun>& runs = observer.runs().begin()->second;
  ASSERT_EQ(runs.size(), 3u);
  int64_t ended = 0;
  for (const KernelRun& run : runs) {
    EXPECT_GE(run.arrived, ended);
    EXPECT_LE(run.arrived, run.started);
    EXPECT_LE(run.dispatched, run.started);
    EXPECT_LE(run.started, run.ended);
    ended = run.ended;
  }
  EXPECT_GE(runs.back().started, dispatched);
}

TEST(ThreadPoolTest, EachThreadTellsWhatItDidOfEachOperation) {
  constexpr int kOps = 12;
  for (const int threads : {1, 2, 4}) {
    CollectingObserver observer;
    std::atomic<bool> stop{false};
    {
      ThreadPool pool(threads, threads == 4 ? 0 : 20);
      StepList& list = pool.NewList();
      list.set_watch({&observer, {.call_id = 3, .number = 9}});
      for (int op = 0; op < kOps; ++op) {
        list.set_label(
            {.op = static_cast<uint8_t>(op), .embeds = op == 0, .layer = op / 2, .number = op});
        // Every third operation has two steps; every second one cannot be shared.
        for (int step = 0; step < (op % 3 == 0 ? 2 : 1); ++step) {
          list.Add(op % 2 == 0 ? 1 : 9, 1, [&stop, op](int, int) { stop.store(op == 5); });
        }
      }
      bool left = false;
      while (!pool.Run(list, &stop)) {
        left = true;
        stop.store(false);
      }
      EXPECT_TRUE(left);
    }  // all threads have told by now
    EXPECT_EQ(observer.embedded(), 1) << "once, whatever the operation's steps";
    std::set<int> ops;
    int64_t last_dispatched = 0;
    for (const auto& [thread, runs] : observer.runs()) {
      int64_t ended = 0;
      last_dispatched = 0;
      for (const KernelRun& run : runs) {
        ops.insert(run.op);
        EXPECT_EQ(run.pass.call_id, 3u);
        EXPECT_EQ(run.pass.number, 9u);
        EXPECT_EQ(run.layer, run.op / 2);
        EXPECT_GE(run.dispatched, last_dispatched);
        EXPECT_LE(run.dispatched, run.started);
        EXPECT_GE(run.arrived, ended) << "it does one thing after the other";
        EXPECT_LE(run.arrived, run.started);
        EXPECT_LE(run.started, run.ended);
        ended = run.ended;
        last_dispatched = run.dispatched;
      }
    }
    EXPECT_EQ(ops.size(), static_cast<size_t>(kOps));
  }
}

TEST(ThreadPoolTest, APassThatNoPassStandsForTellsOfItsEmbeddingAlone) {
  for (const int threads : {1, 2}) {
    CollectingObserver observer;
    {
      ThreadPool pool(threads);
      StepList& list = pool.NewList();
      list.set_watch({&observer, {.call_id = 3, .number = 9}, /*weight=*/0});
      for (int op = 0; op < 4; ++op) {
        list.set_label({.op = static_cast<uint8_t>(op), .embeds = op == 0, .number = op});
        list.Add(9, 1, [](int, int) {});
      }
      EXPECT_TRUE(pool.Run(list));
    }
    EXPECT_EQ(observer.embedded(), 1);
    EXPECT_TRUE(observer.runs().empty());
  }
}

TEST(ThreadPoolTest, EqualOperationsInARowAreToldOfOneByOne) {
  for (const int threads : {1, 2}) {
    CollectingObserver observer;
    {
      ThreadPool pool(threads);
      StepList& list = pool.NewList();
      list.set_watch({&observer, {.call_id = 3, .number = 9}, /*weight=*/4});
      for (int number = 0; number < 5; ++number) {
        list.set_label({.op = 2, .layer = 1, .number = number});
        list.Add(1, 1, [](int, int) {});
      }
      EXPECT_TRUE(pool.Run(list));
    }
    size_t runs = 0;
    for (const auto& [thread, own] : observer.runs()) {
      for (const KernelRun& run : own) {
        ++runs;
        EXPECT_EQ(run.weight, 4u);
      }
    }
    EXPECT_EQ(runs, 5u);
  }
}

TEST(ThreadPoolTest, StopsWhileWorkersAreParked) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(3, 0);
    pool.ParallelFor(2, 1, [](int, int) {});
  }
}

}  // namespace
}  // namespace withy::engine
