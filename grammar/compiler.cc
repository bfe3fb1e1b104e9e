#include "grammar/compiler.h"

#include <dlpack/dlpack.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/chat/tool_calls.h"
#include "grammar/callable_tools.h"
#include "grammar/counted_strings.h"
#include "grammar/format_check.h"
#include "grammar/grammar_text.h"
#include "grammar/known_tokens.h"
#include "grammar/library_log.h"
#include "grammar/schema_check.h"
#include "grammar/vocabulary.h"

namespace withy::grammar {
namespace {

using Kind = engine::OutputFormat::Kind;

constexpr size_t kMaxCompiledBytes = 512 << 10;  // of a grammar, repetitions not written out
// What XGrammar keeps of grammars for others: a third are masks of rules, which is more than the
// rules of strings take (counted_strings.h), the others are grammars, most of them kept here, too.
constexpr int64_t kCacheBytes = 48 << 20;

class State final : public engine::GrammarState {
 public:
  State(const xgrammar::CompiledGrammar& grammar, int32_t vocab_size)
      : matcher_(grammar), vocab_size_(vocab_size) {}

  // An exception out of XGrammar forbids every token, which fails the call and nothing else.
  void FillMask(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0);
    int64_t words = static_cast<int64_t>(mask.size());
    DLTensor tensor{.data = mask.data(),
                    .device = {.device_type = kDLCPU, .device_id = 0},
                    .ndim = 1,
                    .dtype = xgrammar::GetBitmaskDLType(),
                    .shape = &words,
                    .strides = nullptr,
                    .byte_offset = 0};
    try {
      // False: all tokens may come, and the mask says so, too.
      matcher_.FillNextTokenBitmask(&tensor);
    } catch (const std::exception&) {
      std::fill(mask.begin(), mask.end(), 0);
    }
  }
  bool Accept(int32_t token) override {
    if (token < 0 || token >= vocab_size_) return false;
    try {
      return matcher_.AcceptToken(token);
    } catch (const std::exception&) {
      return false;
    }
  }
  void RollBack(int32_t tokens) override { matcher_.Rollback(tokens); }
  bool MayEnd() const override { return matcher_.IsCompleted(); }
  std::string ForcedText() override { return matcher_.FindJumpForwardString(); }

 private:
  xgrammar::GrammarMatcher matcher_;
  const int32_t vocab_size_;
};

class CompiledFormat final : public engine::OutputGrammar {
 public:
  CompiledFormat(xgrammar::CompiledGrammar grammar, int32_t vocab_size)
      : grammar_(std::move(grammar)), vocab_size_(vocab_size) {}

  int32_t vocab_size() const override { return vocab_size_; }
  std::unique_ptr<engine::GrammarState> Begin() const override {
    return std::make_unique<State>(grammar_, vocab_size_);
  }

 private:
  const xgrammar::CompiledGrammar grammar_;
  const int32_t vocab_size_;
};

std::string_view FieldOf(Kind kind) {
  switch (kind) {
    case Kind::kJsonSchema:
      return "output_format.json_schema";
    case Kind::kRegex:
      return "output_format.regex";
    case Kind::kEbnf:
      return "output_format.grammar";
    case Kind::kToolCalls:
      return "output_format.tool_calls";
    default:
      return "output_format";
  }
}

// What XGrammar said of it, without the place in its own source.
absl::Status Refused(Kind kind, std::string_view said) {
  const size_t place = said.find(": ");
  if (said.starts_with('[') && place != std::string_view::npos) said.remove_prefix(place + 2);
  while (!said.empty() && (said.back() == '\n' || said.back() == ' ')) said.remove_suffix(1);
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(FieldOf(kind)), " cannot be used: ", ToAbsl(said.substr(0, 500))));
}

// In characters, counted as in UTF-8.
int32_t LongestToken(const std::vector<std::string>& tokens) {
  int64_t longest = 0;
  for (const std::string& token : tokens) {
    longest = std::max<int64_t>(longest, std::count_if(token.begin(), token.end(), [](char c) {
                                  return (static_cast<uint8_t>(c) & 0xc0) != 0x80;
                                }));
  }
  return static_cast<int32_t>(longest);
}

absl::StatusOr<std::string> GrammarOf(const engine::OutputFormat& format,
                                      const engine::CallText& calls) {
  switch (format.kind) {
    case Kind::kJsonSchema: {
      WITHY_ASSIGN_OR_RETURN(const std::string schema,
                             PrepareSchema(FieldOf(format.kind), format.text));
      return GrammarOfSchema(schema);
    }
    case Kind::kJsonObject:
      return GrammarOfSchema(kAnyObject);
    case Kind::kRegex:
      return GrammarOfRegex(format.text);
    case Kind::kToolCalls: {
      WITHY_ASSIGN_OR_RETURN(const std::vector<CallableTool> tools, CallableTools(format));
      WITHY_ASSIGN_OR_RETURN(
          const std::string grammar,
          GrammarOfCalls(tools, calls,
                         {.one_call = format.one_call, .free_text = format.free_text}));
      if (format.schema.empty()) return grammar;
      WITHY_ASSIGN_OR_RETURN(const std::string schema,
                             PrepareSchema(kCallsSchemaField, format.schema));
      WITHY_ASSIGN_OR_RETURN(const std::string json, GrammarOfSchema(schema));
      return EitherGrammar(grammar, json);
    }
    default:
      return format.text;
  }
}

}  // namespace

struct Compiler::Matcher {
  explicit Matcher(const Vocabulary& vocabulary)
      : longest_token(LongestToken(vocabulary.bytes)),
        tokens(vocabulary.bytes, xgrammar::VocabType::RAW, vocabulary.size(), vocabulary.ends),
        keeping(tokens, /*max_threads=*/1, /*cache_enabled=*/true, kCacheBytes),
        plain(tokens, /*max_threads=*/1, /*cache_enabled=*/false) {}

  // `json`: the grammar's strings are those of JSON. Throws what XGrammar throws.
  xgrammar::CompiledGrammar Compile(const std::string& grammar, bool json) {
    xgrammar::known_tokens = json ? &string_tokens : nullptr;
    const absl::Cleanup done = [] { xgrammar::known_tokens = nullptr; };
    const std::string text = json ? WithCountedStrings(longest_token, grammar) : grammar;
    try {
      // As text: XGrammar would write a grammar that it has read, and read that.
      return keeping.CompileGrammar(text, "root");
    } catch (const std::exception&) {
      // It cannot keep rules of repetitions within regular expressions, either.
      return plain.CompileGrammar(text, "root");
    }
  }

  const int32_t longest_token;
  StringTokens string_tokens;
  const xgrammar::TokenizerInfo tokens;
  xgrammar::GrammarCompiler keeping;  // masks of rules
  xgrammar::GrammarCompiler plain;
};

Compiler::Compiler(const engine::Tokenizer& tokenizer, int32_t vocab_size, engine::CallText calls)
    : tokenizer_(tokenizer), vocab_size_(vocab_size), calls_(std::move(calls)) {}
Compiler::~Compiler() = default;

Compiler::Matcher& Compiler::MatcherFor(Kind kind) {
  const bool calls = kind == Kind::kToolCalls;
  std::unique_ptr<Matcher>& matcher = calls ? calls_matcher_ : matcher_;
  if (matcher == nullptr) {
    matcher = std::make_unique<Matcher>(
        VocabularyOf(tokenizer_, vocab_size_,
                     calls ? engine::CallMarkers() : std::span<const std::string_view>()));
  }
  return *matcher;
}

absl::StatusOr<std::shared_ptr<const engine::OutputGrammar>> Compiler::Compile(
    const engine::OutputFormat& format) {
  if (format.kind == Kind::kFree) return nullptr;
  const auto found = std::find_if(kept_.begin(), kept_.end(),
                                  [&](const Kept& one) { return one.format == format; });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    return kept_.front().grammar;
  }
  WITHY_RETURN_IF_ERROR(CheckFormat(format));
  if (format.free_text && OpeningOf(calls_).empty()) return nullptr;
  LibraryWarnings warnings;
  try {
    WITHY_ASSIGN_OR_RETURN(const std::string grammar, GrammarOf(format, calls_));
    if (grammar.size() > kMaxCompiledBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(ToAbsl(FieldOf(format.kind)), " makes a grammar of ", grammar.size(),
                       " bytes: at most ", kMaxCompiledBytes, "; make it smaller"));
    }
    Matcher& matcher = MatcherFor(format.kind);
    // What XGrammar warns of, it does not enforce.
    if (!warnings.text().empty()) return Refused(format.kind, warnings.text());
    const xgrammar::CompiledGrammar compiled =
        matcher.Compile(grammar, format.kind != Kind::kRegex && format.kind != Kind::kEbnf);
    if (!warnings.text().empty()) return Refused(format.kind, warnings.text());
    kept_.push_front({.format = format,
                      .grammar = std::make_shared<CompiledFormat>(compiled, vocab_size_),
                      .bytes = compiled.MemorySizeBytes()});
  } catch (const std::exception& error) {
    return Refused(format.kind, error.what());
  }
  size_t bytes = 0;
  for (const Kept& one : kept_) bytes += one.bytes;
  while (kept_.size() > 1 && (kept_.size() > kKept || bytes > kKeptBytes)) {
    bytes -= kept_.back().bytes;
    kept_.pop_back();
  }
  return kept_.front().grammar;
}

}  // namespace withy::grammar
