#include "context_store/arena/gaps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "base/test_seed.h"

namespace withy::context_store {
namespace {

// The gaps of a space of which it is known, unit by unit, what is free.
std::vector<Gap> GapsOf(const std::vector<bool>& free) {
  std::vector<Gap> gaps;
  for (uint32_t i = 0; i < free.size(); ++i) {
    if (!free[i]) continue;
    if (i == 0 || !free[i - 1]) gaps.push_back({i, 0});
    ++gaps.back().units;
  }
  return gaps;
}

TEST(GapsTest, AreThoseOfAWalkOverAllUnits) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  constexpr uint32_t kUnits = 64;
  Gaps gaps;
  std::vector<bool> free(kUnits, true);
  gaps.Add({0, kUnits});
  for (int step = 0; step < 5000; ++step) {
    const uint32_t at = random() % kUnits;
    const uint32_t units = 1 + random() % std::min(8u, kUnits - at);
    const auto first = free.begin() + at;
    const auto end = first + units;
    const bool all_free = std::find(first, end, false) == end;
    if (random() % 2 == 0) {
      ASSERT_EQ(gaps.Cut({at, units}), all_free);
      if (all_free) std::fill(first, end, false);
    } else if (std::find(first, end, true) == end) {
      gaps.Add({at, units});
      std::fill(first, end, true);
    }
    const std::vector<Gap> expected = GapsOf(free);
    ASSERT_EQ(gaps.all().size(), expected.size());
    uint32_t largest = 0, smallest = UINT32_MAX;
    for (const Gap& gap : expected) {
      ASSERT_EQ(gaps.all().at(gap.at), gap.units);
      largest = std::max(largest, gap.units);
      if (gap.units >= units) smallest = std::min(smallest, gap.units);
      ASSERT_EQ(gaps.EndingAt(gap.at + gap.units)->at, gap.at);
    }
    ASSERT_EQ(gaps.Largest().units, largest);
    const std::optional<Gap> fits = gaps.Smallest(units);
    ASSERT_EQ(fits.has_value() ? fits->units : UINT32_MAX, smallest);
  }
}

}  // namespace
}  // namespace withy::context_store
