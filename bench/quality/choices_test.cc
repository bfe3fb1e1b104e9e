#include "bench/quality/choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/test_seed.h"
#include "engine/model/bundle.h"

namespace withy::bench {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kArc[] =
    R"({"id": "q", "question": {"stem": "Why?", "choices": [{"text": "so", "label": "1"}, )"
    R"({"text": "not so", "label": "2"}]}, "answerKey": "2"})";
constexpr char kHellaSwag[] =
    R"({"activity_label": "Baking", "ctx_a": "A man bakes. [step] He waits.", "ctx_b": "he", )"
    R"("ctx": "x", "endings": ["eats [title] Enjoy it", "leaves"], "label": "0"})";
constexpr char kPiqa[] = R"({"goal": "dry hands", "sol1": "use a towel", "sol2": "use a spoon"})";
constexpr char kBoolQ[] = R"({"question": "is it so", "passage": "It is so.", "answer": true})";
constexpr char kWinoGrande[] =
    R"({"sentence": "Ann thanked Eve because _ had helped.", "option1": "Ann", "option2": "Eve", )"
    R"("answer": "2"})";
constexpr char kQuery[] = R"({"query": "Q: 1 + 1?\nA: ", "choices": ["1", " 2"], "gold": 1})";
constexpr char kContexts[] =
    R"({"context_options": ["so Ann", "so Eve"], "continuation": "won.", "gold": 0})";

ChoiceQuestion Only(std::string_view line, std::string_view labels = "") {
  const auto questions = ParseChoices(line, labels, "file");
  EXPECT_TRUE(questions.ok()) << questions.status();
  return questions.ok() && questions->size() == 1 ? questions->front() : ChoiceQuestion();
}

std::vector<std::string> Contexts(const ChoiceQuestion& question) {
  std::vector<std::string> out;
  for (const Choice& choice : question.choices) out.push_back(choice.context);
  return out;
}

std::vector<std::string> Choices(const ChoiceQuestion& question) {
  std::vector<std::string> out;
  for (const Choice& choice : question.choices) out.push_back(choice.text);
  return out;
}

TEST(ChoicesTest, EachPublishedFormIsToldByItsKeys) {
  EXPECT_THAT(Contexts(Only(kArc)),
              ElementsAre("Question: Why?\nAnswer:", "Question: Why?\nAnswer:"));
  EXPECT_THAT(Choices(Only(kArc)), ElementsAre(" so", " not so"));
  EXPECT_EQ(Only(kArc).right, 1u);
  EXPECT_THAT(Contexts(Only(kHellaSwag)), ElementsAre("Baking: A man bakes. He waits. He",
                                                      "Baking: A man bakes. He waits. He"));
  EXPECT_THAT(Choices(Only(kHellaSwag)), ElementsAre(" eats. Enjoy it", " leaves"));
  EXPECT_EQ(Only(kHellaSwag).right, 0u);
  EXPECT_THAT(Choices(Only(kPiqa, "1\n")), ElementsAre(" use a towel", " use a spoon"));
  EXPECT_EQ(Only(kPiqa, "1\n").right, 1u);
  EXPECT_EQ(Contexts(Only(kBoolQ))[0], "It is so.\nQuestion: is it so?\nAnswer:");
  EXPECT_EQ(Only(kBoolQ).right, 1u);
  EXPECT_THAT(Contexts(Only(kWinoGrande)),
              ElementsAre("Ann thanked Eve because Ann", "Ann thanked Eve because Eve"));
  EXPECT_THAT(Choices(Only(kWinoGrande)), ElementsAre(" had helped.", " had helped."));
  EXPECT_EQ(Only(kWinoGrande).right, 1u);
  EXPECT_THAT(Contexts(Only(kQuery)), ElementsAre("Q: 1 + 1?\nA:", "Q: 1 + 1?\nA:"));
  EXPECT_THAT(Choices(Only(kQuery)), ElementsAre(" 1", " 2"));
  EXPECT_THAT(Choices(Only(kContexts)), ElementsAre(" won.", " won."));
}

TEST(ChoicesTest, WhatIsNoQuestionIsNamed) {
  const auto refusal = [](std::string_view lines, std::string_view labels = "") {
    return std::string(ParseChoices(lines, labels, "test.jsonl").status().message());
  };
  const std::string good = absl::StrCat(kArc, "\n");
  for (
      const char* bad :
      {"[1]", "{", "null", "{}", R"({"query": "a", "choices": ["b"], "gold": 0})",
       R"({"query": "a", "choices": ["b", "c"], "gold": 2})",
       R"({"query": "a", "choices": ["b", "c"], "gold": -1})",
       R"({"query": "a", "choices": ["b", 3], "gold": 0})",
       R"({"goal": "a", "sol1": "b", "sol2": "c"})",
       R"({"sentence": "no gap", "option1": "b", "option2": "c", "answer": "1"})",
       R"({"sentence": "_", "option1": "b", "option2": "c", "answer": "0"})",
       R"({"question": "a", "passage": "b", "answer": "true"})",
       R"({"question": {"stem": "a", "choices": [{"text": "b", "label": "A"}]}, "answerKey": "B"})"}) {
    EXPECT_THAT(refusal(absl::StrCat(good, bad)),
                AllOf(HasSubstr("test.jsonl, line 2"), HasSubstr("ARC, HellaSwag")))
        << bad;
  }
  EXPECT_THAT(refusal("\n\n"), HasSubstr("test.jsonl has no question"));
  EXPECT_THAT(refusal(kPiqa, "0\n1\n"), HasSubstr("1 questions and its labels' file 2 labels"));
}

TEST(ChoicesTest, DamagedLinesGiveARefusalOrAQuestion) {
  std::mt19937_64 random(TestSeed());
  const std::vector<std::string> lines = {kArc,        kHellaSwag, kPiqa,    kBoolQ,
                                          kWinoGrande, kQuery,     kContexts};
  for (int i = 0; i < 2000; ++i) {
    std::string line = lines[random() % lines.size()];
    for (uint64_t n = random() % 4; n-- > 0;) {
      const size_t at = random() % line.size();
      if (random() % 2 == 0) {
        line[at] = static_cast<char>(random());
      } else {
        line.erase(at, random() % 8);
      }
      if (line.empty()) line = "{";
    }
    const auto questions = ParseChoices(line, random() % 2 == 0 ? "0" : "", "file");
    if (!questions.ok()) continue;
    for (const ChoiceQuestion& question : *questions) {
      ASSERT_GE(question.choices.size(), 2u) << line;
      ASSERT_LT(question.right, question.choices.size()) << line;
    }
  }
}

TEST(ChoicesTest, QuestionsAreSpreadEvenly) {
  std::vector<ChoiceQuestion> questions;
  for (size_t i = 0; i < 10; ++i) questions.push_back({.right = i});
  const std::vector<ChoiceQuestion> spread = SpreadChoices(questions, 4);
  std::vector<size_t> kept;
  for (const ChoiceQuestion& question : spread) kept.push_back(question.right);
  EXPECT_THAT(kept, ElementsAre(0, 2, 5, 7));
  EXPECT_EQ(SpreadChoices(questions, 10).size(), 10u);
}

// The log-likelihood of `text` behind `context`, from the logits of one pass.
double LogLikelihood(engine::Model& model, const engine::Tokenizer& tokenizer,
                     const Choice& choice) {
  const engine::EncodeOptions options = {.add_bos = tokenizer.wants_bos()};
  const size_t seam = tokenizer.Encode(choice.context, options).size();
  const std::vector<int32_t> ids = tokenizer.Encode(choice.context + choice.text, options);
  engine::ScoredText text = {.ids = ids, .first_scored = static_cast<int32_t>(seam)};
  const auto scorer =
      engine::TextScorer::Create({{.model = &model}}, text, {.report_tokens = true});
  EXPECT_TRUE(scorer.ok()) << scorer.status();
  double sum = 0;
  while (!(*scorer)->finished()) {
    EXPECT_TRUE((*scorer)->Run(nullptr).ok());
    for (const engine::Sample& token : (*scorer)->Fresh()) sum += token.logprob;
  }
  return sum;
}

TEST(ChoicesTest, TheLikeliestTextIsChosen) {
  const auto bundle = engine::OpenBundle("models/withy-pocket-q8_0.gguf", {});
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  ChoiceQuestion question = Only(kArc);
  question.choices.push_back({.context = question.choices[0].context, .text = " because of it"});
  size_t likeliest = 0;
  double best = -1e300;
  for (size_t i = 0; i < question.choices.size(); ++i) {
    const double found = LogLikelihood(*bundle->model, *bundle->tokenizer, question.choices[i]);
    if (found > best) likeliest = i, best = found;
  }
  for (size_t right = 0; right < question.choices.size(); ++right) {
    question.right = right;
    const std::vector<ChoiceQuestion> questions(2, question);
    const auto shares =
        AskChoices(questions, *bundle->tokenizer,
                   {{.model = bundle->model.get()}, {.model = bundle->model.get(), .level = 0}},
                   [](size_t) {});
    ASSERT_TRUE(shares.ok()) << shares.status();
    ASSERT_EQ(shares->size(), 2u);
    EXPECT_DOUBLE_EQ((*shares)[0].right, right == likeliest ? 1.0 : 0.0);
    EXPECT_DOUBLE_EQ((*shares)[0].agreed, 1.0);
  }
}

}  // namespace
}  // namespace withy::bench
