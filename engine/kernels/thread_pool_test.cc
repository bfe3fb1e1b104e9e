#include "engine/kernels/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

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

TEST(ThreadPoolTest, StopsWhileWorkersAreParked) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(3, 0);
    pool.ParallelFor(2, 1, [](int, int) {});
  }
}

}  // namespace
}  // namespace withy::engine
