#include "policy/kv/kv_precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "base/test_seed.h"

namespace withy::policy {
namespace {

using testing::Each;
using testing::ElementsAre;

// About 8.5, 4.5, 3.6 and 2.6 bits an element.
const std::vector<KvFormatCost> kKvFormats = {{136, 0.001}, {72, 0.01}, {57, 0.06}, {42, 0.3}};

struct PrecisionCase {
  std::vector<KvFormatCost> formats;
  std::vector<DensityChunk> chunks;
  double ratio = 0;

  uint64_t Budget() const {
    const auto full = static_cast<double>(chunks.size() * formats.front().chunk_bytes);
    return static_cast<uint64_t>(ratio * full);
  }
  double Weight(size_t i) const { return chunks[i].density * chunks[i].tokens; }
  double Harm(size_t i, size_t format) const { return Weight(i) * formats[format].error; }
  // Formats that chunk i may have: the first and the last.
  size_t First(size_t i) const { return chunks[i].format; }
  size_t Last(size_t i) const { return chunks[i].pinned ? First(i) : formats.size() - 1; }
  FormatChoice Choose(PrecisionPolicy policy = PrecisionPolicy::kDensity) const {
    return ChooseFormats(formats, chunks, ratio, policy);
  }
};

PrecisionCase RandomPrecisionCase(std::mt19937& random, size_t max_chunks) {
  const auto unit = [&] { return std::uniform_real_distribution<double>(0, 1)(random); };
  PrecisionCase made;
  uint64_t bytes = 10 + random() % 30;
  double error = random() % 2 == 0 ? 0 : 0.01 * unit();
  for (size_t format = 1 + random() % 4; format > 0; --format) {
    made.formats.push_back({bytes, error});
    bytes -= 1 + random() % (bytes / 2);
    error += random() % 8 == 0 ? 0 : unit() * unit();
  }
  const size_t chunks = 1 + random() % max_chunks;
  const bool skewed = random() % 2 == 0;
  const bool fresh = random() % 2 == 0;
  while (made.chunks.size() < chunks) {
    const double density = random() % 10 == 0 ? 0 : skewed ? std::pow(unit(), 6) : unit();
    made.chunks.push_back(
        {.density = density,
         .tokens = random() % 8 == 0 ? static_cast<uint32_t>(1 + random() % 16) : 16,
         .format = static_cast<KvFormatIndex>(fresh ? 0 : random() % made.formats.size()),
         .pinned = random() % 8 == 0});
  }
  made.ratio = 0.05 + unit();
  return made;
}

// The least harm by dynamic programming over bytes; infinite: no choice is within the budget.
double LeastHarm(const PrecisionCase& given) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> least(given.Budget() + 1, kNever);  // by bytes, of the chunks so far
  least[0] = 0;
  for (size_t i = 0; i < given.chunks.size(); ++i) {
    std::vector<double> next(least.size(), kNever);
    for (size_t format = given.First(i); format <= given.Last(i); ++format) {
      const uint64_t bytes = given.formats[format].chunk_bytes;
      for (size_t b = bytes; b < next.size(); ++b) {
        next[b] = std::min(next[b], least[b - bytes] + given.Harm(i, format));
      }
    }
    least = std::move(next);
  }
  return *std::min_element(least.begin(), least.end());
}

// The same by trying everything.
double LeastHarmOfAll(const PrecisionCase& given, size_t chunk = 0, uint64_t bytes = 0) {
  if (bytes > given.Budget()) return std::numeric_limits<double>::infinity();
  if (chunk == given.chunks.size()) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t format = given.First(chunk); format <= given.Last(chunk); ++format) {
    const uint64_t with = bytes + given.formats[format].chunk_bytes;
    least = std::min(least, given.Harm(chunk, format) + LeastHarmOfAll(given, chunk + 1, with));
  }
  return least;
}

// The relaxed optimum by its dual: the largest, over all prices of a byte, of the least harm plus
// price. The dual is piecewise linear, and its corners are prices at which a chunk changes format.
double RelaxedLeastHarm(const PrecisionCase& given) {
  std::vector<double> prices = {0};
  for (size_t i = 0; i < given.chunks.size(); ++i) {
    for (size_t a = given.First(i); a <= given.Last(i); ++a) {
      for (size_t b = a + 1; b <= given.Last(i); ++b) {
        const auto saved =
            static_cast<double>(given.formats[a].chunk_bytes - given.formats[b].chunk_bytes);
        prices.push_back((given.Harm(i, b) - given.Harm(i, a)) / saved);
      }
    }
  }
  double best = 0;
  for (const double price : prices) {
    double dual = -price * static_cast<double>(given.Budget());
    for (size_t i = 0; i < given.chunks.size(); ++i) {
      double least = std::numeric_limits<double>::infinity();
      for (size_t format = given.First(i); format <= given.Last(i); ++format) {
        const auto bytes = static_cast<double>(given.formats[format].chunk_bytes);
        least = std::min(least, given.Harm(i, format) + price * bytes);
      }
      dual += least;
    }
    best = std::max(best, dual);
  }
  return best;
}

// The most harm that one step of one chunk along the hull of its formats does.
double LargestStep(const PrecisionCase& given) {
  double largest = 0;
  for (size_t i = 0; i < given.chunks.size(); ++i) {
    for (size_t from = given.First(i); from < given.Last(i);) {
      const auto slope = [&](size_t to) {
        return (given.formats[to].error - given.formats[from].error) /
               static_cast<double>(given.formats[from].chunk_bytes - given.formats[to].chunk_bytes);
      };
      size_t next = from + 1;
      for (size_t to = next; to <= given.Last(i); ++to) {
        if (slope(to) <= slope(next)) next = to;
      }
      largest = std::max(largest, given.Harm(i, next) - given.Harm(i, from));
      from = next;
    }
  }
  return largest;
}

void ExpectSound(const PrecisionCase& given, const FormatChoice& choice) {
  ASSERT_EQ(choice.formats.size(), given.chunks.size());
  uint64_t bytes = 0;
  double harm = 0;
  for (size_t i = 0; i < given.chunks.size(); ++i) {
    ASSERT_GE(choice.formats[i], given.First(i));
    ASSERT_LE(choice.formats[i], given.Last(i));
    if (choice.excess_bytes > 0) {
      EXPECT_EQ(choice.formats[i], given.Last(i));
    }
    bytes += given.formats[choice.formats[i]].chunk_bytes;
    harm += given.Harm(i, choice.formats[i]);
  }
  EXPECT_EQ(bytes, choice.bytes);
  EXPECT_EQ(choice.excess_bytes, bytes > given.Budget() ? bytes - given.Budget() : 0);
  EXPECT_NEAR(harm, choice.harm, 1e-9);
}

TEST(ChooseFormatsTest, KeepsTheBudgetOrTellsByHowMuchItIsMissed) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const PrecisionCase given = RandomPrecisionCase(random, 40);
    for (const PrecisionPolicy policy : {PrecisionPolicy::kDensity, PrecisionPolicy::kUniform}) {
      ExpectSound(given, given.Choose(policy));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(ChooseFormatsTest, AtMostOneStepOfOneChunkAboveTheRelaxedOptimum) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    const PrecisionCase given = RandomPrecisionCase(random, 100);
    const FormatChoice choice = given.Choose();
    if (choice.excess_bytes > 0) continue;
    const double bound = RelaxedLeastHarm(given);
    EXPECT_GE(choice.harm, bound - 1e-9);
    EXPECT_LE(choice.harm, bound + LargestStep(given) + 1e-9);
  }
}

TEST(ChooseFormatsTest, SmallCasesAgainstAllChoices) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 1000; ++round) {
    const PrecisionCase given = RandomPrecisionCase(random, 6);
    const double least = LeastHarmOfAll(given);
    const FormatChoice choice = given.Choose();
    ASSERT_EQ(choice.excess_bytes > 0, least == std::numeric_limits<double>::infinity());
    if (choice.excess_bytes > 0) continue;
    ASSERT_NEAR(LeastHarm(given), least, 1e-9) << "dynamic programming finds the same";
    EXPECT_GE(choice.harm, least - 1e-9);
    EXPECT_LE(choice.harm, least + LargestStep(given) + 1e-9);
  }
}

TEST(ChooseFormatsTest, LongContextsAgainstDynamicProgramming) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  double worst = 0;
  for (int round = 0; round < 50; ++round) {
    PrecisionCase given{.formats = kKvFormats, .chunks = {}, .ratio = 0.35 + 0.005 * round};
    while (given.chunks.size() < 128) {
      const double unit = std::uniform_real_distribution<double>(0, 1)(random);
      given.chunks.push_back({.density = std::pow(unit, 4), .tokens = 16});
    }
    const double least = LeastHarm(given);
    worst = std::max(worst, given.Choose().harm / least);
  }
  EXPECT_LT(worst, 1.01);
}

// The thresholds of eq. 2.
TEST(ChooseFormatsTest, TheDenserOfTwoChunksHasAtLeastItsBits) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    const PrecisionCase given = RandomPrecisionCase(random, 30);
    const FormatChoice choice = given.Choose();
    for (size_t a = 0; a < given.chunks.size(); ++a) {
      for (size_t b = 0; b < given.chunks.size(); ++b) {
        if (given.chunks[a].pinned || given.chunks[b].pinned) continue;
        if (given.First(a) != given.First(b) || given.Weight(a) < given.Weight(b)) continue;
        if (given.Weight(a) == given.Weight(b) && a < b) continue;  // the older loses bits first
        EXPECT_LE(choice.formats[a], choice.formats[b]) << a << " " << b;
      }
    }
  }
}

TEST(ChooseFormatsTest, OfEqualChunksTheOlderOnesLoseBitsFirst) {
  const std::vector<KvFormatCost> two = {{8, 0}, {4, 1}};
  const std::vector<DensityChunk> chunks(6, {.density = 0.5, .tokens = 16});
  EXPECT_THAT(ChooseFormats(two, chunks, 0.8).formats, ElementsAre(1, 1, 1, 0, 0, 0));
  EXPECT_THAT(ChooseFormats(two, chunks, 1).formats, Each(0));
}

TEST(ChooseFormatsTest, ANeedlesslyLargeLastStepIsReplaced) {
  // Half of the bytes have to go. The hull has format 2 only: chunk 0 goes there first and then
  // chunk 1 would, but one step to format 1 is enough for it.
  const std::vector<KvFormatCost> formats = {{8, 0}, {5, 0.9}, {2, 1}};
  const std::vector<DensityChunk> chunks = {{.density = 1, .tokens = 1},
                                            {.density = 2, .tokens = 1}};
  EXPECT_THAT(ChooseFormats(formats, chunks, 0.5).formats, ElementsAre(2, 1));
}

TEST(ChooseFormatsTest, PinnedChunksAndTooSmallRatios) {
  std::vector<DensityChunk> chunks(4, {.density = 1, .tokens = 16});
  chunks[0].pinned = true;
  const FormatChoice choice = ChooseFormats(kKvFormats, chunks, 0.25);
  EXPECT_THAT(choice.formats, ElementsAre(0, 3, 3, 3));
  EXPECT_EQ(choice.bytes, 136u + 3 * 42);
  EXPECT_EQ(choice.excess_bytes, 136u + 3 * 42 - 136);
  EXPECT_EQ(ChooseFormats(kKvFormats, {}, 0.5).bytes, 0u);
}

TEST(ChooseFormatsTest, OneFormatForAllDoesNoLessHarm) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    const PrecisionCase given = RandomPrecisionCase(random, 40);
    EXPECT_LE(given.Choose().harm,
              given.Choose(PrecisionPolicy::kUniform).harm + LargestStep(given) + 1e-9);
  }
  const std::vector<DensityChunk> chunks(12, {.density = 1, .tokens = 16});
  EXPECT_THAT(ChooseFormats(kKvFormats, chunks, 0.6, PrecisionPolicy::kUniform).formats, Each(1));
}

}  // namespace
}  // namespace withy::policy
