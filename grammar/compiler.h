// Compiles output formats for one vocabulary, and keeps the last ones. Neighbours: format_check.h
// refuses what is too large or not supported; engine/sampling/output_grammar.h is what comes out;
// XGrammar does the work. Knows no requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/chat/call_text.h"
#include "engine/sampling/output_grammar.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::grammar {

// Calls of a worker that wait for their grammars.
inline constexpr size_t kMostWaiting = 64;

// For one thread, which is not the one that computes: compiling takes up to seconds. What it
// returns is for any thread and may outlive it.
class Compiler {
 public:
  // `tokenizer` outlives it. `vocab_size`: of the model's logits. `calls`: how the model writes
  // calls of tools. The first Compile reads the vocabulary, which takes some tenths of a second for
  // 150,000 tokens; so does the first one of calls.
  Compiler(const engine::Tokenizer& tokenizer, int32_t vocab_size, engine::CallText calls = {});
  ~Compiler();

  // The grammar of a form, from the kept ones if it is there; null for a free one, which every
  // thread may ask for. Errors: as
  // CheckFormat; INVALID_ARGUMENT with the place for a text that is no schema, regular expression
  // or grammar, or whose grammar is too large.
  absl::StatusOr<std::shared_ptr<const engine::OutputGrammar>> Compile(
      const engine::OutputFormat& format);

 private:
  static constexpr size_t kKept = 64;
  static constexpr size_t kKeptBytes = 64 << 20;  // of all kept ones; the last one is always kept

  struct Kept {
    engine::OutputFormat format;
    std::shared_ptr<const engine::OutputGrammar> grammar;  // shared with calls
    size_t bytes = 0;
  };
  struct Matcher;  // XGrammar's compiler

  Matcher& MatcherFor(engine::OutputFormat::Kind kind);

  const engine::Tokenizer& tokenizer_;
  const int32_t vocab_size_;
  const engine::CallText calls_;
  std::unique_ptr<Matcher> matcher_;
  std::unique_ptr<Matcher> calls_matcher_;  // whose vocabulary has the markers of calls, too
  std::list<Kept> kept_;                    // the one that was used last comes first
};

}  // namespace withy::grammar
