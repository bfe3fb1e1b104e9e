// Keeps one answer within its grammar: which tokens may come next, and whether it is over.
// Neighbours: sampling/output_grammar.h says what a grammar is; sampler.h draws by the mask; the
// answers of both workers own one of these. Without a grammar it allows everything.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/output/channels.h"
#include "engine/sampling/output_grammar.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// A function of the tokens that were accepted, so that an answer that is begun again is the same.
// Not thread-safe. `tokenizer` must outlive it.
class OutputConstraint {
 public:
  // `grammar`: null: everything is allowed.
  OutputConstraint(const OutputGrammar* grammar, const Tokenizer& tokenizer);

  bool active() const { return state_ != nullptr; }
  // The answer begins inside of a thought: the grammar holds behind its end.
  void BeginInThought() { in_thought_ = active(); }
  // Behind this prompt. Where answers have channels, the grammar holds in the message for the user.
  void BeginBehind(std::span<const int32_t> prompt);

  // Tokens that may come next, [MaskWords(the grammar's vocab_size)]; empty: all. Valid until the
  // next call of another method. Errors: FAILED_PRECONDITION where the vocabulary has no token that
  // may come.
  absl::StatusOr<std::span<const uint32_t>> Mask();
  // The answer's next token, one of the mask's.
  void Accept(int32_t token);
  // Whether nothing but the end may come next.
  bool Over();

  // --- Looking ahead, for drafts. Each Try that succeeds is taken back before the next Accept.
  // Whether `token` may come next; if so, it is taken as the next one.
  bool Try(int32_t token);
  void TakeBack(int32_t tokens);
  // The tokens of the text that must come next, at most `limit`: as the tokenizer encodes it, but
  // for the last one, which what follows may change. None where the answer may end.
  std::vector<int32_t> Forced(size_t limit);

 private:
  void FillMask();
  // Tokens of a thought: all but those that end the answer.
  void AllowThought();

  const Tokenizer& tokenizer_;
  std::unique_ptr<GrammarState> state_;
  std::optional<Channels> channels_;
  bool in_thought_ = false;     // or in a header
  std::string thought_tail_;    // its latest bytes
  std::vector<uint32_t> mask_;  // of the next token, if `filled_`
  bool filled_ = false;
};

}  // namespace withy::engine
