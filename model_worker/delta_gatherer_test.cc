#include "model_worker/delta_gatherer.h"

#include <gtest/gtest.h>

#include <string>

namespace withy::model_worker {
namespace {

v1::GenerateDelta Delta(uint32_t token, const std::string& text) {
  v1::GenerateDelta delta;
  delta.set_text(text);
  delta.add_tokens()->set_id(token);
  return delta;
}

TEST(DeltaGathererTest, TheFirstGoesAtOnceAndThoseThatFollowCloselyTogether) {
  DeltaGatherer gatherer;
  constexpr int64_t kStart = 1'000'000'000'000;
  const auto first = gatherer.Add(Delta(1, "a"), kStart);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->text(), "a");
  EXPECT_FALSE(gatherer.Add(Delta(2, "b"), kStart + 1).has_value());
  EXPECT_FALSE(gatherer.Add(Delta(3, ""), kStart + kDeltaIntervalNs - 1).has_value());
  const auto together = gatherer.Add(Delta(4, "cd"), kStart + kDeltaIntervalNs);
  ASSERT_TRUE(together.has_value());
  EXPECT_EQ(together->text(), "bcd");
  ASSERT_EQ(together->tokens_size(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(together->tokens(i).id(), 2u + i);
  EXPECT_FALSE(gatherer.Add(Delta(5, "e"), kStart + kDeltaIntervalNs + 1).has_value());
}

TEST(DeltaGathererTest, WhatWasKeptBackCanBeTaken) {
  DeltaGatherer gatherer;
  EXPECT_FALSE(gatherer.Take(5).has_value());
  EXPECT_TRUE(gatherer.Add(Delta(1, "a"), 5).has_value()) << "nothing was told before";
  v1::GenerateDelta fallen = Delta(2, "b");
  fallen.set_model_level_percent(40);
  EXPECT_FALSE(gatherer.Add(fallen, 6).has_value());
  EXPECT_FALSE(gatherer.Add(Delta(3, "c"), 7).has_value());
  const auto kept = gatherer.Take(8);
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->text(), "bc");
  EXPECT_EQ(kept->tokens_size(), 2);
  EXPECT_EQ(kept->model_level_percent(), 40u);
  EXPECT_FALSE(gatherer.Take(9).has_value());
  EXPECT_FALSE(gatherer.Add(Delta(4, "d"), 8 + kDeltaIntervalNs - 1).has_value())
      << "told a moment before";
}

}  // namespace
}  // namespace withy::model_worker
