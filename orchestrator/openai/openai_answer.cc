#include "orchestrator/openai/openai_answer.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "absl/strings/str_cat.h"
#include "engine/chat/thoughts.h"
#include "engine/chat/tool_calls.h"
#include "orchestrator/call/validate.h"

namespace withy::orchestrator {
namespace {

// Fields in the order in which OpenAI's documents have them.
using OutJson = nlohmann::ordered_json;

constexpr char kContent[] = "content";
// Thoughts, by the name that other servers gave them.
constexpr char kReasoning[] = "reasoning_content";

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
    case v1::FINISH_REASON_KV_FULL:
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

// OpenAI's name of a token that is no whole text: "bytes:\xe2\x82". Different tokens have different
// names.
std::string NameOf(const std::string& text) {
  if (FindInvalidUtf8(text) == std::string_view::npos) return text;
  std::string name = "bytes:";
  for (const char byte : text) {
    absl::StrAppend(&name, "\\x", absl::Hex(static_cast<unsigned char>(byte), absl::kZeroPad2));
  }
  return name;
}

// `characters`: those of the text before the first of these tokens, and then with them.
OutJson CompletionLogprobs(std::span<const v1::Token> tokens, CharacterCounter* characters) {
  OutJson names = OutJson::array(), logprobs = OutJson::array(), top = OutJson::array(),
          offsets = OutJson::array();
  for (const v1::Token& token : tokens) {
    const std::string name = NameOf(token.text());
    names.push_back(name);
    OutJson others = nullptr;  // as its log-probability: the first token of a prompt has none
    if (token.has_logprob()) {
      others = OutJson::object();
      for (const v1::TokenAlternative& other : token.alternatives()) {
        others.emplace(NameOf(other.text()), other.logprob());
      }
      if (!others.empty()) others.emplace(name, token.logprob());  // if it is none of the likeliest
    }
    logprobs.push_back(token.has_logprob() ? OutJson(token.logprob()) : OutJson(nullptr));
    top.push_back(std::move(others));
    offsets.push_back(characters->whole());
    characters->Add(token.text());
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
                  {"speculation", FromWire(outcome.speculation())},
                  {"compressed_kv_tokens", outcome.usage().compressed_kv_tokens()},
                  {"other_level_kv_tokens", outcome.usage().other_level_kv_tokens()}};
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
  OutJson beginning = "";
  if (call_.kind == OpenAiKind::kChat) {
    beginning = {{"role", "assistant"}, {"content", ""}};
  } else if (call_.echo) {
    beginning = call_.request.prompt().text();
  }
  OutJson json = Chunk(call_, started_, created_unix_s_, std::move(beginning),
                       CompletionLogprobs(prompt_tokens_, &characters_), nullptr);
  json["withy"] = StartOf(started_);
  return {Dump(json)};
}

void OpenAiAnswer::EchoPrompt(std::vector<v1::Token> tokens) { prompt_tokens_ = std::move(tokens); }

std::string OpenAiAnswer::TextChunk(const char* field, std::string_view text) {
  const bool chat = call_.kind == OpenAiKind::kChat;
  OutJson logprobs = chat ? ChatLogprobs(held_) : CompletionLogprobs(held_, &characters_);
  held_.clear();
  return Dump(Chunk(call_, started_, created_unix_s_,
                    chat ? OutJson{{field, std::string(text)}} : OutJson(std::string(text)),
                    std::move(logprobs), nullptr));
}

// What of `text` is known to be thought, and where the answer begins.
size_t OpenAiAnswer::SendThought(std::string_view text, bool whole,
                                 std::vector<std::string>* sent) {
  if (call_.kind != OpenAiKind::kChat) return 0;
  const engine::ThoughtSpan span =
      engine::FindThought(text, started_.answer_begins_in_thought(), whole);
  const size_t from = std::max(span.begin, thought_sent_);
  if (span.thinks && span.end > from) {
    sent->push_back(TextChunk(kReasoning, text.substr(from, span.end - from)));
    thought_sent_ = span.end;
  }
  return span.answer;
}

std::vector<std::string> OpenAiAnswer::OnDelta(const v1::GenerateDelta& delta) {
  if (call_.request.limits().has_logprobs()) {
    tokens_.insert(tokens_.end(), delta.tokens().begin(), delta.tokens().end());
    held_.insert(held_.end(), delta.tokens().begin(), delta.tokens().end());
  }
  text_ += delta.text();
  std::vector<std::string> sent;
  const size_t answer = SendThought(text_, /*whole=*/false, &sent);
  if (answer == engine::ThoughtSpan::kNotYet) return sent;
  const size_t from = std::max(sent_bytes_, answer);
  const bool may_call = MayCall(call_);
  const size_t end = may_call ? engine::ShownBeforeCalls(text_, from) : text_.size();
  if (end == from && (held_.empty() || may_call)) return sent;
  sent.push_back(TextChunk(kContent, std::string_view(text_).substr(from, end - from)));
  sent_bytes_ = end;
  return sent;
}

std::vector<std::string> OpenAiAnswer::OnFinished() {
  std::vector<std::string> sent;
  const std::string text = TextOutsideCalls();
  const size_t answer = std::max(SendThought(text, /*whole=*/true, &sent), sent_bytes_);
  const std::string_view rest = std::string_view(text).substr(std::min(answer, text.size()));
  if (!rest.empty() || !held_.empty()) sent.push_back(TextChunk(kContent, rest));
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

std::string OpenAiAnswer::TextOutsideCalls() const {
  if (outcome_.tool_calls().empty()) return outcome_.text();
  std::vector<std::string> names;  // the tools of a context are not known here
  for (const v1::ToolCall& call : outcome_.tool_calls()) names.push_back(call.name());
  return engine::ToolCallParser(names).Parse(outcome_.text()).text;
}

v1::Message OpenAiAnswer::Said() const {
  v1::Message message;
  message.set_role("assistant");
  message.set_content(
      engine::WithoutThought(TextOutsideCalls(), started_.answer_begins_in_thought()));
  *message.mutable_tool_calls() = outcome_.tool_calls();
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
    const std::string text = TextOutsideCalls();
    const engine::ThoughtSpan thought =
        engine::FindThought(text, started_.answer_begins_in_thought(), /*whole=*/true);
    if (thought.thinks) {
      choice["message"][kReasoning] = text.substr(thought.begin, thought.end - thought.begin);
    }
    if (said.tool_calls_size() > 0) {
      OutJson& calls = choice["message"]["tool_calls"] = OutJson::array();
      for (const v1::ToolCall& call : said.tool_calls()) calls.push_back(CallOf(call));
    }
    choice["logprobs"] = ChatLogprobs(tokens_);
  } else {
    choice["text"] =
        call_.echo ? absl::StrCat(call_.request.prompt().text(), outcome_.text()) : outcome_.text();
    std::vector<v1::Token> tokens = prompt_tokens_;
    tokens.insert(tokens.end(), tokens_.begin(), tokens_.end());
    CharacterCounter characters;
    choice["logprobs"] = CompletionLogprobs(tokens, &characters);
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
