// What the score head learns from: for each word of a text how much it is worth keeping. Made from
// the target's own loss when the word is dropped, or read from a file. Neighbours: target.h,
// score_stage.cc trains with them.
//
// Source: ElastiLM section 3.3 learns from GPT-4's labels of a meeting corpus. Ours can learn from
// such labels too, but by itself asks the model that is served: a word is worth the loss that it
// causes when it is missing.
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
  std::vector<float> keep;              // of each word, 0 .. 1; below 0: not asked
};

// One line: {"text": "...", "words": [[begin, end], ...], "keep": [1, 0, null, ...]}. Bytes of the
// text; without "words" those of engine::SplitWords; null is not asked. Errors: INVALID_ARGUMENT
// naming `where` and what is wrong.
std::string ToLine(const ScoreExample& example);
absl::StatusOr<ScoreExample> ParseScoreExample(std::string_view line, std::string_view where);
// Every line of a file. Errors: NOT_FOUND; as ParseScoreExample, with the line's number.
absl::StatusOr<std::vector<ScoreExample>> ReadScoreExamples(const std::string& path);

// Retain probabilities of words by the rank of their worth: the share of levels, drawn evenly, at
// which the word stays. Worth of 1 for the best, 0 for the last; the upper half has more than 0.5;
// equals share their mean. Words that are not asked get -1.
std::vector<float> RetainProbabilities(std::span<const double> worth,
                                       const std::vector<bool>& asked);

// Drops the words one at a time and takes the increase of the answer's loss, which is nothing where
// it is too small to mean anything. When there are more
// than `max_variants` words to drop, as many neighbours of one message go together as keep within
// it. Fixed words are not asked. Errors: as Target::Judge.
absl::StatusOr<ScoreExample> LabelByLoss(const corpus::Prompt& prompt, int32_t max_variants,
                                         Target* target);

}  // namespace withy::tlm
