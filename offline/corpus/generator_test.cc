#include "offline/corpus/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>

#include "offline/corpus/author.h"
#include "offline/corpus/json.h"

namespace withy::corpus {
namespace {

constexpr uint64_t kRecords = 3000;

std::set<std::string> Collect(const Spec& spec, std::vector<std::string> Record::*field) {
  const Generator generator(spec);
  std::set<std::string> all;
  for (uint64_t i = 0; i < kRecords; ++i) {
    const Record record = generator.At(i);
    all.insert((record.*field).begin(), (record.*field).end());
  }
  return all;
}

std::set<std::string> Common(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::set<std::string> common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(),
                        std::inserter(common, common.end()));
  return common;
}

// Lower-case words, which are those of the templates; names are capitalised.
std::set<std::string> PlainWords(const Spec& spec) {
  const Generator generator(spec);
  std::set<std::string> words;
  for (uint64_t i = 0; i < kRecords; ++i) {
    for (const Message& message : generator.At(i).messages) {
      std::string word;
      for (const char c : message.content + " ") {
        if (std::isalpha(static_cast<unsigned char>(c))) {
          word += c;
        } else {
          if (!word.empty() && std::islower(static_cast<unsigned char>(word[0])))
            words.insert(word);
          word.clear();
        }
      }
    }
  }
  return words;
}

TEST(Generator, AnIndexAlwaysGivesTheSameRecord) {
  const Generator first(HeldOutSpec());
  const Generator second(HeldOutSpec());
  for (uint64_t i = 0; i < 300; ++i) {
    EXPECT_EQ(ToJson(first.At(i)), ToJson(second.At(i))) << i;
  }
}

// The bytes are equal on every platform; a change here is another corpus.
TEST(Generator, WritesTheBytesItAlwaysWrote) {
  const Generator generator(HeldOutSpec());
  const Record record = generator.At(4);
  EXPECT_EQ(record.id, "heldout-20261121-4");
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (uint64_t i = 0; i < 600; ++i) {
    for (const char c : ToJson(generator.At(i))) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
    }
  }
  EXPECT_EQ(hash, 3411034751633968288ULL);
}

TEST(Generator, SplitsShareNoWording) {
  EXPECT_TRUE(
      Common(Collect(TrainSpec(), &Record::wordings), Collect(HeldOutSpec(), &Record::wordings))
          .empty());
}

TEST(Generator, SplitsShareNoEntity) {
  const auto train = Collect(TrainSpec(), &Record::entities);
  const auto held_out = Collect(HeldOutSpec(), &Record::entities);
  EXPECT_TRUE(Common(train, held_out).empty());
  EXPECT_GT(held_out.size(), 1000u);
}

TEST(Generator, HeldOutWordingsUseWordsThatTrainingKnows) {
  const auto train = PlainWords(TrainSpec());
  for (const std::string& word : PlainWords(HeldOutSpec())) {
    EXPECT_TRUE(train.contains(word)) << word;
  }
}

TEST(Generator, EveryTaskHasTwelveTrainingAndFourHeldOutWordings) {
  const auto count = [](const Spec& spec) {
    std::map<std::string, int> by_task;
    for (const std::string& wording : Collect(spec, &Record::wordings)) {
      ++by_task[wording.substr(0, wording.find_first_of("./"))];
    }
    return by_task;
  };
  std::map<std::string, int> train = count(TrainSpec());
  std::map<std::string, int> held_out = count(HeldOutSpec());
  for (const std::string_view task : kTaskNames) {
    EXPECT_GE(train[std::string(task)], 12) << task;
    EXPECT_GE(held_out[std::string(task)], 4) << task;
  }
}

TEST(Generator, TasksAndDifficultiesAreEqual) {
  const Generator generator(HeldOutSpec());
  std::map<std::pair<Task, int>, int> counts;
  for (uint64_t i = 0; i < 600; ++i) {
    const Record record = generator.At(i);
    ++counts[{record.task, record.difficulty}];
  }
  EXPECT_EQ(counts.size(), 30u);
  for (const auto& [cell, count] : counts) EXPECT_EQ(count, 20);
}

TEST(Generator, FixedSpansLieInTheirMessagesAndHoldTheQuestion) {
  const Generator generator(HeldOutSpec());
  for (uint64_t i = 0; i < 600; ++i) {
    const Record record = generator.At(i);
    for (const Message& message : record.messages) {
      EXPECT_EQ(message.fixed.empty(), message.role == "assistant");
      for (const Span& span : message.fixed) {
        EXPECT_LT(span.begin, span.end);
        EXPECT_LE(span.end, message.content.size());
      }
    }
    const Message& last = record.messages.back();
    EXPECT_EQ(last.role, "user");
    EXPECT_EQ(last.fixed.back().end, last.content.size());
  }
}

TEST(Generator, WorkedExamplesAreTurnsOfTheirOwn) {
  const Generator generator(HeldOutSpec());
  int with_examples = 0;
  for (uint64_t i = 0; i < 600; ++i) {
    const Record record = generator.At(i);
    EXPECT_EQ(record.messages.size(), 2u + 2u * static_cast<size_t>(record.shots));
    EXPECT_TRUE(record.shots == 0 || record.shots == 5);
    with_examples += record.shots == 5 ? 1 : 0;
  }
  EXPECT_NEAR(with_examples, 120, 40);
}

TEST(Generator, WhatTheAnswerNamesStandsInThePrompt) {
  const Generator generator(HeldOutSpec());
  for (uint64_t i = 1; i < 600; i += kTaskCount) {  // qa
    const Record record = generator.At(i);
    const std::string value = record.answer.substr(std::string("Answer: ").size());
    EXPECT_NE(record.messages.back().content.find(value), std::string::npos) << record.id;
  }
}

TEST(Generator, HarderPromptsAreLonger) {
  Spec spec = HeldOutSpec();
  spec.five_shot_percent = 0;
  spec.max_filler = 0;
  const Generator generator(spec);
  for (const Task task : {Task::kApi, Task::kQa, Task::kReply, Task::kUi, Task::kSummary}) {
    size_t bytes[2] = {0, 0};
    for (uint64_t i = 0; i < 50; ++i) {
      bytes[0] += generator.At(i, task, 1).messages.back().content.size();
      bytes[1] += generator.At(i, task, 5).messages.back().content.size();
    }
    EXPECT_GT(bytes[1], bytes[0] * 3 / 2) << TaskName(task);
  }
}

TEST(Fill, ReplacesSlotsInAnyOrderAndKeepsOtherSigns) {
  EXPECT_EQ(Fill("%2 is 5% of %1", {"b", "a"}), "a is 5% of b");
}

// Every element of a screen is asked for once, and the answer's id is on the line with the
// requested label.
TEST(Generator, FollowUpsAskForSomethingElseOnTheSameContext) {
  Spec spec = TrainSpec();
  spec.five_shot_percent = 0;
  spec.few_shot_percent = 0;
  spec.follow_ups = 20;
  const Generator generator(spec);
  for (uint64_t i = 0; i < 50; ++i) {
    const Record record = generator.At(i, Task::kUi, kMaxDifficulty);
    std::vector<std::string> questions;
    std::vector<std::string> answers;
    for (const Message& message : record.messages) {
      if (message.role == "assistant") answers.push_back(message.content);
      if (message.role == "user") {
        const Span& fixed = message.fixed.front();
        questions.push_back(message.content.substr(fixed.begin, fixed.end - fixed.begin));
      }
    }
    answers.push_back(record.answer);
    EXPECT_EQ(questions.size(), 9u);
    ASSERT_EQ(questions.size(), answers.size());
    EXPECT_EQ(std::set<std::string>(questions.begin(), questions.end()).size(), questions.size());
    const std::string& screen = record.messages[1].content;
    for (size_t q = 0; q < questions.size(); ++q) {
      if (answers[q] == "none") continue;
      const size_t open = answers[q].find('(');
      const std::string id = answers[q].substr(open + 1, answers[q].find_first_of(",)") - open - 1);
      const size_t line = screen.find("[" + id + "] ");
      ASSERT_NE(line, std::string::npos) << answers[q] << "\n" << screen;
      const size_t label = line + id.size() + 3;
      const std::string named = screen.substr(label, screen.find_first_of(":\n", label) - label);
      EXPECT_NE(questions[q].find(named), std::string::npos) << questions[q] << "\n" << screen;
    }
  }
}

}  // namespace
}  // namespace withy::corpus
