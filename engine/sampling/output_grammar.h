// What an answer may consist of, as sampling sees it: after each token, which tokens may come next.
// Neighbours: grammar/ makes these from a JSON Schema, a regular expression or an EBNF grammar;
// output/output_constraint.h holds an answer's state; sampler.h draws among the tokens of a mask.
//
//   std::unique_ptr<GrammarState> state = grammar.Begin();
//   std::vector<uint32_t> mask(MaskWords(vocab_size));
//   state->FillMask(mask);          // what may come next
//   CHECK(state->Accept(token));    // one of these
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace withy::engine {

// The form that a request asks for.
struct OutputFormat {
  enum class Kind : uint8_t {
    kFree,
    kJsonObject,  // any JSON object; no text
    kJsonSchema,
    kRegex,      // that the whole answer matches
    kEbnf,       // a grammar whose first rule is `root`
    kToolCalls,  // calls of tools
  };

  Kind kind = Kind::kFree;
  std::string text = {};  // schema, regular expression, grammar or JSON list of tools
  // Of calls: the one tool that is called ("": any), whether there is one call only, whether text
  // may come before the calls or in their place, and the schema of JSON in their place ("": none).
  std::string tool = {};
  bool one_call = false;
  bool free_text = false;
  std::string schema = {};

  bool operator==(const OutputFormat&) const = default;
};

// 32-bit words of a mask of `vocab_size` tokens: token i is bit i % 32 of word i / 32.
constexpr size_t MaskWords(int32_t vocab_size) {
  return (static_cast<size_t>(vocab_size) + 31) / 32;
}
inline bool MaskHas(std::span<const uint32_t> mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (static_cast<uint32_t>(token) % 32) & 1) != 0;
}

// Where one answer is in its grammar. Not thread-safe.
class GrammarState {
 public:
  virtual ~GrammarState() = default;

  // Sets the bits of the tokens that may come next, and clears all others. `mask`:
  // [MaskWords(vocab_size)]. Tokens that end an answer are among them where it may end.
  virtual void FillMask(std::span<uint32_t> mask) = 0;
  // The token is the answer's next. False: it may not be, and nothing has changed.
  virtual bool Accept(int32_t token) = 0;
  // Takes back the last `tokens` that were accepted.
  virtual void RollBack(int32_t tokens) = 0;
  // Whether the answer may end here.
  virtual bool MayEnd() const = 0;
  // The bytes that every continuation begins with; empty where it may end.
  virtual std::string ForcedText() = 0;
};

// Immutable and thread-safe.
class OutputGrammar {
 public:
  virtual ~OutputGrammar() = default;
  // Tokens of the vocabulary that its masks have bits for.
  virtual int32_t vocab_size() const = 0;
  // At the beginning of an answer. The state keeps what it needs of the grammar.
  virtual std::unique_ptr<GrammarState> Begin() const = 0;
};

}  // namespace withy::engine
