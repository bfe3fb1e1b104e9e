#include "orchestrator/openai/openai_answer.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "orchestrator/call/validate.h"
#include "orchestrator/openai/openai_error.h"

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

// The message of a finished chat.
OutJson MessageOf(const AnswerText& text) {
  const v1::Message said = text.Said();
  const bool only_calls = said.content().empty() && said.tool_calls_size() > 0;
  OutJson message = {{"role", "assistant"},
                     {"content", only_calls ? OutJson(nullptr) : OutJson(said.content())},
                     {"refusal", nullptr}};
  if (std::string thought = text.Thought(); !thought.empty()) {
    message[kReasoning] = std::move(thought);
  }
  if (said.tool_calls_size() > 0) {
    OutJson& calls = message["tool_calls"] = OutJson::array();
    for (const v1::ToolCall& call : said.tool_calls()) calls.push_back(CallOf(call));
  }
  return message;
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
  OutJson choice = {{"index", call.choice}};
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

OpenAiAnswer::OpenAiAnswer(std::span<const OpenAiCall> choices, int64_t created_unix_s)
    : created_unix_s_(created_unix_s) {
  for (const OpenAiCall& call : choices) {
    choices_.push_back(
        {.call = call, .text = AnswerText(call.kind == OpenAiKind::kChat, call.MayCallTools())});
  }
}

std::vector<ServerEvent> OpenAiAnswer::OnEvent(size_t choice, const v1::GenerateResponse& event) {
  Choice& told = choices_[choice];
  if (event.has_delta()) return OnDelta(told, event.delta());
  if (event.has_finished()) return OnFinished(told, event.finished());
  if (event.has_started()) return OnStarted(told, event.started());
  return {};
}

std::vector<ServerEvent> OpenAiAnswer::OnStarted(Choice& choice,
                                                 const v1::GenerateStarted& started) {
  if (first_.call_id().empty()) first_ = started;
  if (!choice.text.Start(started)) return {};
  OutJson beginning = "";
  if (choice.call.kind == OpenAiKind::kChat) {
    beginning = {{"role", "assistant"}, {"content", ""}};
  } else if (choice.call.echo) {
    beginning = choice.call.request.prompt().text();
  }
  OutJson json = Chunk(choice.call, first_, created_unix_s_, std::move(beginning),
                       CompletionLogprobs(choice.call.echoed, &choice.characters), nullptr);
  json["withy"] = StartOf(started);
  return {{.name = "", .data = Dump(json)}};
}

void OpenAiAnswer::AddText(Choice& choice, const std::vector<AnswerPiece>& pieces,
                           std::vector<ServerEvent>* sent) const {
  const bool chat = choice.call.kind == OpenAiKind::kChat;
  for (const AnswerPiece& piece : pieces) {
    if (piece.text.empty() && choice.held.empty()) continue;
    OutJson logprobs =
        chat ? ChatLogprobs(choice.held) : CompletionLogprobs(choice.held, &choice.characters);
    choice.held.clear();
    OutJson delta = piece.text;
    if (chat) delta = {{piece.thought ? kReasoning : kContent, piece.text}};
    sent->push_back({.name = "",
                     .data = Dump(Chunk(choice.call, first_, created_unix_s_, std::move(delta),
                                        std::move(logprobs), nullptr))});
  }
}

std::vector<ServerEvent> OpenAiAnswer::OnDelta(Choice& choice, const v1::GenerateDelta& delta) {
  if (choice.call.request.limits().has_logprobs()) {
    choice.tokens.insert(choice.tokens.end(), delta.tokens().begin(), delta.tokens().end());
    choice.held.insert(choice.held.end(), delta.tokens().begin(), delta.tokens().end());
  }
  std::vector<ServerEvent> sent;
  AddText(choice, choice.text.Add(delta), &sent);
  return sent;
}

std::vector<ServerEvent> OpenAiAnswer::OnFinished(Choice& choice,
                                                  const v1::GenerateFinished& outcome) {
  std::vector<ServerEvent> sent;
  AddText(choice, choice.text.Finish(outcome), &sent);
  const auto chunk = [&](OutJson delta, const char* reason) {
    return Chunk(choice.call, first_, created_unix_s_, std::move(delta), nullptr, reason);
  };
  for (int i = 0; i < outcome.tool_calls_size(); ++i) {
    OutJson call = {{"index", i}};
    call.update(CallOf(outcome.tool_calls(i)));
    OutJson calls = {{"tool_calls", OutJson::array({std::move(call)})}};
    sent.push_back({.name = "", .data = Dump(chunk(std::move(calls), nullptr))});
  }
  const bool chat = choice.call.kind == OpenAiKind::kChat;
  OutJson last = chunk(chat ? OutJson::object() : OutJson(""), FinishReasonOf(outcome.reason()));
  last["withy"] = OutcomeOf(outcome);
  sent.push_back({.name = "", .data = Dump(last)});
  return sent;
}

// A prompt that several choices answer counts once.
OutJson OpenAiAnswer::Usage() const {
  v1::Usage sum;
  for (const Choice& choice : choices_) {
    const v1::Usage& usage = choice.text.outcome().usage();
    if (choice.call.sample == 0) {
      sum.set_prompt_tokens(sum.prompt_tokens() + usage.context_tokens() + usage.prompt_tokens());
      sum.set_reused_tokens(sum.reused_tokens() + usage.reused_tokens());
    }
    sum.set_completion_tokens(sum.completion_tokens() + usage.completion_tokens());
    sum.set_drafted_tokens(sum.drafted_tokens() + usage.drafted_tokens());
    sum.set_accepted_tokens(sum.accepted_tokens() + usage.accepted_tokens());
  }
  return UsageOf(sum);
}

std::vector<ServerEvent> OpenAiAnswer::End() {
  std::vector<ServerEvent> sent;
  const OpenAiCall& call = choices_.front().call;
  if (call.include_usage) {
    OutJson usage = Head(call, first_, created_unix_s_, true);
    usage["choices"] = OutJson::array();
    usage["usage"] = Usage();
    sent.push_back({.name = "", .data = Dump(usage)});
  }
  sent.push_back({.name = "", .data = "[DONE]"});
  return sent;
}

// It ends without [DONE].
std::vector<ServerEvent> OpenAiAnswer::Fail(const absl::Status& status) {
  return {{.name = "", .data = OpenAiError(status)}};
}

std::string OpenAiAnswer::Document() const {
  OutJson choices = OutJson::array();
  for (const Choice& one : choices_) {
    OutJson choice = {{"index", one.call.choice}};
    if (one.call.kind == OpenAiKind::kChat) {
      choice["message"] = MessageOf(one.text);
      choice["logprobs"] = ChatLogprobs(one.tokens);
    } else {
      const std::string& text = one.text.outcome().text();
      choice["text"] = one.call.echo ? absl::StrCat(one.call.request.prompt().text(), text) : text;
      std::vector<v1::Token> tokens = one.call.echoed;
      tokens.insert(tokens.end(), one.tokens.begin(), one.tokens.end());
      CharacterCounter characters;
      choice["logprobs"] = CompletionLogprobs(tokens, &characters);
    }
    choice["finish_reason"] = FinishReasonOf(one.text.outcome().reason());
    choices.push_back(std::move(choice));
  }
  OutJson json = Head(choices_.front().call, first_, created_unix_s_, false);
  json["choices"] = std::move(choices);
  json["usage"] = Usage();
  json["withy"] = StartOf(choices_.front().text.started());
  json["withy"].update(OutcomeOf(choices_.front().text.outcome()));
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
