// Training data of the score head: how much each word of a text is worth keeping. Labels come from
// the target's own loss when the word is dropped, or from a file. Neighbours: target.h,
// score_stage.cc.
//
// Source: ElastiLM section 3.3 uses GPT-4's labels of a meeting corpus. Ours can use such labels,
// but by default asks the served model: a word is worth the loss that its absence causes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/text.h"
#include "offline/corpus/prompt.h"
#include "offline/tlm/target.h"

namespace withy::tlm {

struct ScoreExample {
  std::string text;
  std::vector<engine::ByteSpan> words;  // in order, not overlapping
  std::vector<float> keep;              // per word, 0 .. 1; below 0: not labelled
};

// One line: {"text": "...", "words": [[begin, end], ...], "keep": [1, 0, null, ...]}. Words are
// byte ranges of the text; default: those of engine::SplitWords. null: not labelled. Errors:
// INVALID_ARGUMENT naming `where` and the problem.
std::string ToLine(const ScoreExample& example);
absl::StatusOr<ScoreExample> ParseScoreExample(std::string_view line, std::string_view where);
// Reads all lines of a file. Errors: NOT_FOUND; as ParseScoreExample, with the line number.
absl::StatusOr<std::vector<ScoreExample>> ReadScoreExamples(const std::string& path);

// Retain probabilities from the rank of each word's worth: the share of levels, drawn evenly, at
// which the word is kept. The best word has 1, the last 0; the upper half has more than 0.5; equal
// words share their mean. Words with `asked` false get -1.
std::vector<float> RetainProbabilities(std::span<const double> worth,
                                       const std::vector<bool>& asked);

// Drops the words one at a time and measures the increase of the answer's loss; an insignificant
// one counts as zero. If there are more than `max_variants` words, groups of neighbours within a
// message are dropped together to stay within it. Fixed words are not labelled. Errors: as
// Target::Judge.
absl::StatusOr<ScoreExample> LabelByLoss(const corpus::Prompt& prompt, int32_t max_variants,
                                         Target* target);

}  // namespace withy::tlm
