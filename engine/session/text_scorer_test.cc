#include "engine/session/text_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/model/testing.h"
#include "engine/session/predictions.h"
#include "engine/session/scored_text.h"
#include "engine/session/testing.h"

namespace withy::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TextScorerTest : public testing::Test {
 protected:
  TextScorerTest() {
    SynthShape shape = TinyShape();
    shape.levels = {50};
    model_ = OpenTiny(folder_, WriteTiny(folder_, shape, GgmlType::kF32));
    ids_ = SomeTokens(150, model_->info().vocab_size);
  }

  std::vector<TextScore> Score(std::vector<ScoreContestant> contestants, ScoredText text,
                               const ScoreOptions& options = {}) {
    auto scorer = TextScorer::Create(std::move(contestants), std::move(text), options);
    EXPECT_TRUE(scorer.ok()) << scorer.status();
    double progress = 0;
    while (!(*scorer)->finished()) {
      const auto run = (*scorer)->Run(nullptr);
      EXPECT_TRUE(run.ok() && *run) << run.status();
      if (!run.ok()) break;
      EXPECT_GT((*scorer)->progress(), progress);
      progress = (*scorer)->progress();
      for (const Sample& sample : (*scorer)->Fresh()) fresh_.push_back(sample);
    }
    EXPECT_EQ((*scorer)->progress(), 1);
    return (*scorer)->Scores();
  }
  std::string Refusal(std::vector<ScoreContestant> contestants, ScoredText text) {
    const auto scorer = TextScorer::Create(std::move(contestants), std::move(text), {});
    return std::string(scorer.status().message());
  }
  // By one pass over the tokens at the full level.
  std::vector<double> LossesByHand(std::span<const int32_t> ids) {
    const ScratchKv kv(model_->info(), static_cast<int32_t>(ids.size()));
    std::vector<float> logits = RunRows(*model_, kv, PlainRows(ids.first(ids.size() - 1)));
    const auto vocabulary = static_cast<size_t>(model_->info().vocab_size);
    std::vector<double> losses;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      double sum = 0;
      const std::span row = std::span(logits).subspan(i * vocabulary, vocabulary);
      for (const float logit : row) sum += std::exp(static_cast<double>(logit));
      losses.push_back(std::log(sum) - static_cast<double>(row[static_cast<size_t>(ids[i + 1])]));
    }
    return losses;
  }

  const TestFolder folder_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> ids_;
  std::vector<Sample> fresh_;
};

TEST_F(TextScorerTest, LossesAreThoseOfOnePass) {
  const auto scores =
      Score({{.model = model_.get()}}, {.ids = ids_}, {.report_tokens = true, .top_logprobs = 3});
  const std::vector<double> wanted = LossesByHand(ids_);
  ASSERT_EQ(scores[0].losses.size(), wanted.size());
  ASSERT_EQ(fresh_.size(), wanted.size());
  double sum = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(scores[0].losses[i], wanted[i], 1e-4) << i;
    EXPECT_EQ(fresh_[i].id, ids_[i + 1]);
    EXPECT_FLOAT_EQ(fresh_[i].logprob, static_cast<float>(-scores[0].losses[i]));
    ASSERT_EQ(fresh_[i].top.size(), 3u);
    EXPECT_GE(fresh_[i].top[0].logprob, fresh_[i].logprob);
    sum += wanted[i];
  }
  EXPECT_NEAR(scores[0].perplexity, std::exp(sum / static_cast<double>(wanted.size())), 0.1);
}

TEST_F(TextScorerTest, OnlyWhatFollowsThePromptIsScored) {
  const auto all = Score({{.model = model_.get()}}, {.ids = ids_});
  for (const int32_t first : {33, 64, 100, 149}) {
    const auto scores = Score({{.model = model_.get()}}, {.ids = ids_, .first_scored = first});
    const auto from = all[0].losses.begin() + (first - 1);
    EXPECT_EQ(scores[0].losses, std::vector<double>(from, all[0].losses.end())) << first;
  }
}

TEST_F(TextScorerTest, ASettingAgainstItselfDoesNotDiverge) {
  const ScoreContestant low{.model = model_.get(), .level = 0, .kv_format = KvFormat::kQ4};
  const auto scores = Score({low, low}, {.ids = ids_});
  EXPECT_EQ(scores[0].losses, scores[1].losses);
  EXPECT_EQ(scores[1].divergence, 0);
  EXPECT_EQ(scores[1].divergence_median, 0);
  EXPECT_EQ(scores[1].agreed_share, 1);
}

TEST_F(TextScorerTest, LevelsAndFormatsDiverge) {
  const ScoreContestant full{.model = model_.get()};
  const auto level = Score({full, {.model = model_.get(), .level = 0}}, {.ids = ids_});
  EXPECT_GT(level[1].divergence, 0);
  const auto half = Score({{.model = model_.get(), .kv_format = KvFormat::kF16},
                           full,
                           {.model = model_.get(), .kv_format = KvFormat::kQ4},
                           {.model = model_.get(), .kv_format = KvFormat::kQ2}},
                          {.ids = ids_});
  EXPECT_GT(half[1].divergence, 0) << "8 bits";
  EXPECT_GT(half[2].divergence, half[1].divergence) << "4 bits";
  EXPECT_GT(half[3].divergence, half[2].divergence) << "2 bits";
  // The first tokens and the latest ones have 8 bits in all formats, so at first nothing differs.
  const auto eight =
      Score({full, {.model = model_.get(), .kv_format = KvFormat::kQ2}}, {.ids = ids_});
  const std::vector<double>& divergences = eight[1].divergences;
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(divergences[i], 0) << i;
  EXPECT_GT(divergences.back(), 0);
}

TEST_F(TextScorerTest, OfWindowsTheSecondHalfIsScored) {
  constexpr int32_t kWindow = 64;
  const auto scores = Score({{.model = model_.get()}}, {.ids = ids_, .window = kWindow});
  std::vector<double> wanted;
  for (const size_t first : {size_t{0}, size_t{64}}) {
    const auto losses = LossesByHand(std::span(ids_).subspan(first, kWindow));
    wanted.insert(wanted.end(), losses.begin() + kWindow / 2, losses.end());
  }
  ASSERT_EQ(scores[0].losses.size(), wanted.size()) << "the rest of 22 tokens is left out";
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(scores[0].losses[i], wanted[i], 1e-4) << i;
}

TEST_F(TextScorerTest, WhatEveryContestantComputesIsCounted) {
  const ScoreContestant full{.model = model_.get()};
  const auto computed = [&](std::vector<ScoreContestant> contestants, int32_t window) {
    auto scorer = *TextScorer::Create(std::move(contestants), {.ids = ids_, .window = window}, {});
    EXPECT_EQ(scorer->computed_tokens(), 0u);
    while (!scorer->finished()) EXPECT_TRUE(scorer->Run(nullptr).ok());
    return scorer->computed_tokens();
  };
  const uint64_t rows = ids_.size() - 1;  // nothing follows the last one
  EXPECT_EQ(computed({full}, 0), rows);
  EXPECT_EQ(computed({full, {.model = model_.get(), .level = 0}}, 0), 2 * rows);
  EXPECT_EQ(computed({full}, 64), 63u + 63u) << "the rest of 22 tokens is left out";
}

TEST_F(TextScorerTest, EveryWindowBeginsLikeATextWhereTheVocabularyWantsIt) {
  ScoredText text{.ids = ids_, .window = 64, .bos = 5};
  text.ids[0] = 5;
  const auto scores = Score({{.model = model_.get()}}, text);
  std::vector<int32_t> second = {5};
  second.insert(second.end(), ids_.begin() + 64, ids_.begin() + 127);
  const auto losses = LossesByHand(second);
  ASSERT_EQ(scores[0].losses.size(), 62u);
  EXPECT_NEAR(scores[0].losses.back(), losses.back(), 1e-4);
}

TEST_F(TextScorerTest, GoesOnWhereItWasStopped) {
  const ScoreContestant low{.model = model_.get(), .kv_format = KvFormat::kQ4};
  const auto wanted = Score({low}, {.ids = ids_});
  auto scorer = TextScorer::Create({low}, {.ids = ids_}, {.report_tokens = true});
  ASSERT_TRUE(scorer.ok());
  const std::atomic<bool> stop{true};
  size_t reported = 0;
  for (int i = 0; !(*scorer)->finished(); ++i) {
    ASSERT_LT(i, 1000);
    const auto run = (*scorer)->Run(i % 3 == 0 ? nullptr : &stop);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(*run, i % 3 == 0);
    if (*run) reported += (*scorer)->Fresh().size();
    // Another pass of the same model in between changes nothing.
    const ScratchKv kv(model_->info(), 8);
    RunRows(*model_, kv, PlainRows(std::span(ids_).first(8)));
  }
  EXPECT_EQ((*scorer)->Scores()[0].losses, wanted[0].losses);
  EXPECT_EQ(reported, wanted[0].losses.size());
}

TEST_F(TextScorerTest, RefusesWhatCannotBeScored) {
  const ScoreContestant full{.model = model_.get()};
  EXPECT_THAT(Refusal({full}, {.ids = {7}}), HasSubstr("give a longer one"));
  EXPECT_THAT(Refusal({full}, {.ids = {}}), HasSubstr("give a longer one"));
  EXPECT_THAT(Refusal({full}, {.ids = ids_, .window = 63}), HasSubstr("window_tokens"));
  const int32_t most = model_->info().context_length;
  EXPECT_THAT(Refusal({full}, {.ids = ids_, .window = most + 1}), HasSubstr("window_tokens"));
  const std::vector<int32_t> many(static_cast<size_t>(most) + 1, 7);
  EXPECT_THAT(Refusal({full}, {.ids = many}), HasSubstr("window_tokens"));
  FakeModel other(model_->info().vocab_size + 1);
  EXPECT_THAT(Refusal({full, {.model = &other}}, {.ids = ids_}), HasSubstr("vocabulary"));
  EXPECT_THAT(Refusal({{.model = model_.get(), .level = 2}}, {.ids = ids_}), HasSubstr("level 2"));
}

TEST(ScoredTextTest, TheTextFollowsThePromptOrTheFirstToken) {
  const ChatFixture chat;
  const auto alone = EncodeScoredText(*chat.encoder, {}, "hello", nullptr);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->ids, chat.Ids("hello"));
  EXPECT_EQ(alone->first_scored, 1) << "nothing precedes the first token";
  const std::vector<Segment> prompt = {UserSays("hi")};
  const auto behind = EncodeScoredText(*chat.encoder, prompt, "hello<|im_end|>", nullptr);
  ASSERT_TRUE(behind.ok()) << behind.status();
  EXPECT_EQ(chat.Text(behind->ids),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>");
  const std::span<const int32_t> scored =
      std::span(behind->ids).subspan(static_cast<size_t>(behind->first_scored));
  EXPECT_EQ(chat.Text(scored), "hello<|im_end|>");
}

TEST(PredictionsTest, LikeliestTokensComeInOrder) {
  std::vector<float> logs = {1, 3, 3, 2};
  LogSoftmax(logs);
  EXPECT_EQ(Likeliest(logs), 1);
  const auto top = LikeliestTokens(logs, 3);
  std::vector<int32_t> ids;
  for (const TokenLogprob& token : top) ids.push_back(token.id);
  EXPECT_THAT(ids, ElementsAre(1, 2, 3));
  EXPECT_EQ(LikeliestTokens(logs, 9).size(), 4u);
  EXPECT_NEAR(std::exp(logs[0]) + std::exp(logs[1]) + std::exp(logs[2]) + std::exp(logs[3]), 1,
              1e-6);
}

}  // namespace
}  // namespace withy::engine
