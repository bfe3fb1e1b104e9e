#include "grammar/schema_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/contract_limits.h"
#include "base/json.h"
#include "grammar/format_check.h"

namespace withy::grammar {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::string& schema) {
  const absl::Status status = PrepareSchema("field", schema).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << schema;
  return std::string(status.message());
}

std::string Prepared(const std::string& schema) {
  const auto prepared = PrepareSchema("field", schema);
  EXPECT_TRUE(prepared.ok()) << schema << ": " << prepared.status();
  return prepared.value_or("");
}

TEST(SchemaCheckTest, WhatIsNotEnforcedIsNamedWithItsPlace) {
  for (const auto& [schema, error] : std::vector<std::pair<std::string, std::string>>{
           {R"({"not": {}})", "field: the keyword \"not\""},
           {R"({"properties": {"a": {"type": "array", "uniqueItems": true}}})",
            "at #/properties/a: the keyword \"uniqueItems\""},
           {R"({"properties": {"a": {"items": {"if": {}}}}})", "at #/properties/a/items: "},
           {R"({"$ref": "#/$defs/a", "$defs": {"a": {"contains": {}}}})", "at #/$defs/a: "},
           {R"({"type": "object", "patternProperties": {}})", "patternProperties"},
           {R"({"requird": []})", "requird"},
           {R"({"allOf": [{}, {}]})", "\"allOf\" of several"},
           {R"({"anyOf": [{"type": "string"}], "type": "string"})", "\"type\" beside \"anyOf\""},
           {R"({"type": "string", "pattern": "a", "maxLength": 3})", "\"maxLength\" beside"},
           {R"({"type": "string", "format": "iri"})", "\"format\" is \"iri\""},
           {R"({"minimum": 3})", "\"type\" is missing"},
           {R"({"type": "number", "multipleOf": 2})", "\"multipleOf\""},
           {R"({"type": "object", "properties": {"a": {}}, "additionalProperties": {}})",
            "additionalProperties"}}) {
    EXPECT_THAT(ErrorOf(schema), HasSubstr(error)) << schema;
  }
}

TEST(SchemaCheckTest, WhatIsNoSchemaIsRefused) {
  for (const auto& [schema, error] : std::vector<std::pair<std::string, std::string>>{
           {"nonsense", "JSON"},
           {"[]", "type array"},
           {"false", "allows no value"},
           {R"({"type": "text"})", "\"type\" is \"text\""},
           {R"({"type": []})", "empty array"},
           {R"({"enum": []})", "at least one value"},
           {R"({"enum": ["a", 1], "type": "string"})", "\"enum\" has 1"},
           {R"({"anyOf": []})", "at least one schema"},
           {R"({"type": "object", "required": ["a"]})", "names \"a\""},
           {R"({"type": "array", "minItems": 3, "maxItems": 2})", "more than \"maxItems\""},
           {R"({"type": "array", "maxItems": -1})", "\"maxItems\" is -1"},
           {R"({"type": "string", "maxLength": 1001})", "from 0 to 1000"},
           {R"({"type": "integer", "minimum": 0.5})", "whole number"},
           {R"({"type": "integer", "minimum": 1e300})", "2^53"},
           {R"({"$ref": "#"})", "only refers to itself"},
           {R"({"$ref": "#/$defs/b"})", "no such schema"},
           {R"({"$ref": "https://example.org/a"})", "\"#\""},
           {R"({"type": "string", "pattern": "a\"b"})", "quotation marks"},
           {R"({"type": "string", "pattern": "\\bword"})", "\\b"},
           {R"x({"type": "string", "pattern": "(?=a)"})x", "(?="},
           {R"({"type": "string", "pattern": "(a{99}b){99}"})", "written out"}}) {
    EXPECT_THAT(ErrorOf(schema), HasSubstr(error)) << schema;
  }
  std::string deep = "{}";
  for (int i = 0; i < kMaxJsonDepth; ++i) deep = R"({"items": )" + deep + "}";
  EXPECT_THAT(ErrorOf(deep), HasSubstr("nested"));
}

TEST(SchemaCheckTest, RestrictionsAreWrittenOut) {
  EXPECT_EQ(Prepared("{}"), "{}");
  EXPECT_EQ(Prepared(R"({"properties": {"b": {}, "a": {"type": "null"}}, "title": "t"})"),
            R"({"properties":{"b":{},"a":{"type":"null"}},"title":"t","type":"object",)"
            R"("additionalProperties":false})");
  EXPECT_EQ(Prepared(R"({"type": "array", "prefixItems": [true, {"type": "null"}]})"),
            R"({"type":"array","prefixItems":[{},{"type":"null"}],"items":false})");
  EXPECT_THAT(Prepared(R"({"type": "string", "format": "email"})"), HasSubstr("\"pattern\":"));
  EXPECT_EQ(Prepared(R"({"type": "string", "enum": ["a"]})"), R"({"enum":["a"]})");
  EXPECT_THAT(Prepared(R"({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {}}}}})"),
              HasSubstr("\"additionalProperties\":false"));
}

TEST(SchemaCheckTest, RecursionIsFollowedOnce) {
  Prepared(R"({"type": "object", "properties": {"next": {"$ref": "#"}}})");
  Prepared(R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"properties": {"left":
      {"$ref": "#/$defs/tree"}, "names": {"$ref": "#/$defs/list"}}}, "list": {"type": "array",
      "items": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/list"}]}}}})");
}

#if WITHY_XGRAMMAR
using Kind = engine::OutputFormat::Kind;

TEST(FormatCheckTest, FormsHaveBounds) {
  const auto error = [](Kind kind, std::string text) {
    const absl::Status status = CheckFormat({.kind = kind, .text = std::move(text)});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error(Kind::kRegex, ""), HasSubstr("output_format.regex is empty"));
  EXPECT_THAT(error(Kind::kRegex, std::string(kMaxRegexBytes + 1, 'a')), HasSubstr("at most 4096"));
  EXPECT_THAT(error(Kind::kRegex, "a{1001}"), HasSubstr("1000 times"));
  EXPECT_THAT(error(Kind::kRegex, "(?<name>a)"), HasSubstr("(?<"));
  EXPECT_THAT(error(Kind::kRegex, std::string(65, '(') + "a" + std::string(65, ')')),
              HasSubstr("deeper than 64"));
  EXPECT_THAT(error(Kind::kEbnf, "root ::= Token(5)"), HasSubstr("Token("));
  EXPECT_THAT(error(Kind::kEbnf, "root ::= \"a\"{2,3000}"), HasSubstr("1000 times"));
  EXPECT_THAT(error(Kind::kEbnf, std::string(kMaxGrammarBytes + 1, ' ')), HasSubstr("32768"));
  EXPECT_THAT(error(Kind::kJsonSchema, std::string(kMaxSchemaBytes + 1, ' ')), HasSubstr("32768"));
  EXPECT_EQ(CheckFormat({.kind = Kind::kRegex, .text = "[({]{1,1000}\\((?:a|b)\\)"}),
            absl::OkStatus());
  EXPECT_EQ(CheckFormat({.kind = Kind::kEbnf, .text = "root ::= \"Token(5) (((\" # {2000}\n"}),
            absl::OkStatus());
  EXPECT_EQ(CheckFormat({.kind = Kind::kJsonObject}), absl::OkStatus());
}
#else
TEST(FormatCheckTest, WithoutXGrammarFormsAreRefused) {
  const absl::Status status = CheckFormat({.kind = engine::OutputFormat::Kind::kJsonObject});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("./withy setup"));
}
#endif

TEST(FormatCheckTest, FreeAnswersPass) { EXPECT_EQ(CheckFormat({}), absl::OkStatus()); }

}  // namespace
}  // namespace withy::grammar
