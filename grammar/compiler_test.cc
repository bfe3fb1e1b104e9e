// Compiled forms allow what they describe and nothing else. The vocabulary is that of the pocket
// model. Skipped where this build has no XGrammar.
#include "grammar/compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/chat/tool_calls.h"
#include "engine/gguf/reader.h"
#include "grammar/format_check.h"
#include "grammar/testing.h"

namespace withy::grammar {
namespace {

using engine::MaskHas;
using engine::OutputFormat;
using testing::HasSubstr;
using Kind = OutputFormat::Kind;

class CompilerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!WITHY_XGRAMMAR) GTEST_SKIP() << "this build has no XGrammar";
    auto file = engine::GgufFile::Open("models/withy-pocket-q8_0.gguf");
    ASSERT_TRUE(file.ok()) << file.status();
    auto tokenizer = engine::MakeTokenizer(*file);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    vocab_size_ = tokenizer_->vocab_size() + 7;  // logits that have no token
    compiler_.emplace(*tokenizer_, vocab_size_);
    end_ = tokenizer_->end_of_generation_ids().front();
  }

  std::unique_ptr<engine::GrammarState> Begin(Kind kind, const std::string& text = "") {
    return Begin(OutputFormat{.kind = kind, .text = text});
  }
  std::unique_ptr<engine::GrammarState> Begin(const OutputFormat& format) {
    const auto grammar = compiler_->Compile(format);
    EXPECT_TRUE(grammar.ok()) << format.text << ": " << grammar.status();
    return grammar.ok() ? (*grammar)->Begin() : nullptr;
  }
  // Whether `text`, and nothing more, is an answer.
  bool Allows(Kind kind, const std::string& form, const std::string& text) {
    return Allows(OutputFormat{.kind = kind, .text = form}, text);
  }
  bool Allows(const OutputFormat& format, const std::string& text) {
    const auto state = Begin(format);
    for (const int32_t token : tokenizer_->Encode(text, {.continues = true})) {
      if (!MaskHas(MaskOf(*state), token)) return false;
      EXPECT_TRUE(state->Accept(token));
    }
    EXPECT_EQ(MaskHas(MaskOf(*state), end_), state->MayEnd());
    return state->MayEnd();
  }
  std::vector<uint32_t> MaskOf(engine::GrammarState& state) const {
    std::vector<uint32_t> mask(engine::MaskWords(vocab_size_));
    state.FillMask(mask);
    return mask;
  }
  std::vector<int32_t> Allowed(engine::GrammarState& state) const {
    const std::vector<uint32_t> mask = MaskOf(state);
    std::vector<int32_t> tokens;
    for (int32_t id = 0; id < vocab_size_; ++id) {
      if (MaskHas(mask, id)) tokens.push_back(id);
    }
    return tokens;
  }
  void ExpectExactMask(engine::GrammarState& state, const std::string& text) const;
  std::optional<std::string> Walk(engine::GrammarState& state, std::mt19937& random);

  std::unique_ptr<engine::Tokenizer> tokenizer_;
  int32_t vocab_size_ = 0;
  int32_t end_ = 0;
  std::optional<Compiler> compiler_;
};

// A random answer; none: it did not end within the limit. Rolls back and repeats some steps.
std::optional<std::string> CompilerTest::Walk(engine::GrammarState& state, std::mt19937& random) {
  constexpr int kMostTokens = 400;
  std::string text;
  engine::StreamDecoder decoder(*tokenizer_);
  for (int step = 0; step < kMostTokens; ++step) {
    const std::vector<int32_t> allowed = Allowed(state);
    if (allowed.empty()) {
      ADD_FAILURE() << "nothing may follow " << text;
      return std::nullopt;
    }
    if (state.MayEnd() && random() % 2 == 0) return text + decoder.Flush();
    // Short tokens that close something are few among those of a string.
    std::vector<int32_t> closing;
    for (const int32_t id : allowed) {
      const std::string_view bytes = tokenizer_->TokenBytes(id);
      if (bytes.size() == 1 && std::string_view("\"}]0").find(bytes) != std::string_view::npos) {
        closing.push_back(id);
      }
    }
    const std::vector<int32_t>& from = closing.empty() || random() % 4 != 0 ? allowed : closing;
    const int32_t token = from[random() % from.size()];
    if (tokenizer_->IsEndOfGeneration(token)) return text + decoder.Flush();
    if (random() % 8 == 0) {  // there and back
      const auto other = allowed[random() % allowed.size()];
      EXPECT_TRUE(state.Accept(other));
      state.RollBack(1);
      EXPECT_EQ(Allowed(state), allowed);
    }
    const auto forbidden = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab_size_));
    if (!std::binary_search(allowed.begin(), allowed.end(), forbidden)) {
      EXPECT_FALSE(state.Accept(forbidden));
    }
    EXPECT_TRUE(state.Accept(token)) << text << " and token " << token;
    text += decoder.Push(token);
  }
  return std::nullopt;
}

TEST_F(CompilerTest, RandomAnswersAreValidUnderRandomSchemas) {
  int ended = 0, walks = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(
        seed + 1000 * static_cast<uint32_t>(::testing::UnitTest::GetInstance()->random_seed()));
    const TestJson schema = RandomSchema(random, 3);
    SCOPED_TRACE(schema.dump());
    const auto grammar = compiler_->Compile({.kind = Kind::kJsonSchema, .text = schema.dump()});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    const SchemaValidator validator(schema);
    for (int i = 0; i < 4; ++i, ++walks) {
      const auto state = (*grammar)->Begin();
      const std::optional<std::string> text = Walk(*state, random);
      if (!text.has_value()) continue;
      ++ended;
      const TestJson value = TestJson::parse(*text, nullptr, /*allow_exceptions=*/false);
      ASSERT_FALSE(value.is_discarded()) << *text;
      EXPECT_TRUE(validator.Allows(value)) << *text;
    }
  }
  EXPECT_GT(ended, walks / 2);
}

// Masks are made from what was computed when the grammar was compiled; Accept computes on demand.
void CompilerTest::ExpectExactMask(engine::GrammarState& state, const std::string& text) const {
  const std::vector<uint32_t> mask = MaskOf(state);
  for (int32_t id = 0; id < vocab_size_; ++id) {
    const bool accepted = state.Accept(id);
    if (accepted) state.RollBack(1);
    ASSERT_EQ(MaskHas(mask, id), accepted)
        << "token " << id << " (" << tokenizer_->TokenBytes(id) << ") behind " << text;
  }
}

TEST_F(CompilerTest, MasksMadeBeforehandAreThoseMadeOnDemand) {
  const int seed = ::testing::UnitTest::GetInstance()->random_seed();
  std::mt19937 random(static_cast<uint32_t>(seed));
  SCOPED_TRACE(seed);
  // {least, most} characters; -1: no limit. Some have blocks.
  constexpr std::pair<int, int> kBounds[] = {{0, 0},   {0, 1},   {1, 1},    {0, 5},    {3, 3},
                                             {2, -1},  {1, 9},   {7, 40},   {0, 256},  {0, 257},
                                             {3, 300}, {0, 700}, {300, -1}, {500, 600}};
  for (const auto& [least, most] : kBounds) {
    TestJson text = {{"type", "string"}, {"minLength", least}};
    if (most >= 0) text["maxLength"] = most;
    const TestJson schema = {{"type", "object"},
                             {"properties", {{"a", text}, {"b", RandomSchema(random, 1)}}},
                             {"required", {"a"}}};
    SCOPED_TRACE(schema.dump());
    const auto state = Begin(Kind::kJsonSchema, schema.dump());
    ASSERT_NE(state, nullptr);
    std::string answer;
    for (int step = 0; step < 300 && !state->MayEnd(); ++step) {
      if (step < 4 || random() % 16 == 0) ExpectExactMask(*state, answer);
      if (HasFatalFailure()) return;
      const std::vector<int32_t> allowed = Allowed(*state);
      ASSERT_FALSE(allowed.empty()) << answer;
      // Mostly long tokens, so that strings come to their ends.
      int32_t token = allowed[random() % allowed.size()];
      for (int i = 0; i < 6; ++i) {
        const int32_t other = allowed[random() % allowed.size()];
        if (tokenizer_->TokenBytes(other).size() > tokenizer_->TokenBytes(token).size()) {
          token = other;
        }
      }
      ASSERT_TRUE(state->Accept(token));
      answer += tokenizer_->TokenBytes(token);
    }
  }
}

TEST_F(CompilerTest, StringsOfBoundedLengthHaveNoMoreAndNoLess) {
  constexpr std::pair<size_t, size_t> kBounds[] = {{0, 1},   {1, 1},     {2, 5},   {100, 400},
                                                   {0, 257}, {255, 256}, {0, 900}, {900, 1000}};
  for (const auto& [least, most] : kBounds) {
    const TestJson schema = {{"type", "string"}, {"minLength", least}, {"maxLength", most}};
    SCOPED_TRACE(schema.dump());
    const auto allows = [&](const std::string& text) {
      return Allows(Kind::kJsonSchema, schema.dump(), '"' + text + '"');
    };
    EXPECT_TRUE(allows(std::string(least, 'x')));
    EXPECT_TRUE(allows(std::string(most, 'x')));
    EXPECT_FALSE(allows(std::string(most + 1, 'x')));
    EXPECT_EQ(allows(std::string(least - std::min<size_t>(least, 1), 'x')), least == 0);
    std::string escaped;
    for (size_t i = 0; i < most; ++i) escaped += i % 2 == 0 ? R"(\n)" : R"(\u00e4)";
    EXPECT_TRUE(allows(escaped));
    EXPECT_FALSE(allows(escaped + "y"));
  }
}

TEST_F(CompilerTest, ObjectsAreAnyObjects) {
  EXPECT_TRUE(Allows(Kind::kJsonObject, "", "{}"));
  EXPECT_TRUE(Allows(Kind::kJsonObject, "", R"({"a": [1, {"b": null}], "c": "x\n\ud83d\ude00"})"));
  EXPECT_FALSE(Allows(Kind::kJsonObject, "", "[1]"));
  EXPECT_FALSE(Allows(Kind::kJsonObject, "", R"({"a": 1)"));
  EXPECT_FALSE(Allows(Kind::kJsonObject, "", R"({"a": "\ud83d"})")) << "half a character";
}

TEST_F(CompilerTest, SchemasRefer) {
  const std::string tree = R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object",
      "properties": {"value": {"type": "integer"}, "left": {"$ref": "#/$defs/node"}},
      "required": ["value"]}}})";
  EXPECT_TRUE(Allows(Kind::kJsonSchema, tree, R"({"value": 1})"));
  EXPECT_TRUE(Allows(Kind::kJsonSchema, tree, R"({"value": 1, "left": {"value": -20}})"));
  EXPECT_FALSE(Allows(Kind::kJsonSchema, tree, R"({"left": {"value": 2}})"));
  EXPECT_FALSE(Allows(Kind::kJsonSchema, tree, R"({"value": 1, "right": 5})"));
  EXPECT_FALSE(Allows(Kind::kJsonSchema, tree, R"({"value": "1"})"));
}

TEST_F(CompilerTest, StringsWithBoundsHaveEscapes) {
  const std::string bounded = R"({"type": "string", "minLength": 2, "maxLength": 3})";
  EXPECT_TRUE(Allows(Kind::kJsonSchema, bounded, R"("a\n")"));
  EXPECT_TRUE(Allows(Kind::kJsonSchema, bounded, R"("é\"\u00e9")"));
  EXPECT_FALSE(Allows(Kind::kJsonSchema, bounded, "\"a\tb\"")) << "a control character";
  EXPECT_FALSE(Allows(Kind::kJsonSchema, bounded, R"("a")"));
  EXPECT_FALSE(Allows(Kind::kJsonSchema, bounded, R"("abcd")"));
}

TEST_F(CompilerTest, NamesAndValuesMayHaveAnyCharacters) {
  const std::string schema = R"({"type": "object", "properties": {"größe 中 😀 \\x41e": {"enum":
      ["ße", "😀f"]}}, "required": ["größe 中 😀 \\x41e"]})";
  EXPECT_TRUE(Allows(Kind::kJsonSchema, schema, R"({"größe 中 😀 \\x41e": "ße"})"));
  EXPECT_TRUE(Allows(Kind::kJsonSchema, schema, R"({"größe 中 😀 \\x41e": "😀f"})"));
  EXPECT_TRUE(Allows(Kind::kRegex, "[äö]e{2}ßf", "äeeßf"));
}

TEST_F(CompilerTest, FormatsAreKept) {
  for (const auto& [format, good, bad] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"date", "2026-11-28", "2026-13-28"},
           {"time", "12:30:00Z", "25:30:00Z"},
           {"date-time", "2026-11-28T12:30:00+01:00", "2026-11-28 noon"},
           {"duration", "P3DT4H", "3 days"},
           {"ipv4", "192.168.0.1", "192.168.0.256"},
           {"ipv6", "fe80::1", "fe80::1::2"},
           {"uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"},
           {"hostname", "example.org", "-example"},
           {"uri", "https://example.org/a?b=c", "no uri"},
           {"email", "ada@example.org", "ada"}}) {
    const std::string schema = R"({"type": "string", "format": ")" + format + "\"}";
    EXPECT_TRUE(Allows(Kind::kJsonSchema, schema, "\"" + good + "\"")) << format;
    EXPECT_FALSE(Allows(Kind::kJsonSchema, schema, "\"" + bad + "\"")) << format;
  }
}

TEST_F(CompilerTest, RegularExpressionsMatchTheWholeAnswer) {
  EXPECT_TRUE(Allows(Kind::kRegex, "(yes|no)( [a-z]+)?", "yes maybe"));
  EXPECT_TRUE(Allows(Kind::kRegex, "(yes|no)( [a-z]+)?", "no"));
  EXPECT_FALSE(Allows(Kind::kRegex, "(yes|no)( [a-z]+)?", "no!"));
  EXPECT_FALSE(Allows(Kind::kRegex, "(yes|no)( [a-z]+)?", "well, no"));
  EXPECT_TRUE(Allows(Kind::kRegex, "\\d{4}-\\d{2}", "2026-11"));
}

TEST_F(CompilerTest, PatternsMayRepeatOften) {
  for (const char* pattern : {"^x{0,300}y$", "^(ab?){200,}y$", "^[^x]{1,500}y$"}) {
    const std::string schema = TestJson({{"type", "string"}, {"pattern", pattern}}).dump();
    for (int i = 0; i < 2; ++i) EXPECT_NE(Begin(Kind::kJsonSchema, schema), nullptr) << schema;
  }
  const std::string schema = R"({"type": "string", "pattern": "^x{2,300}y$"})";
  EXPECT_TRUE(Allows(Kind::kJsonSchema, schema, '"' + std::string(300, 'x') + "y\""));
  EXPECT_FALSE(Allows(Kind::kJsonSchema, schema, '"' + std::string(301, 'x') + "y\""));
}

TEST_F(CompilerTest, PatternsRepeatGroupsAsTheyAre) {
  const auto matches = [&](const std::string& pattern, const std::string& text) {
    const std::string schema = TestJson({{"type", "string"}, {"pattern", pattern}}).dump();
    return Allows(Kind::kJsonSchema, schema, '"' + text + '"');
  };
  EXPECT_TRUE(matches("^(yes|no)( [a-z]+)?$", "no way"));
  EXPECT_FALSE(matches("^(yes|no)( [a-z]+)?$", "noway"));
  EXPECT_FALSE(matches("^a(x+b)?c$", "axxc"));
  EXPECT_TRUE(matches("^((aa+)|b){2,}$", "bbaa"));
  EXPECT_FALSE(matches("^((aa+)|b){2,}$", "bba"));
}

TEST_F(CompilerTest, GrammarsAreFollowed) {
  const std::string sums = "root ::= term (\" + \" term)*\nterm ::= [0-9]+ | \"(\" root \")\"\n";
  EXPECT_TRUE(Allows(Kind::kEbnf, sums, "1 + (22 + 3) + 4"));
  EXPECT_FALSE(Allows(Kind::kEbnf, sums, "1 + (22 + 3"));
  EXPECT_FALSE(Allows(Kind::kEbnf, sums, "1 +"));
}

TEST_F(CompilerTest, WhatXGrammarCannotReadOrWouldIgnoreIsRefused) {
  for (const auto& [kind, text, error] : std::vector<std::tuple<Kind, std::string, std::string>>{
           {Kind::kEbnf, "start ::= \"a\"", "output_format.grammar"},
           {Kind::kEbnf, "root ::= missing", "output_format.grammar"},
           {Kind::kEbnf, "root ::= (\"a\"", "output_format.grammar"},
           {Kind::kRegex, "(a", "output_format.regex"},
           {Kind::kRegex, "[a", "output_format.regex"},
           {Kind::kRegex, "\\bword", "output_format.regex"},
           {Kind::kJsonSchema, R"({"oneOf": [{"type": "number"}, {"type": "integer"}]})",
            "output_format.json_schema"},
           {Kind::kJsonSchema, R"({"type": "integer", "minimum": 5, "maximum": 3})",
            "output_format.json_schema"},
           {Kind::kJsonSchema, R"({"not": {}})", "\"not\""}}) {
    const absl::Status status = compiler_->Compile({.kind = kind, .text = text}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(error)) << text;
  }
}

TEST_F(CompilerTest, TextThatMustComeIsForced) {
  const auto state = Begin(Kind::kJsonSchema, R"({"type": "object", "properties": {"name":
      {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]})");
  EXPECT_EQ(state->ForcedText(), R"({"name": ")");
  for (const int32_t token : tokenizer_->Encode(R"({"name": "x")", {.continues = true})) {
    ASSERT_TRUE(state->Accept(token));
  }
  EXPECT_EQ(state->ForcedText(), R"(, "age": )");
}

TEST_F(CompilerTest, GrammarsAreKeptAndOutliveTheCompiler) {
  const OutputFormat format{.kind = Kind::kRegex, .text = "[ab]+"};
  auto first = *compiler_->Compile(format);
  EXPECT_EQ(*compiler_->Compile(format), first);
  EXPECT_NE(*compiler_->Compile({.kind = Kind::kRegex, .text = "[ac]+"}), first);
  EXPECT_EQ(*compiler_->Compile({}), nullptr);
  compiler_.reset();
  const auto state = first->Begin();
  first = nullptr;
  EXPECT_TRUE(state->Accept(tokenizer_->Encode("a", {.continues = true}).front()));
}

constexpr char kTools[] =
    R"([{"type":"function","function":{"name":"find","strict":true,"parameters":{"type":"object",)"
    R"("properties":{"what":{"enum":["a","b"]},"most":{"type":"integer","minimum":1,"maximum":9}},)"
    R"("required":["what","most"],"additionalProperties":false}}},)"
    R"({"type":"function","function":{"name":"wait.now"}}])";
constexpr char kFindA[] = R"(find", "arguments": {"what": "a", "most": 3}}
</tool_call>)";

// The form of Hermes and Qwen.
engine::CallText TaggedCalls() {
  return {.begin = "<tool_call>\n{\"name\": \"",
          .middle = "\", \"arguments\": ",
          .between = "}\n</tool_call>\n<tool_call>\n{\"name\": \"",
          .end = "}\n</tool_call>"};
}

TEST_F(CompilerTest, CallsAreReadAsCallsWhoseArgumentsFollowTheirSchemas) {
  const engine::ToolCallParser parser(kTools);
  const SchemaValidator schema(TestJson::parse(kTools)[0]["function"]["parameters"]);
  std::mt19937 random(7);
  int read = 0;
  for (const engine::CallText& form : {TaggedCalls(), engine::CallText()}) {
    compiler_.emplace(*tokenizer_, vocab_size_, form);
    for (int i = 0; i < 40; ++i) {
      const auto state = Begin(Kind::kToolCalls, kTools);
      ASSERT_NE(state, nullptr);
      const std::optional<std::string> answer = Walk(*state, random);
      if (!answer) continue;
      const engine::AnswerParts parts = parser.Parse(*answer);
      EXPECT_EQ(parts.text, "") << *answer;
      ASSERT_FALSE(parts.calls.empty()) << *answer;
      for (const engine::ToolCall& call : parts.calls) {
        ++read;
        EXPECT_TRUE(parser.Knows(call.name)) << *answer;
        const TestJson arguments = TestJson::parse(call.arguments_json);
        EXPECT_TRUE(call.name == "find" ? schema.Allows(arguments) : arguments.is_object())
            << *answer;
      }
    }
  }
  EXPECT_GT(read, 20);
}

TEST_F(CompilerTest, ACallMayBeTheOnlyOneAndOfOneTool) {
  compiler_.emplace(*tokenizer_, vocab_size_, TaggedCalls());
  const std::string begin = TaggedCalls().begin;
  const std::string one = begin + kFindA;
  EXPECT_TRUE(Allows(Kind::kToolCalls, kTools, one));
  EXPECT_TRUE(Allows(Kind::kToolCalls, kTools, "\n\n" + one));  // behind a thought
  EXPECT_TRUE(Allows(Kind::kToolCalls, kTools, one + "\n" + one));
  EXPECT_FALSE(Allows(Kind::kToolCalls, kTools, "Well: " + one));
  OutputFormat format{.kind = Kind::kToolCalls, .text = kTools, .one_call = true};
  EXPECT_TRUE(Allows(format, one));
  EXPECT_FALSE(Allows(format, one + "\n" + one));
  format.tool = "wait.now";
  EXPECT_FALSE(Allows(format, one));
  EXPECT_TRUE(Allows(format, begin + "wait.now\", \"arguments\": {\"s\": 1}}\n</tool_call>"));
  format.tool = "other";
  EXPECT_THAT(CheckFormat(format).ToString(), HasSubstr("output_format.tool_calls.tool"));
}

// A text is read as a call, or as one that calls nothing, and never as a call out of its form.
TEST_F(CompilerTest, TextMayComeBeforeCallsOrInTheirPlace) {
  compiler_.emplace(*tokenizer_, vocab_size_, TaggedCalls());
  const std::string one = TaggedCalls().begin + kFindA;
  OutputFormat format{.kind = Kind::kToolCalls, .text = kTools, .free_text = true};
  for (const std::string& text :
       {std::string("Nothing to look for."), one, "Well: " + one, one + "\n" + one,
        "<think>A <tool_call> would do.</think>\n" + one, std::string("<think>No.</think>No.")}) {
    EXPECT_TRUE(Allows(format, text)) << text;
  }
  for (const std::string& text :
       {std::string("<tool_call>"), "<tool_call> " + one, one + " Done.",
        TaggedCalls().begin + R"(find", "arguments": {"what": "c", "most": 3}}
</tool_call>)",
        std::string("<think>.</think><tool_call>x"), std::string("<function=find>")}) {
    EXPECT_FALSE(Allows(format, text)) << text;
  }
  format.one_call = true;
  EXPECT_TRUE(Allows(format, "Well: " + one));
  EXPECT_FALSE(Allows(format, one + "\n" + one));
  format.free_text = false;
  format.schema = R"({"type": "integer"})";
  EXPECT_TRUE(Allows(format, one));
  EXPECT_TRUE(Allows(format, "17"));
  EXPECT_FALSE(Allows(format, "Well"));
  format.free_text = true;
  EXPECT_THAT(CheckFormat(format).ToString(), HasSubstr("give one of them"));
  // Calls without a marker cannot be told from text.
  compiler_.emplace(*tokenizer_, vocab_size_);
  format.schema.clear();
  EXPECT_EQ(*compiler_->Compile(format), nullptr);
}

TEST_F(CompilerTest, ManyToolsOfOneSchemaAreOneGrammar) {
  compiler_.emplace(*tokenizer_, vocab_size_, TaggedCalls());
  std::string tools = "[";
  for (int i = 0; i < 1000; ++i) {
    absl::StrAppend(&tools, i == 0 ? "" : ", ", R"({"type": "function", "function": {"name": "t)",
                    i, R"("}})");
  }
  EXPECT_TRUE(Allows(Kind::kToolCalls, tools + "]",
                     TaggedCalls().begin + "t999\", \"arguments\": {}}\n</tool_call>"));
}

TEST_F(CompilerTest, AStrictToolsSchemaMustBeEnforceable) {
  const std::string tool = R"([{"type":"function","function":{"name":"f","strict":true,)"
                           R"("parameters":{"type":"object","not":{}}}}])";
  OutputFormat format{.kind = Kind::kToolCalls, .text = tool};
  EXPECT_THAT(CheckFormat(format).ToString(),
              HasSubstr("prompt.messages.tools_json[0].function.parameters"));
  format.text.replace(tool.find("true"), 4, "false");
  EXPECT_EQ(CheckFormat(format), absl::OkStatus());
  EXPECT_NE(*compiler_->Compile(format), nullptr);
  EXPECT_THAT(CheckFormat({.kind = Kind::kToolCalls}).ToString(), HasSubstr("needs tools to call"));
}

TEST_F(CompilerTest, ControlTokensAndLogitsWithoutATokenAreNeverAllowed) {
  const auto state = Begin(Kind::kRegex, "(.|\\n)*");
  for (const int32_t token : Allowed(*state)) {
    ASSERT_LT(token, tokenizer_->vocab_size());
    EXPECT_TRUE(!tokenizer_->IsControl(token) || tokenizer_->IsEndOfGeneration(token)) << token;
  }
  EXPECT_FALSE(state->Accept(vocab_size_));
  EXPECT_FALSE(state->Accept(-1));
}

}  // namespace
}  // namespace withy::grammar
