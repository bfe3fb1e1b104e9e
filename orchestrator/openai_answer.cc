#include "orchestrator/openai_answer.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "engine/chat/tool_calls.h"
#include "rpc/status.h"

namespace withy::orchestrator {
namespace {

// Fields in the order in which OpenAI's documents have them.
using OutJson = nlohmann::ordered_json;

// A token need not be valid UTF-8; what is not becomes U+FFFD.
std::string Dump(const OutJson& json) {
  return json.dump(-1, ' ', false, OutJson::error_handler_t::replace);
}

// By the contract's names of fields.
OutJson FromWire(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return {};
  return OutJson::parse(text, nullptr, /*allow_exceptions=*/false);
}

const char* FinishReasonOf(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_MAX_TOKENS:
    case v1::FINISH_REASON_CONTEXT_FULL:
      return "length";
    case v1::FINISH_REASON_TOOL_CALLS:
      return "tool_calls";
    default:
      return "stop";
  }
}

OutJson BytesOf(const std::string& text) {
  OutJson bytes = OutJson::array();
  for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  return bytes;
}

template <typename Tokens>
OutJson ChatLogprobs(const Tokens& tokens) {
  OutJson content = OutJson::array();
  for (const v1::Token& token : tokens) {
    if (!token.has_logprob()) continue;
    OutJson top = OutJson::array();
    for (const v1::TokenAlternative& other : token.alternatives()) {
      top.push_back({{"token", other.text()},
                     {"logprob", other.logprob()},
                     {"bytes", BytesOf(other.text())}});
    }
    content.push_back({{"token", token.text()},
                       {"logprob", token.logprob()},
                       {"bytes", BytesOf(token.text())},
                       {"top_logprobs", std::move(top)}});
  }
  if (content.empty()) return nullptr;
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// `offset`: bytes of the answer before the first of these tokens.
template <typename Tokens>
OutJson CompletionLogprobs(const Tokens& tokens, size_t offset) {
  OutJson names = OutJson::array(), logprobs = OutJson::array(), top = OutJson::array(),
          offsets = OutJson::array();
  for (const v1::Token& token : tokens) {
    if (!token.has_logprob()) continue;
    names.push_back(token.text());
    logprobs.push_back(token.logprob());
    OutJson others = OutJson::object();
    for (const v1::TokenAlternative& other : token.alternatives()) {
      others[other.text()] = other.logprob();
    }
    top.push_back(std::move(others));
    offsets.push_back(offset);
    offset += token.text().size();
  }
  if (names.empty()) return nullptr;
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(top)},
          {"text_offset", std::move(offsets)}};
}

OutJson UsageOf(const v1::Usage& usage) {
  const uint32_t prompt = usage.context_tokens() + usage.prompt_tokens();
  return {{"prompt_tokens", prompt},
          {"completion_tokens", usage.completion_tokens()},
          {"total_tokens", prompt + usage.completion_tokens()},
          {"prompt_tokens_details", {{"cached_tokens", usage.reused_tokens()}}},
          {"completion_tokens_details",
           {{"accepted_prediction_tokens", usage.accepted_tokens()},
            {"rejected_prediction_tokens", usage.drafted_tokens() - usage.accepted_tokens()}}}};
}

OutJson OutcomeOf(const v1::GenerateFinished& outcome) {
  OutJson json = {{"latency", FromWire(outcome.latency())},
                  {"seed", outcome.seed()},
                  {"sampling", FromWire(outcome.sampling())},
                  {"model_levels_percent", OutJson::array()},
                  {"speculation", FromWire(outcome.speculation())}};
  for (const uint32_t level : outcome.model_levels_percent()) {
    json["model_levels_percent"].push_back(level);
  }
  if (!outcome.explanation().empty()) json["explanation"] = outcome.explanation();
  return json;
}

OutJson StartOf(const v1::GenerateStarted& started) {
  return {{"call_id", started.call_id()},
          {"decision", FromWire(started.decision())},
          {"replayed", started.replayed()}};
}

OutJson CallOf(const v1::ToolCall& call) {
  return {{"id", call.id()},
          {"type", "function"},
          {"function", {{"name", call.name()}, {"arguments", call.arguments_json()}}}};
}

// Whether the answer may call tools. Those of a context are not known here.
bool MayCall(const OpenAiCall& call) {
  if (call.kind != OpenAiKind::kChat) return false;
  return !engine::IsEmptyJson(call.request.prompt().messages().tools_json()) ||
         !call.request.context_id().empty();
}

// What all documents of a call begin with.
OutJson Head(const OpenAiCall& call, const v1::GenerateStarted& started, int64_t created,
             bool chunk) {
  const bool chat = call.kind == OpenAiKind::kChat;
  return {{"id", absl::StrCat(chat ? "chatcmpl-" : "cmpl-", started.call_id())},
          {"object", !chat   ? "text_completion"
                     : chunk ? "chat.completion.chunk"
                             : "chat.completion"},
          {"created", created},
          {"model", started.model()}};
}

// A chunk with one choice. `reason` null: the answer goes on.
OutJson Chunk(const OpenAiCall& call, const v1::GenerateStarted& started, int64_t created,
              OutJson delta, OutJson logprobs, const char* reason) {
  OutJson json = Head(call, started, created, true);
  OutJson choice = {{"index", 0}};
  if (call.kind == OpenAiKind::kChat) {
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = delta.is_string() ? std::move(delta) : OutJson("");
  }
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = reason == nullptr ? OutJson(nullptr) : OutJson(reason);
  json["choices"] = OutJson::array({std::move(choice)});
  if (call.include_usage) json["usage"] = nullptr;
  return json;
}

OutJson ModelOf(const v1::ModelDescription& model, int64_t created) {
  return {{"id", model.name()},
          {"object", "model"},
          {"created", created},
          {"owned_by", "withy"},
          {"withy", FromWire(model)}};
}

}  // namespace

OpenAiAnswer::OpenAiAnswer(const OpenAiCall& call, int64_t created_unix_s)
    : call_(call), created_unix_s_(created_unix_s) {}

std::vector<std::string> OpenAiAnswer::OnEvent(const v1::GenerateResponse& event) {
  if (event.has_delta()) return OnDelta(event.delta());
  if (event.has_finished()) {
    finished_ = true;
    outcome_ = event.finished();
    return OnFinished();
  }
  if (!event.has_started()) return {};
  // A second one: the worker was replaced before the first token, and the answer begins anew.
  const bool first = started_.call_id().empty();
  started_ = event.started();
  if (!first) return {};
  const bool chat = call_.kind == OpenAiKind::kChat;
  OutJson json = Chunk(call_, started_, created_unix_s_,
                       chat ? OutJson{{"role", "assistant"}, {"content", ""}}
                            : OutJson(call_.echo ? call_.request.prompt().text() : ""),
                       nullptr, nullptr);
  json["withy"] = StartOf(started_);
  return {Dump(json)};
}

std::string OpenAiAnswer::TextChunk(std::string_view text) {
  const bool chat = call_.kind == OpenAiKind::kChat;
  OutJson logprobs = chat ? ChatLogprobs(held_) : CompletionLogprobs(held_, sent_bytes_);
  held_.clear();
  sent_bytes_ += text.size();
  return Dump(Chunk(call_, started_, created_unix_s_,
                    chat ? OutJson{{"content", std::string(text)}} : OutJson(std::string(text)),
                    std::move(logprobs), nullptr));
}

std::vector<std::string> OpenAiAnswer::OnDelta(const v1::GenerateDelta& delta) {
  if (call_.request.limits().has_logprobs()) {
    tokens_.insert(tokens_.end(), delta.tokens().begin(), delta.tokens().end());
    held_.insert(held_.end(), delta.tokens().begin(), delta.tokens().end());
  }
  text_ += delta.text();
  const bool may_call = MayCall(call_);
  const size_t end = may_call ? engine::ShownBeforeCalls(text_, sent_bytes_) : text_.size();
  if (end == sent_bytes_ && (held_.empty() || may_call)) return {};
  return {TextChunk(std::string_view(text_).substr(sent_bytes_, end - sent_bytes_))};
}

std::vector<std::string> OpenAiAnswer::OnFinished() {
  std::vector<std::string> sent;
  const std::string text = outcome_.tool_calls().empty() ? text_ : Said().content();
  const std::string_view rest = std::string_view(text).substr(std::min(sent_bytes_, text.size()));
  if (!rest.empty() || !held_.empty()) sent.push_back(TextChunk(rest));
  const auto chunk = [&](OutJson delta, const char* reason) {
    return Chunk(call_, started_, created_unix_s_, std::move(delta), nullptr, reason);
  };
  for (int i = 0; i < outcome_.tool_calls_size(); ++i) {
    OutJson call = {{"index", i}};
    call.update(CallOf(outcome_.tool_calls(i)));
    sent.push_back(Dump(chunk({{"tool_calls", OutJson::array({std::move(call)})}}, nullptr)));
  }
  const bool chat = call_.kind == OpenAiKind::kChat;
  OutJson last = chunk(chat ? OutJson::object() : OutJson(""), FinishReasonOf(outcome_.reason()));
  last["withy"] = OutcomeOf(outcome_);
  sent.push_back(Dump(last));
  if (call_.include_usage) {
    OutJson usage = Head(call_, started_, created_unix_s_, true);
    usage["choices"] = OutJson::array();
    usage["usage"] = UsageOf(outcome_.usage());
    sent.push_back(Dump(usage));
  }
  sent.emplace_back("[DONE]");
  return sent;
}

v1::Message OpenAiAnswer::Said() const {
  v1::Message message;
  message.set_role("assistant");
  message.set_content(outcome_.text());
  if (outcome_.tool_calls().empty()) return message;
  *message.mutable_tool_calls() = outcome_.tool_calls();
  std::vector<std::string> names;  // the tools of a context are not known here
  for (const v1::ToolCall& call : outcome_.tool_calls()) names.push_back(call.name());
  message.set_content(engine::ToolCallParser(names).Parse(outcome_.text()).text);
  return message;
}

std::string OpenAiAnswer::Document() const {
  const bool chat = call_.kind == OpenAiKind::kChat;
  OutJson choice = {{"index", 0}};
  if (chat) {
    const v1::Message said = Said();
    const bool only_calls = said.content().empty() && said.tool_calls_size() > 0;
    choice["message"] = {{"role", "assistant"},
                         {"content", only_calls ? OutJson(nullptr) : OutJson(said.content())},
                         {"refusal", nullptr}};
    if (said.tool_calls_size() > 0) {
      OutJson& calls = choice["message"]["tool_calls"] = OutJson::array();
      for (const v1::ToolCall& call : said.tool_calls()) calls.push_back(CallOf(call));
    }
    choice["logprobs"] = ChatLogprobs(tokens_);
  } else {
    choice["text"] =
        call_.echo ? absl::StrCat(call_.request.prompt().text(), outcome_.text()) : outcome_.text();
    choice["logprobs"] = CompletionLogprobs(tokens_, 0);
  }
  choice["finish_reason"] = FinishReasonOf(outcome_.reason());
  OutJson json = Head(call_, started_, created_unix_s_, false);
  json["choices"] = OutJson::array({std::move(choice)});
  json["usage"] = UsageOf(outcome_.usage());
  json["withy"] = StartOf(started_);
  json["withy"].update(OutcomeOf(outcome_));
  return Dump(json);
}

std::string OpenAiModel(const v1::ModelDescription& model, int64_t created_unix_s) {
  return Dump(ModelOf(model, created_unix_s));
}

std::string OpenAiModels(const v1::ListModelsResponse& models, int64_t created_unix_s) {
  OutJson data = OutJson::array();
  for (const v1::ModelDescription& model : models.models()) {
    if (model.role() == "tlm") continue;  // answers nobody
    data.push_back(ModelOf(model, created_unix_s));
  }
  return Dump({{"object", "list"}, {"data", std::move(data)}});
}

}  // namespace withy::orchestrator
