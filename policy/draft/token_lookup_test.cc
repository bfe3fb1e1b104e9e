#include "policy/draft/token_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace withy::policy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

using Tokens = std::vector<int32_t>;

TEST(TokenLookupTest, ExpectsWhatFollowedBefore) {
  TokenLookup lookup(64);
  lookup.Append(Tokens{1, 2, 3, 4, 5, 6});
  const auto found = lookup.Find(Tokens{9, 2, 3, 4}, 8, 4);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].length, 3);
  EXPECT_THAT(found[0].tokens, ElementsAre(5, 6));
  EXPECT_THAT(lookup.Find(Tokens{9, 2, 3, 4}, 1, 4)[0].tokens, ElementsAre(5));
  EXPECT_THAT(lookup.Find(Tokens{3, 4}, 8, 4), IsEmpty()) << "shorter than a match";
  EXPECT_THAT(lookup.Find(Tokens{4, 5, 6}, 8, 4), IsEmpty()) << "nothing followed";
}

TEST(TokenLookupTest, TheLongestMatchComesFirstAndOfEqualOnesTheLatest) {
  TokenLookup lookup(64);
  lookup.Append(Tokens{7, 1, 2, 3, 10, 8, 1, 2, 3, 11, 9, 1, 2, 3, 12});
  const auto found = lookup.Find(Tokens{7, 1, 2, 3}, 1, 3);
  ASSERT_THAT(found, SizeIs(3));
  EXPECT_EQ(found[0].length, 4);
  EXPECT_THAT(found[0].tokens, ElementsAre(10));
  EXPECT_THAT(found[1].tokens, ElementsAre(12));
  EXPECT_THAT(found[2].tokens, ElementsAre(11));
}

TEST(TokenLookupTest, TextsDoNotRunIntoEachOther) {
  TokenLookup lookup(64);
  lookup.Append(Tokens{1, 2, 3});
  lookup.EndText();
  lookup.Append(Tokens{4, 1, 2, 3});
  EXPECT_THAT(lookup.Find(Tokens{1, 2, 3}, 4, 4), IsEmpty());
  lookup.EndText();
  lookup.Append(Tokens{2, 3, 5});
  EXPECT_THAT(lookup.Find(Tokens{1, 2, 3}, 4, 4), IsEmpty()) << "matched over the end of a text";
}

// Texts of three owners, mixed: what one of them said is gone, what the others said is not.
TEST(TokenLookupTest, ForgetsWhatAnOwnerSaid) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    TokenLookup lookup(256);
    std::vector<std::pair<uint32_t, Tokens>> said;
    for (int text = 0; text < 12; ++text) {
      const uint32_t owner = static_cast<uint32_t>(random() % 3) + 1;
      Tokens tokens(4 + random() % 8);
      // Every token is said once.
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = 100 * text + static_cast<int32_t>(i);
      lookup.Append(tokens, owner);
      lookup.EndText();
      said.emplace_back(owner, tokens);
    }
    lookup.Forget(2);
    for (const auto& [owner, tokens] : said) {
      const auto found = lookup.Find(std::span(tokens).first(3), 8, 4);
      EXPECT_EQ(found.empty(), owner == 2) << "owner " << owner;
    }
    lookup.Append(said[0].second, 2);
    EXPECT_THAT(lookup.Find(std::span(said[0].second).first(3), 1, 1), SizeIs(1)) << "said again";
  }
}

// What it says was there, and what is as long ago as its memory is forgotten.
TEST(TokenLookupTest, SaysOnlyWhatIsAmongTheLatestTokens) {
  std::mt19937 random(1);
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(round);
    constexpr int32_t kCapacity = 128;
    TokenLookup lookup(kCapacity);
    const size_t bytes = lookup.bytes();
    Tokens all;
    for (int step = 0; step < 200; ++step) {
      Tokens some(random() % 7);
      for (int32_t& token : some) token = static_cast<int32_t>(random() % 3);
      lookup.Append(some);
      all.insert(all.end(), some.begin(), some.end());
      const size_t kept = std::min<size_t>(all.size(), kCapacity);
      const std::span<const int32_t> latest = std::span(all).last(kept);
      for (const TokenLookup::Match& match : lookup.Find(all, 5, 4)) {
        Tokens expected(all.end() - match.length, all.end());
        expected.insert(expected.end(), match.tokens.begin(), match.tokens.end());
        EXPECT_NE(std::search(latest.begin(), latest.end(), expected.begin(), expected.end()),
                  latest.end());
      }
    }
    EXPECT_EQ(lookup.bytes(), bytes);
  }
}

TEST(TokenLookupTest, FindsEveryRepetition) {
  std::mt19937 random(2);
  Tokens text(2000);
  for (int32_t& token : text) token = static_cast<int32_t>(random() % 1000);
  TokenLookup lookup(8192);
  lookup.Append(text);
  lookup.EndText();
  for (size_t at = 24; at + 4 < text.size(); ++at) {
    const auto found = lookup.Find(std::span(text).first(at), 4, 1);
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_EQ(found[0].length, TokenLookup::kMaxMatch);
    EXPECT_TRUE(std::equal(found[0].tokens.begin(), found[0].tokens.end(),
                           text.begin() + static_cast<int64_t>(at)));
  }
}

}  // namespace
}  // namespace withy::policy
