#include "offline/train/batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "offline/train/drills.h"

namespace withy::train {
namespace {

const ChatEncoder& Encoder() {
  static const ChatEncoder* encoder = [] {
    const std::string directory = testing::TempDir() + "/batches_test";
    return new ChatEncoder(MakePocketEncoder(LearnPocketVocabulary(), directory).value());
  }();
  return *encoder;
}

corpus::Record Dialogue() {
  corpus::Record record;
  record.messages = {{"system", "Answer the question.", {}},
                     {"user", "What is 1 plus 2?", {}},
                     {"assistant", "Answer: 3", {}},
                     {"user", "What is 2 plus 2?", {}}};
  record.answer = "Answer: 4";
  return record;
}

TEST(ChatEncoder, MarksEveryAnswerWithItsTurnEnd) {
  const Sample sample = Encoder().Encode(Dialogue());
  ASSERT_EQ(sample.tokens.size(), sample.answer.size());
  // Each answer is "Answer", ":", " ", a digit, <|im_end|>.
  int64_t marked = 0;
  for (const bool answer : sample.answer) marked += answer ? 1 : 0;
  EXPECT_EQ(marked, 10);
  EXPECT_TRUE(sample.answer.back());
  EXPECT_EQ(sample.last_answer, sample.tokens.size() - 5);
}

TEST(ChatEncoder, EndsWithTheTurnEnd) { EXPECT_EQ(Encoder().Encode(Dialogue()).tokens.back(), 2); }

TEST(CutBatches, FillsUpToTheLimitWithPaddingCounted) {
  std::vector<Sample> samples(7);
  for (size_t i = 0; i < samples.size(); ++i) samples[i].tokens.resize(10 + 10 * (i % 3));
  size_t count = 0;
  for (const std::vector<Sample>& batch : CutBatches(samples, 45)) {
    EXPECT_LE(batch.size() * batch.back().tokens.size(), 45u);
    count += batch.size();
  }
  EXPECT_EQ(count, samples.size());
}

TEST(CutBatches, ASampleOverTheLimitIsABatchOfItsOwn) {
  std::vector<Sample> samples(2);
  for (Sample& sample : samples) sample.tokens.resize(100);
  EXPECT_EQ(CutBatches(samples, 50).size(), 2u);
}

TEST(BatchStream, GoesOnWhereItWasFromAPosition) {
  // Noise begins in the second window, which means with the third.
  const BatchOptions options{
      .spec = corpus::TrainSpec(), .noise_from_batch = 148, .shortened_percent = 50};
  BatchStream whole(options, Encoder());
  for (int i = 0; i < 150; ++i) whole.Next();
  ASSERT_EQ(whole.position().window, 1);
  BatchStream resumed(options, Encoder());
  resumed.Seek(whole.position());
  for (int i = 0; i < 5; ++i) {
    const std::vector<Sample> expected = whole.Next();
    const std::vector<Sample> actual = resumed.Next();
    ASSERT_EQ(expected.size(), actual.size());
    for (size_t s = 0; s < expected.size(); ++s) EXPECT_EQ(expected[s].tokens, actual[s].tokens);
  }
}

std::vector<std::vector<int32_t>> FirstSamples(const BatchOptions& options, int batches) {
  BatchStream stream(options, Encoder());
  std::vector<std::vector<int32_t>> samples;
  for (int i = 0; i < batches; ++i) samples.push_back(stream.Next().front().tokens);
  return samples;
}

TEST(BatchStream, NoiseBeginsLate) {
  BatchOptions options{.spec = corpus::TrainSpec(), .exercise_ramp_batches = 1};
  options.noise_from_batch = 1000;
  const std::vector<std::vector<int32_t>> never = FirstSamples(options, 60);
  options.shortened_percent = 50;
  EXPECT_EQ(FirstSamples(options, 60), never);
  options.noise_from_batch = 30;
  const std::vector<std::vector<int32_t>> late = FirstSamples(options, 60);
  EXPECT_TRUE(std::equal(late.begin(), late.begin() + 30, never.begin()));
  int garbled = 0;
  for (size_t i = 31; i < 60; i += 2) garbled += late[i] != never[i];
  EXPECT_GT(garbled, 5);
  options.noise_from_batch = 0;  // applies to a window from its beginning
  EXPECT_NE(FirstSamples(options, 1), FirstSamples({.spec = corpus::TrainSpec()}, 1));
}

// Number of exercises on screens among the first batches: their elements are numbered "[1]".
int Screens(const BatchOptions& options, int batches) {
  corpus::Record record = Dialogue();
  const std::vector<int32_t> without = Encoder().Encode(record).tokens;
  record.messages[1].content += "\n[1";
  const std::vector<int32_t> with = Encoder().Encode(record).tokens;
  // The line break may have merged with the preceding text: take the last new token.
  const auto bracket = std::find_if(with.rbegin(), with.rend(), [&](int32_t id) {
    return std::find(without.begin(), without.end(), id) == without.end();
  });
  EXPECT_NE(bracket, with.rend());
  BatchStream stream(options, Encoder());
  int screens = 0;
  for (int i = 0; i < batches; ++i) {
    const std::vector<int32_t> tokens = stream.Next().front().tokens;
    if (i % 2 == 1) screens += std::find(tokens.begin(), tokens.end(), *bracket) != tokens.end();
  }
  return screens;
}

TEST(BatchStream, MostExercisesAreOnScreensFirst) {
  BatchOptions options{.spec = corpus::TrainSpec(),
                       .exercise_ramp_batches = 1,
                       .passages_from_batch = 1000,
                       .noise_from_batch = 1000};
  const int first = Screens(options, 200);
  options.passages_from_batch = 0;
  const int then = Screens(options, 200);
  options.noise_from_batch = 0;
  const int at_last = Screens(options, 200);
  EXPECT_NEAR(first, 35, 15);
  EXPECT_NEAR(then, 10, 9);
  EXPECT_NEAR(at_last, 15, 10);
  EXPECT_GT(first, at_last);
}

TEST(BatchStream, LeavesOutRecordsOverTheLimit) {
  BatchStream stream({.spec = corpus::TrainSpec(), .max_sample_tokens = 200}, Encoder());
  for (int i = 0; i < 20; ++i) {
    for (const Sample& sample : stream.Next()) EXPECT_LE(sample.tokens.size(), 200u);
  }
}

TEST(BatchStream, EveryOtherBatchIsAnExercise) {
  BatchStream stream({.spec = corpus::TrainSpec(), .echo_batches = 4, .exercise_ramp_batches = 40},
                     Encoder());
  double corpus_answers = 0;
  double exercise_answers = 0;
  for (int i = 0; i < 80; ++i) {
    const std::vector<Sample> batch = stream.Next();
    const Sample& sample = batch.front();
    const auto half = static_cast<int64_t>(sample.tokens.size() / 2);
    const bool echo =
        std::equal(sample.tokens.begin(), sample.tokens.begin() + half, sample.tokens.end() - half);
    EXPECT_EQ(echo, i == 1 || i == 3) << i;
    if (i < 4) continue;
    double answers = 0;
    double tokens = 0;
    for (const Sample& s : batch) {
      for (size_t t = 1; t < s.answer.size(); ++t) answers += s.answer[t] && !s.answer[t - 1];
      tokens += static_cast<double>(s.tokens.size());
    }
    (i % 2 == 1 ? exercise_answers : corpus_answers) += answers / tokens;
  }
  EXPECT_GT(exercise_answers, 1.5 * corpus_answers);
}

// Looking up (key, relation) among the facts finds every answer.
TEST(Drills, RecallQuestionsAreAnsweredByTheFacts) {
  corpus::Rng rng(5);
  for (int round = 0; round < 200; ++round) {
    const RecallShape shape = DrawRecallShape(rng, round / 200.0);
    const Sample sample = RecallSample(rng, 1536, shape);
    ASSERT_EQ(sample.tokens.size(), sample.answer.size());
    ASSERT_EQ(sample.tokens.size(), RecallSample(rng, 1536, shape).tokens.size());
    const auto facts_end = sample.tokens.begin() + static_cast<int64_t>(sample.last_answer);
    int questions = 0;
    for (size_t i = 1; i < sample.tokens.size(); ++i) {
      if (!sample.answer[i] || sample.answer[i - 1]) continue;
      ++questions;
      EXPECT_GE(i, sample.last_answer);
      const auto value = sample.tokens.begin() + static_cast<int64_t>(i);
      EXPECT_NE(std::search(sample.tokens.begin(), facts_end, value, value + shape.value_tokens),
                facts_end);
    }
    EXPECT_EQ(questions, shape.questions);
  }
}

}  // namespace
}  // namespace withy::train
