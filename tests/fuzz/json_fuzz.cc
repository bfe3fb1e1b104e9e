// Arbitrary bytes as the body of a request to the HTTP API: a call, or a refusal that is text. The
// same bytes as JSON of each of the forms in which the program reads it: what one of them takes is
// walked over, and a value is what nlohmann's own parser makes of the text.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "engine/chat/tool_calls.h"
#include "engine/jinja/json.h"
#include "engine/jinja/value.h"
#include "orchestrator/call/validate.h"
#include "orchestrator/openai/embeddings/embeddings_request.h"
#include "orchestrator/openai/openai_request.h"
#include "tests/fuzz/small_stack.h"

namespace withy {
namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

void RequireText(const absl::Status& status) {
  const std::string_view message = ToStd(status.message());
  Require(!message.empty() && ValidUtf8(message) == message, "an error is text");
}

void CheckBody(std::string_view body) {
  using orchestrator::OpenAiKind;
  for (const OpenAiKind kind : {OpenAiKind::kChat, OpenAiKind::kCompletion}) {
    const auto call = orchestrator::ParseOpenAiCall(
        kind, body, [](const char*) -> std::optional<std::string> { return std::nullopt; });
    const absl::Status status =
        call.ok() ? orchestrator::ValidateGenerate(call->request) : call.status();
    if (!status.ok()) RequireText(status);
  }
  const auto vectors = orchestrator::ParseEmbeddingsCall(body);
  const absl::Status status =
      vectors.ok() ? orchestrator::ValidateEmbed(vectors->request) : vectors.status();
  if (!status.ok()) RequireText(status);
}

void CheckValue(std::string_view text) {
  OrderedJson ordered;
  nlohmann::json sorted;
  const absl::Status parsed = ParseJson(text, &ordered);
  Require(ParseJson(text, &sorted).ok() == parsed.ok(), "both kinds of objects are parsed");
  if (!parsed.ok()) return RequireText(parsed);
  Require(JsonDepth(text) <= kMaxJsonDepth, "the depth is bounded");
  Require(OrderedJson(ordered) == ordered, "a copy is equal");
  const std::string written = ordered.dump();
  Require(nlohmann::json::parse(written) == sorted, "keys and values are those of the text");
  OrderedJson again;
  Require(ParseJson(written, &again).ok() && again.dump() == written, "what is written is read");
}

void CheckTemplateValue(std::string_view text) {
  const auto value = jinja::FromJson(text, jinja::kFromData);
  if (!value.ok()) return RequireText(value.status());
  Require(value->depth() <= kMaxJsonDepth, "the depth of a template's value is bounded");
  if (!StackAllows(static_cast<size_t>(value->depth()) * kFrameScale * 512)) return;
  const auto written = jinja::ToJson(*value, {});
  if (!written.ok()) return RequireText(written.status());
  (void)jinja::Repr(*value);
}

void CheckAnswer(std::string_view text) {
  const engine::ToolCallParser tools(text);
  (void)tools.Parse(text);
  const engine::AnswerParts parts =
      engine::ToolCallParser(R"([{"name": "f"}])")
          .Parse("<function=f><parameter=a>" + std::string(text) + "</parameter></function>");
  for (const engine::ToolCall& call : parts.calls) {
    nlohmann::json arguments;
    Require(nlohmann::json::accept(call.arguments_json), "a call's arguments are JSON");
  }
}

}  // namespace
}  // namespace withy

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  withy::OnSmallStack([&] {
    withy::CheckBody(text);
    withy::CheckValue(text);
    withy::CheckTemplateValue(text);
    withy::CheckAnswer(text);
  });
  return 0;
}
