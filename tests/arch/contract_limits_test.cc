// The contract's comments and the documents give the figures of base/contract_limits.h.
#include "base/contract_limits.h"

#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy {
namespace {

using ::testing::HasSubstr;

// A file as running text: lines joined, without the marks of comments.
std::string Text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return std::regex_replace(text.str(), std::regex("\\n *(// )?"), " ");
}

std::string Mib(size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }
std::string Kib(size_t bytes) { return std::to_string(bytes >> 10) + " KiB"; }
std::string Seconds(int64_t ns) { return std::to_string(ns / kNanosPerSecond) + " s"; }
template <typename T>
std::string Number(T value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

TEST(ContractLimits, AreThoseOfTheServicesComments) {
  const std::string text = Text("proto/withy/v1/llm_service.proto");
  EXPECT_THAT(text, HasSubstr("the prompt is longer than " + Mib(kMaxPromptBytes) + " or " +
                              Number(kMaxMessages) + " messages"));
  EXPECT_THAT(text, HasSubstr("1.." + Number(kMaxAppNameBytes) + " characters"));
  EXPECT_THAT(text, HasSubstr("at most " + Kib(kMaxSystemPromptBytes)));
  EXPECT_THAT(text, HasSubstr("name for people, at most " + Number(kMaxTitleBytes) + " bytes"));
  EXPECT_THAT(text, HasSubstr("Optional, at most " + Number(kMaxIdBytes) + " bytes. Creating"));
  EXPECT_THAT(text, HasSubstr("Optional, at most " + Number(kMaxIdBytes) + " bytes, remembered"));
  EXPECT_THAT(text, HasSubstr("raw text as in Prompt.text. At most " + Mib(kMaxScoreBytes)));
  EXPECT_THAT(text, HasSubstr("1 to " + Number(kMaxEmbedInputs) + ", of at most " +
                              Mib(kMaxPromptBytes) + " each."));
  EXPECT_THAT(text, HasSubstr("Alternatives of each reported token. Range 0.." +
                              Number(kMaxTopLogprobs) + "."));
  EXPECT_THAT(text, HasSubstr("0 = " + Number(kDefaultPageSize) + ". Range up to " +
                              Number(kMaxPageSize) + "."));
  EXPECT_THAT(text, HasSubstr(Number(kDeltaIntervalNs / kNanosPerMilli) + " ms of a delta"));
  EXPECT_THAT(text, HasSubstr("is not read for " + Seconds(kStalledReaderNs) +
                              " (of the draft: " + Seconds(kStalledDraftReaderNs)));
}

TEST(ContractLimits, AreThoseOfTheTypesComments) {
  const std::string text = Text("proto/withy/v1/types.proto");
  EXPECT_THAT(text, HasSubstr("Unique within the conversation, at most " + Number(kMaxIdBytes)));
  EXPECT_THAT(text, HasSubstr("Name of the function, at most " + Number(kMaxCalledNameBytes)));
  EXPECT_THAT(text, HasSubstr("At most " + Number(kMaxCallsOfMessage) + "."));
  EXPECT_THAT(text, HasSubstr("At most " + Number(kMaxTools) + " tools of " + Kib(kMaxToolsBytes) +
                              " together, names of at most " + Number(kMaxToolNameBytes)));
  EXPECT_THAT(text, HasSubstr("a JSON object of at most " + Kib(kMaxTemplateArgumentsBytes)));
  EXPECT_THAT(text, HasSubstr("most likely token. Range [0, " + Number(kMaxTemperature) + "]"));
  EXPECT_THAT(text, HasSubstr("1 = off. Range (0, " + Number(kMaxRepetitionPenalty) + "]"));
  EXPECT_THAT(text, HasSubstr("to the logits of these tokens. At most " + Number(kMaxLogitBiases)));
  EXPECT_THAT(text,
              HasSubstr("Range [-" + Number(kMaxLogitBias) + ", " + Number(kMaxLogitBias) + "]"));
  EXPECT_THAT(text, HasSubstr("0 = off. Range [-" + Number(kMaxPenalty) + ", " +
                              Number(kMaxPenalty) + "]"));
  EXPECT_THAT(text, HasSubstr("0 = none. Range 0.." + Number(kMaxRepetitionWindow) + "."));
  EXPECT_THAT(text, HasSubstr("At most " + Number(kMaxStopStrings) + ", each 1 to " +
                              Number(kMaxStopStringBytes) + " bytes"));
  EXPECT_THAT(text, HasSubstr("Unset = none. Range 0.." + Number(kMaxTopLogprobs) + "."));
  EXPECT_THAT(text, HasSubstr("A JSON Schema document, at most " + Kib(kMaxSchemaBytes)));
  EXPECT_THAT(text, HasSubstr("such as maxItems are at most " + Number(kMaxRepetitions) + "."));
  EXPECT_THAT(text, HasSubstr("A regular expression, at most " + Kib(kMaxRegexBytes)));
  EXPECT_THAT(text, HasSubstr("A grammar in EBNF, at most " + Kib(kMaxGrammarBytes)));
}

TEST(ContractLimits, AreThoseOfTheDocuments) {
  const std::string openai = Text("docs/openai-api.md");
  EXPECT_THAT(openai, HasSubstr("At most " + Number(kMaxTools) + " tools of " +
                                Kib(kMaxToolsBytes) + " together"));
  EXPECT_THAT(openai, HasSubstr("a body above " + Mib(kMaxRequestBytes)));
  EXPECT_THAT(Text("docs/operations.md"),
              HasSubstr("did not read its answer for " + Seconds(kStalledReaderNs) +
                        " (of the draft: " + Seconds(kStalledDraftReaderNs) + ")"));
  EXPECT_THAT(Text("docs/usage.md"), HasSubstr("one text of at most " + Mib(kMaxScoreBytes)));
}

}  // namespace
}  // namespace withy
