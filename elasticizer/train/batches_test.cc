#include "elasticizer/train/batches.h"

#include <gtest/gtest.h>

#include <string>

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
  const BatchOptions options{.spec = corpus::TrainSpec()};
  BatchStream whole(options, Encoder());
  for (int i = 0; i < 150; ++i) whole.Next();  // into the second window
  BatchStream resumed(options, Encoder());
  resumed.Seek(whole.position());
  for (int i = 0; i < 5; ++i) {
    const std::vector<Sample> expected = whole.Next();
    const std::vector<Sample> actual = resumed.Next();
    ASSERT_EQ(expected.size(), actual.size());
    for (size_t s = 0; s < expected.size(); ++s) EXPECT_EQ(expected[s].tokens, actual[s].tokens);
  }
}

TEST(BatchStream, LeavesOutRecordsOverTheLimit) {
  BatchStream stream({.spec = corpus::TrainSpec(), .max_sample_tokens = 200}, Encoder());
  for (int i = 0; i < 20; ++i) {
    for (const Sample& sample : stream.Next()) EXPECT_LE(sample.tokens.size(), 200u);
  }
}

}  // namespace
}  // namespace withy::train
