// Prompts are pruned as by the service, and labels are correct.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "engine/encoder/testing.h"
#include "offline/corpus/generator.h"
#include "offline/corpus/prompt.h"
#include "offline/tlm/decision_table.h"
#include "offline/tlm/line_file.h"
#include "offline/tlm/prompt_file.h"
#include "offline/tlm/score_labels.h"
#include "offline/tlm/target.h"

namespace withy::tlm {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(RetainProbabilities, FollowTheRankAndLeaveOutWhatIsNotAsked) {
  EXPECT_THAT(
      RetainProbabilities(std::vector<double>{0.5, 9, -1, 3, 2}, {true, true, true, false, true}),
      ElementsAre(testing::FloatNear(1.0f / 3, 1e-6f), 1.0f, 0.0f, -1.0f,
                  testing::FloatNear(2.0f / 3, 1e-6f)));
  EXPECT_THAT(RetainProbabilities(std::vector<double>{1, 1, 1}, {true, true, true}), Each(0.5f));
}

TEST(ScoreExample, ComesBackFromItsLine) {
  const ScoreExample example{
      .text = "a b c", .words = {{0, 1}, {2, 3}, {4, 5}}, .keep = {1, -1, 0.25f}};
  const auto back = ParseScoreExample(ToLine(example), "labels");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->text, example.text);
  EXPECT_EQ(back->words, example.words);
  EXPECT_EQ(back->keep, example.keep);
  const auto plain = ParseScoreExample(R"({"text": "a b", "keep": [0, 1]})", "labels");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->words.size(), 2u);
}

TEST(ScoreExample, SaysWhatIsWrong) {
  const auto error = [](const char* line) {
    return std::string(ParseScoreExample(line, "labels, line 3").status().message());
  };
  EXPECT_THAT(error("nothing"), HasSubstr("labels, line 3: is not a JSON object"));
  EXPECT_THAT(error(R"({"keep": []})"), HasSubstr("no string \"text\""));
  EXPECT_THAT(error(R"({"text": "a b", "keep": [1]})"), HasSubstr("1 entries for 2 words"));
  EXPECT_THAT(error(R"({"text": "a b", "keep": [1, 2]})"), HasSubstr("from 0 to 1"));
  EXPECT_THAT(error(R"({"text": "a b", "words": [[0, 9]], "keep": [1]})"), HasSubstr("pairs"));
}

TEST(OwnPrompts, AreTextsOrMessages) {
  const auto text = ParseOwnPrompt(R"({"prompt": "Who?", "id": 7})", "file");
  ASSERT_TRUE(text.ok()) << text.status();
  ASSERT_EQ(text->messages.size(), 1u);
  EXPECT_EQ(text->messages[0].role, "user");
  EXPECT_EQ(text->messages[0].content, "Who?");
  const auto chat = ParseOwnPrompt(
      R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]})",
      "file");
  ASSERT_TRUE(chat.ok()) << chat.status();
  ASSERT_EQ(chat->messages.size(), 2u);
  EXPECT_EQ(chat->messages[0].role, "system");
  EXPECT_EQ(chat->messages[1].content, "Who?");
  const auto error = [](const char* line) {
    return std::string(ParseOwnPrompt(line, "file, line 3").status().message());
  };
  EXPECT_THAT(error("Who?"), HasSubstr("file, line 3: is not a JSON object; a line is {"));
  EXPECT_THAT(error("{}"), HasSubstr("exactly one of"));
  EXPECT_THAT(error(R"({"prompt": "a", "messages": []})"), HasSubstr("exactly one of"));
  EXPECT_THAT(error(R"({"prompt": 1})"), HasSubstr("not a string"));
  EXPECT_THAT(error(R"({"prompt": ""})"), HasSubstr("the user says nothing"));
  EXPECT_THAT(error(R"({"messages": "a"})"), HasSubstr("not a list"));
  EXPECT_THAT(error(R"({"messages": [{"role": "user"}]})"), HasSubstr("lacks the string"));
  EXPECT_THAT(error(R"({"messages": [{"role": "assistant", "content": "a"}]})"),
              HasSubstr("does not end with a message of the user"));
}

TEST(OwnPrompts, OfAFileAreLimited) {
  const engine::TempFolder folder("own_prompts");
  const std::string path = folder / "prompts.jsonl";
  EXPECT_EQ(ReadOwnPrompts(path, 5).status().code(), absl::StatusCode::kNotFound);
  std::ofstream out(path);
  out << R"({"prompt": ")" << std::string(kMaxOwnPromptBytes + 1, 'x') << "\"}\n\n";
  out.flush();
  EXPECT_EQ(ReadOwnPrompts(path, 5).status().code(), absl::StatusCode::kInvalidArgument);
  for (const char* text : {"one", "two", "three"}) out << R"({"prompt": ")" << text << "\"}\n";
  out.flush();
  const auto prompts = ReadOwnPrompts(path, 2);
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_EQ(prompts->too_long, 1);
  ASSERT_EQ(prompts->records.size(), 2u);
  EXPECT_EQ(prompts->records[1].messages[0].content, "two");
  out << "four\n";
  out.flush();
  EXPECT_THAT(std::string(ReadOwnPrompts(path, 2).status().message()), HasSubstr(", line 6: "));
}

// Two prompt levels and three model levels with costs of 25, 50 and 100 %.
DecisionSpace SmallSpace() {
  return {.prompt_levels = {50, 100},
          .model_levels = {20, 60, 100},
          .flops = {0.25, 0.5, 1},
          .bytes = {0.25, 0.5, 1}};
}

TEST(DecisionTable, KnowsWhatAnSloLeaves) {
  const DecisionSpace space = SmallSpace();
  const DecisionRow row{.tokens = {60, 100}, .right = {0, 1, 0, 0, 1, 1}};
  EXPECT_EQ(CostOf(space, row, 1).ttft, 0.6 * 0.5);
  EXPECT_EQ(CostOf(space, row, 1).tpot, 0.5);
  EXPECT_THAT(Feasible(space, row, {0.3, 0.5}), ElementsAre(0, 1, 3)) << "met exactly is met";
  EXPECT_THAT(Frontier(space, row, {0.3, 0.5}), ElementsAre(1, 3)) << "0 is less of both";
  EXPECT_THAT(Frontier(space, row, {1, 1}), ElementsAre(5));
  EXPECT_THAT(Frontier(space, row, {0.01, 1}), ElementsAre());

  const std::vector<double> mean = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6};
  EXPECT_EQ(DefaultPair(space, row, mean, {0.3, 0.5}), 3u) << "right most often elsewhere";
  EXPECT_EQ(DefaultPair(space, row, mean, {0.01, 1}), 0u) << "none is feasible: the fastest";
}

TEST(DecisionRow, ComesBackFromItsLine) {
  const DecisionRow row{.tokens = {60, 100}, .right = {0, 1, 0, 0, 1, 1}};
  const auto back = ParseDecisionRow(ToLine(row), SmallSpace(), "table");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->tokens, row.tokens);
  EXPECT_EQ(back->right, row.right);
  EXPECT_THAT(std::string(ParseDecisionRow("{}", SmallSpace(), "table, line 2").status().message()),
              HasSubstr("table, line 2: is not a row of 2 x 3 levels"));
}

TEST(LineFile, GoesOnAfterAnUnfinishedLine) {
  const engine::TempFolder folder("line_file");
  const std::string path = folder / "lines";
  int made = 0;
  const auto make = [&made](size_t index, int) -> absl::StatusOr<std::string> {
    ++made;
    return std::to_string(index);
  };
  {
    auto file = LineFile::Open(path, "a run");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(FillLines(3, 1, make, nullptr, &*file).ok());
  }
  std::ofstream(path, std::ios::app) << "unfinish";
  auto file = LineFile::Open(path, "a run");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->lines(), ElementsAre("0", "1", "2"));
  ASSERT_TRUE(FillLines(5, 1, make, nullptr, &*file).ok());
  EXPECT_THAT(file->lines(), ElementsAre("0", "1", "2", "3", "4"));
  EXPECT_EQ(made, 5);
}

// Other files in the directory have the same inputs, so removing the lines alone is not enough.
TEST(LineFile, OfAnotherRunNamesBothAndTheDirectory) {
  const engine::TempFolder folder("line_file");
  ASSERT_TRUE(LineFile::Open(folder / "lines", "a run").ok());
  const absl::Status status = LineFile::Open(folder / "lines", "another run").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("\"a run\", not from \"another run\": give another --run"));
  EXPECT_THAT(message, HasSubstr("the whole directory " +
                                 std::filesystem::path(folder / "lines").parent_path().string()));
}

class TargetTest : public testing::Test {
 protected:
  TargetTest() : folder_("tlm_target") {
    engine::ModelOptions options;
    options.threads = 1;
    options.cache_dir = folder_ / "";
    auto target = Target::Open("models/withy-pocket-q8_0.gguf", options);
    EXPECT_TRUE(target.ok()) << target.status();
    if (target.ok()) target_ = *std::move(target);
  }

  int32_t full_level() const { return static_cast<int32_t>(target_->info().levels.size()) - 1; }

  engine::TempFolder folder_;
  std::unique_ptr<Target> target_;
};

// The prefix a variant shares with the first record is not recomputed, without changing the result.
TEST_F(TargetTest, AVariantIsJudgedAsIfItStoodAlone) {
  ASSERT_NE(target_, nullptr);
  const corpus::Prompt prompt = corpus::MakePrompt(corpus::Generator(corpus::TrainSpec()).At(1));
  ASSERT_TRUE(target_->JudgeFirst(prompt.record).ok());
  for (const size_t word : {prompt.words.size() - 1, prompt.words.size() / 2, size_t{0}}) {
    std::vector<bool> stays(prompt.words.size(), true);
    stays[word] = false;
    const corpus::Record without = corpus::KeepWords(prompt, stays);
    const auto a = target_->JudgeVariant(without);
    const auto b = target_->Judge(without, full_level());
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->loss, b->loss) << word;
    EXPECT_EQ(a->right, b->right);
    EXPECT_EQ(a->prompt_tokens, b->prompt_tokens);
  }
}

// Words that the answer repeats are worth more than others.
TEST_F(TargetTest, LabelsFindTheWordsThatMatter) {
  ASSERT_NE(target_, nullptr);
  corpus::Spec spec = corpus::TrainSpec();
  spec.five_shot_percent = 0;
  spec.few_shot_percent = 0;
  const corpus::Generator generator(spec);
  double answer = 0;
  double others = 0;
  int answer_words = 0;
  int other_words = 0;
  for (uint64_t i = 0; i < 10; ++i) {
    const corpus::Prompt prompt = corpus::MakePrompt(generator.At(i, corpus::Task::kQa, 1));
    const auto example = LabelByLoss(prompt, 64, target_.get());
    ASSERT_TRUE(example.ok()) << example.status();
    ASSERT_EQ(example->keep.size(), prompt.words.size());
    for (size_t w = 0; w < prompt.words.size(); ++w) {
      EXPECT_EQ(prompt.words[w].fixed, example->keep[w] < 0);
      if (example->keep[w] < 0) continue;
      const engine::ByteSpan span = prompt.text_words[w];
      std::string word = prompt.text.substr(span.begin, span.end - span.begin);
      while (!word.empty() && !std::isalnum(static_cast<unsigned char>(word.back()))) {
        word.pop_back();
      }
      const bool said = word.size() > 2 && prompt.record.answer.find(word) != std::string::npos;
      (said ? answer : others) += example->keep[w];
      ++(said ? answer_words : other_words);
    }
  }
  ASSERT_GT(answer_words, 5);
  EXPECT_GT(answer / answer_words, 0.8);
  EXPECT_LT(others / other_words, 0.55);
}

TEST_F(TargetTest, TraversesEveryPair) {
  ASSERT_NE(target_, nullptr);
  const corpus::Prompt prompt = corpus::MakePrompt(corpus::Generator(corpus::TrainSpec()).At(7));
  const DecisionSpace space = MakeSpace(target_->info(), {20, 60, 100});
  const std::vector<float> keep(prompt.words.size(), 0.5f);
  const auto row = Traverse(prompt, keep, space, target_.get());
  ASSERT_TRUE(row.ok()) << row.status();
  ASSERT_EQ(row->right.size(), space.pairs());
  EXPECT_EQ(space.pairs(), 3 * target_->info().levels.size());
  EXPECT_LT(row->tokens[0], row->tokens[1]);
  EXPECT_LT(row->tokens[1], row->tokens[2]);
  EXPECT_EQ(row->tokens[2], target_->Judge(prompt.record, full_level())->prompt_tokens);
}

// By the file's own template, without the corpus' markup: the full model's own answer to the whole
// prompt is right, and what is right at a level is so by the tokens.
TEST_F(TargetTest, AnyModelIsHeldAgainstItsOwnAnswers) {
  engine::ModelOptions options;
  options.threads = 1;
  options.cache_dir = folder_ / "";
  const auto target = Target::OpenForOwnAnswers("models/withy-pocket-q8_0.gguf", options);
  ASSERT_TRUE(target.ok()) << target.status();
  corpus::Spec spec = corpus::TrainSpec();
  spec.five_shot_percent = spec.few_shot_percent = 0;
  const corpus::Record given = corpus::Generator(spec).At(3, corpus::Task::kUi, 1);
  corpus::Record record;
  for (const corpus::Message& message : given.messages) {
    record.messages.push_back({message.role, message.content, {}});
  }
  const auto answer = (*target)->Answer(record);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(*answer, given.answer) << "the pocket model knows it";
  record.answer = *answer;
  const auto own = (*target)->Judge(record, full_level());
  const auto of_corpus = target_->Judge(given, full_level());
  ASSERT_TRUE(own.ok() && of_corpus.ok());
  EXPECT_TRUE(own->right);
  EXPECT_EQ(own->prompt_tokens, of_corpus->prompt_tokens) << "the file's template is the same";
  EXPECT_LE(own->loss, of_corpus->loss) << "the end of the turn is not judged";
  record.answer = "Something that no model would say of it";
  const auto other = (*target)->Judge(record, full_level());
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(other->right);
  EXPECT_GT(other->loss, own->loss);
}

}  // namespace
}  // namespace withy::tlm
