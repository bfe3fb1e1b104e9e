#include "bench/speculation/speculation_wall_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace withy::bench {
namespace {

using testing::DoubleEq;
using testing::HasSubstr;

TEST(WallWayTest, NamesSayWhoDraftsAndWhetherAnswersStayTheSame) {
  const auto tree = ParseWay("tree");
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(tree->decode.speculation, policy::SpeculationMode::kAuto);
  EXPECT_TRUE(tree->uses_draft() && tree->decode.windows && tree->lossless());
  const auto prefix = ParseWay("tree:prefix+ahead");
  ASSERT_TRUE(prefix.ok()) << prefix.status();
  EXPECT_FALSE(prefix->uses_draft()) << "all of the budget is for the target";
  EXPECT_TRUE(prefix->decode.windows);
  const auto draft = ParseWay("tree:draft");
  ASSERT_TRUE(draft.ok()) << draft.status();
  EXPECT_EQ(draft->decode.speculation, policy::SpeculationMode::kDraft);
  EXPECT_TRUE(draft->uses_draft());
  EXPECT_FALSE(draft->decode.windows);
  const auto line = ParseWay("line:16");
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->decode.chain, 16);
  EXPECT_TRUE(line->uses_draft() && line->lossless());
  const auto single = ParseWay("single:0.5/5");
  ASSERT_TRUE(single.ok()) << single.status();
  EXPECT_EQ(single->decode.big_little.fallback, 0.5);
  EXPECT_EQ(single->decode.big_little.rollback, 5);
  EXPECT_FALSE(single->lossless());
  const auto shards = ParseWay("sti");
  ASSERT_TRUE(shards.ok()) << shards.status();
  EXPECT_FALSE(shards->lossless() || shards->uses_draft());
  const auto service = ParseWay("service");
  ASSERT_TRUE(service.ok()) << service.status();
  EXPECT_EQ(service->kind, WallWay::Kind::kService);
  EXPECT_EQ(service->decode.speculation, policy::SpeculationMode::kAuto);
  EXPECT_TRUE(service->uses_draft() && service->lossless());
  const auto plain = ParseWay("service:off");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->uses_draft()) << "all of the budget is for the target";
  for (const char* const name : {"stream", "mmap", "layers", "peer"}) {
    const auto alone = ParseWay(name);
    ASSERT_TRUE(alone.ok()) << alone.status();
    EXPECT_EQ(alone->kind, WallWay::Kind::kAlone);
  }
}

TEST(WallWayTest, RefusesWhatItDoesNotKnow) {
  for (const char* const name : {"", "trees", "tree:", "tree:off", "tree:magic", "tree:ahead",
                                 "tree:lookup+ahead", "service:magic", "line", "line:0", "line:33",
                                 "line:x", "single:0.5", "single:0/1", "sti:2"}) {
    const auto way = ParseWay(name);
    EXPECT_EQ(way.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(way.status().message()), HasSubstr("line:N")) << name;
  }
}

TEST(WallFiguresTest, BudgetsAreSharesOfTheWeights) {
  EXPECT_THAT(*BudgetShare("45"), DoubleEq(0.45));
  EXPECT_THAT(*BudgetShare("12.5"), DoubleEq(0.125));
  for (const char* const percent : {"", "0", "-5", "101", "x", "nan"}) {
    EXPECT_EQ(BudgetShare(percent).status().code(), absl::StatusCode::kInvalidArgument) << percent;
  }
}

DecodedAnswer Answer(int tokens, int passes, double ms) {
  DecodedAnswer answer;
  answer.tokens.assign(static_cast<size_t>(tokens), 7);
  answer.decoded = tokens;
  answer.target_passes = passes;
  answer.drafted = 4 * passes;
  answer.accepted = tokens - passes;
  answer.ms = ms;
  return answer;
}

TEST(WallFiguresTest, SecondsATokenAreThoseOfAllAnswersTogether) {
  const auto sums = SumByWay({{"tree", 0, Answer(10, 2, 2000)},
                              {"line:4", 0, Answer(10, 5, 5000)},
                              {"tree", 1, Answer(2, 1, 1000)}});
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_THAT(sums.at("tree").token_s(), DoubleEq(0.25));
  EXPECT_THAT(sums.at("tree").tokens_a_pass(), DoubleEq(4));
  EXPECT_THAT(sums.at("tree").accepted_share(), DoubleEq(9.0 / 12));
  EXPECT_THAT(sums.at("line:4").token_s(), DoubleEq(0.5));
}

TEST(WallFiguresTest, RatiosNameTheFastestLine) {
  Samples samples;
  const std::map<std::string, double> first = {
      {"tree", 0.5}, {"tree:draft", 0.6}, {"mmap", 5}, {"line:4", 1.5}, {"line:16", 1}};
  AddRatios("wall", "tree", "45", first, &samples);
  EXPECT_THAT(samples.Median("wall_vs_mmap_45"), DoubleEq(10));
  EXPECT_THAT(samples.Median("wall_vs_linear_4_45"), DoubleEq(3));
  EXPECT_THAT(samples.Median("wall_vs_best_linear_45"), DoubleEq(2));
  AddRatios("service", "service", "45", {{"service", 0.5}, {"service:off", 2}}, &samples);
  EXPECT_THAT(samples.Median("service_vs_off_45"), DoubleEq(4));
  EXPECT_FALSE(samples.Has("wall_vs_tree_45") || samples.Has("wall_vs_tree:draft_45"));
  AddRatios("wall", "tree", "25", {{"tree", 1}, {"line:4", 1.5}}, &samples);
  EXPECT_THAT(LeastOver({"45", "25"}, "wall_vs_best_linear", samples), DoubleEq(1.5));
  EXPECT_EQ(LeastOver({"45", "25"}, "wall_vs_peer", samples), 0);
}

TEST(WallFiguresTest, WithoutOursThereAreNoRatios) {
  Samples samples;
  AddRatios("wall", "tree", "45", {{"mmap", 5}, {"line:4", 1}}, &samples);
  EXPECT_TRUE(samples.keys().empty());
}

}  // namespace
}  // namespace withy::bench
