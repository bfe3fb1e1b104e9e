// Where property tests begin to draw: the same numbers in every run, so that no run fails by luck,
// and other ones for each value of GTEST_RANDOM_SEED (`./withy test --seed N`). For tests only.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "base/fnv1a.h"

namespace withy {

// A seed of its own for each test; only to be called while one runs.
inline uint32_t TestSeed() {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  Fnv1a hash;
  hash.Add(test.test_suite_name());
  hash.Add(test.name());
  hash.Add(GTEST_FLAG_GET(random_seed));
  return static_cast<uint32_t>(hash.value() ^ hash.value() >> 32);
}

}  // namespace withy
