// Multiple-choice questions in the forms in which ARC, HellaSwag, PIQA, BoolQ and WinoGrande are
// published, one JSON object a line, and what a model chooses. A choice is scored by the
// log-likelihood of its text behind the question, asked as EleutherAI's lm-evaluation-harness does
// without worked examples. Neighbours: real_quality.cc asks each level of a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/session/text_scorer.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::bench {

struct Choice {
  std::string context;  // what the model reads; never ends in a space
  std::string text;     // what is scored
};

struct ChoiceQuestion {
  std::vector<Choice> choices = {};  // two or more
  size_t right = 0;
};

// The questions of `lines`. The form is told by the keys of each line:
//   ARC, OpenBookQA  {"question": {"stem", "choices": [{"text", "label"}]}, "answerKey"}
//   HellaSwag        {"activity_label", "ctx_a", "ctx_b", "endings", "label"}; "ctx" alone will do
//   PIQA             {"goal", "sol1", "sol2"}, "label" or a line of `labels`
//   BoolQ            {"question", "passage", "answer": true}
//   WinoGrande       {"sentence" with one "_", "option1", "option2", "answer": "1"}
//   prompts          {"query", "choices", "gold"} or {"context_options", "continuation", "gold"}
// Errors: INVALID_ARGUMENT, naming `name` and the line: no JSON object, no form of these, no right
// answer among the choices, another number of labels than of questions, no question.
absl::StatusOr<std::vector<ChoiceQuestion>> ParseChoices(std::string_view lines,
                                                         std::string_view labels,
                                                         std::string_view name);

// Those of a file; NAME.jsonl takes its labels from NAME-labels.lst, where PIQA has them. Errors:
// as ReadRegularFile and ParseChoices.
absl::StatusOr<std::vector<ChoiceQuestion>> ReadChoices(const std::string& path);

// `count` of them, spread evenly; all if there are no more.
std::vector<ChoiceQuestion> SpreadChoices(std::vector<ChoiceQuestion> questions, size_t count);

// What one contestant chose.
struct ChosenShares {
  double right = 0;       // the likeliest text is the right one
  double right_norm = 0;  // likewise by log-likelihood per byte of the text
  double agreed = 0;      // the likeliest text is the first contestant's
};

// Asks all contestants all questions. `progress` is called after each question, with its number.
// Errors: as TextScorer; OUT_OF_RANGE (a question is longer than a model's window).
absl::StatusOr<std::vector<ChosenShares>> AskChoices(
    std::span<const ChoiceQuestion> questions, const engine::Tokenizer& tokenizer,
    const std::vector<engine::ScoreContestant>& contestants, void (*progress)(size_t asked));

}  // namespace withy::bench
