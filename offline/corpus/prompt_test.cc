#include "offline/corpus/prompt.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "offline/corpus/generator.h"
#include "offline/corpus/json.h"
#include "offline/corpus/rng.h"
#include "offline/corpus/shorten.h"

namespace withy::corpus {
namespace {

Record TwoMessages() {
  Record record;
  record.messages = {{"system", "be  brief now", {{0, 2}}},
                     {"user", "Ann has a red car\nand Bob a dog \nWho has it?", {{33, 44}}}};
  record.answer = "Ann";
  return record;
}

TEST(Prompt, WordsAreThoseOfTheTextThatTheTlmReads) {
  const Prompt prompt = MakePrompt(TwoMessages());
  EXPECT_EQ(prompt.text, "be  brief now\nAnn has a red car\nand Bob a dog \nWho has it?");
  ASSERT_EQ(prompt.words.size(), 15u);
  EXPECT_TRUE(prompt.words[0].fixed);
  EXPECT_FALSE(prompt.words[1].fixed);
  EXPECT_TRUE(prompt.words[14].fixed);
  EXPECT_EQ(prompt.text.substr(prompt.text_words[3].begin, 3), "Ann");
}

TEST(Prompt, KeepsFixedWordsAndTheBestOthers) {
  const Prompt prompt = MakePrompt(TwoMessages());
  std::vector<float> keep(prompt.words.size(), 0.1f);
  keep[6] = 0.9f;   // red
  keep[9] = 0.8f;   // Bob
  keep[11] = 0.7f;  // dog
  const Record half = KeepWords(prompt, ChooseWords(prompt, keep, 46));
  EXPECT_EQ(half.messages[0].content, "be");
  EXPECT_EQ(half.messages[1].content, "red\nBob dog \nWho has it?");
  const Record whole = KeepWords(prompt, ChooseWords(prompt, keep, 100));
  EXPECT_EQ(whole.messages[1].content, prompt.record.messages[1].content);
  const Record least = KeepWords(prompt, ChooseWords(prompt, keep, 1));
  EXPECT_EQ(least.messages[1].content, "Who has it?");
}

TEST(Prompt, ExamplesGoWithTheirRoles) {
  Record record = TwoMessages();
  record.messages.insert(record.messages.begin() + 1,
                         {{"user", "Who sings?", {{0, 10}}}, {"assistant", "Ann does", {}}});
  const Prompt fixed = MakePrompt(record);
  std::vector<float> keep(fixed.words.size(), 0.5f);
  EXPECT_EQ(KeepWords(fixed, ChooseWords(fixed, keep, 60)).messages.size(), 4u);

  const Record free = FreeExamples(record);
  EXPECT_TRUE(free.messages[1].fixed.empty());
  EXPECT_EQ(free.messages[0].fixed.size(), 1u);
  EXPECT_EQ(free.messages[3].fixed.size(), 1u);
  const Prompt prompt = MakePrompt(free);
  EXPECT_EQ(ShareWithoutExamples(fixed), 100u);
  EXPECT_LT(ShareWithoutExamples(prompt), 100u);
  EXPECT_EQ(KeepWords(prompt,
                      ChooseWords(prompt, keep, static_cast<int32_t>(ShareWithoutExamples(prompt))))
                .messages.size(),
            2u);
  const Record without = KeepWords(prompt, ChooseWords(prompt, keep, 80));
  ASSERT_EQ(without.messages.size(), 2u);
  EXPECT_EQ(without.messages[0].content, record.messages[0].content);
  EXPECT_EQ(without.messages[1].content, record.messages[3].content);
}

size_t Words(const Record& record) { return MakePrompt(record).words.size(); }

TEST(Shorten, KeepsWhatIsFixedAndWhatTheAssistantSaid) {
  Spec spec = TrainSpec();
  spec.five_shot_percent = 50;
  const Generator generator(spec);
  size_t all = 0;
  size_t kept = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    const Record record = generator.At(i);
    Rng rng(i);
    const Record shortened = Shorten(record, rng);
    ASSERT_EQ(shortened.messages.size(), record.messages.size());
    EXPECT_EQ(shortened.answer, record.answer);
    for (size_t m = 0; m < record.messages.size(); ++m) {
      const Message& before = record.messages[m];
      const Message& after = shortened.messages[m];
      EXPECT_EQ(after.role, before.role);
      if (before.role == "assistant") {
        EXPECT_EQ(after.content, before.content);
      }
      for (const Span& span : before.fixed) {
        const std::string fixed = before.content.substr(span.begin, span.end - span.begin);
        EXPECT_NE(after.content.find(fixed), std::string::npos) << fixed << "\n" << after.content;
      }
    }
    all += Words(record);
    kept += Words(shortened);
  }
  EXPECT_GT(kept, all / 2);
  EXPECT_LT(kept, all * 4 / 5);
}

// The source of the answer is dropped last, so that most shortened records can still be answered.
TEST(Shorten, LeavesTheAnswersWordsInMostRecords) {
  const Generator generator(TrainSpec());
  size_t before = 0;
  size_t after = 0;
  for (uint64_t i = 0; i < 500; ++i) {
    Record record = generator.At(i, Task::kSummary, kMaxDifficulty);
    const std::string who = record.answer.substr(5, record.answer.find(';') - 5);
    Rng rng(i);
    before += record.messages.back().content.find(who) != std::string::npos;
    after += Shorten(record, rng).messages.back().content.find(who) != std::string::npos;
  }
  ASSERT_GT(before, 400u);
  EXPECT_GT(after, before * 9 / 10);
}

TEST(Shorten, IsTheSameForTheSameSeed) {
  const Record record = Generator(TrainSpec()).At(4, Task::kQa, kMaxDifficulty);
  Rng one(7);
  Rng two(7);
  Rng three(8);
  EXPECT_EQ(ToJson(Shorten(record, one)), ToJson(Shorten(record, two)));
  EXPECT_NE(ToJson(Shorten(record, three)), ToJson(Shorten(record, three)));
}

}  // namespace
}  // namespace withy::corpus
