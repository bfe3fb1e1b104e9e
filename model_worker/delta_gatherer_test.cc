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

constexpr int64_t kStart = 1'000'000'000'000;

// Has told so many as are told at once, the last of them at kStart.
DeltaGatherer Begun() {
  DeltaGatherer gatherer;
  for (int i = 0; i < DeltaGatherer::kFirst; ++i) {
    EXPECT_TRUE(gatherer.Add(Delta(1, "a"), kStart).has_value()) << i;
  }
  return gatherer;
}

TEST(DeltaGathererTest, TheFirstGoAtOnceAndThoseThatFollowCloselyTogether) {
  DeltaGatherer gatherer = Begun();
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
  EXPECT_FALSE(DeltaGatherer().Take(kStart).has_value());
  DeltaGatherer gatherer = Begun();
  v1::GenerateDelta fallen = Delta(2, "b");
  fallen.set_model_level_percent(40);
  EXPECT_FALSE(gatherer.Add(fallen, kStart + 1).has_value());
  EXPECT_FALSE(gatherer.Add(Delta(3, "c"), kStart + 2).has_value());
  const auto kept = gatherer.Take(kStart + 3);
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->text(), "bc");
  EXPECT_EQ(kept->tokens_size(), 2);
  EXPECT_EQ(kept->model_level_percent(), 40u);
  EXPECT_FALSE(gatherer.Take(kStart + 4).has_value());
  EXPECT_FALSE(gatherer.Add(Delta(4, "d"), kStart + 3 + kDeltaIntervalNs - 1).has_value())
      << "told a moment before";
}

}  // namespace
}  // namespace withy::model_worker
