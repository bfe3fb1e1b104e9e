#include "orchestrator/openai/openai_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "base/json.h"
#include "base/status.h"
#include "orchestrator/call/digest.h"
#include "orchestrator/call/validate.h"
#include "orchestrator/call/validate_tools.h"

namespace withy::orchestrator {
namespace {

// Keeps the order of keys, which a model sees in tools.
using Json = OrderedJson;

// Levels around a tool's schema or a call's arguments, which have kMaxJsonDepth of their own.
constexpr int kOuterLevels = 8;

absl::Status Wrong(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ToAbsl(what)));
}

absl::Status WrongType(std::string_view field, const Json& value, std::string_view wanted) {
  return Wrong(field,
               absl::StrCat(" is of type ", value.type_name(), ": it must be ", ToAbsl(wanted)));
}

// A value as text.
absl::StatusOr<std::string> JsonText(std::string_view field, const Json& value) {
  std::string text = value.dump();
  if (const int depth = JsonDepth(text); depth > kMaxJsonDepth) {
    return Wrong(field, absl::StrCat(" is nested ", depth, " levels deep: at most ", kMaxJsonDepth,
                                     "; make it flatter"));
  }
  return text;
}

// A member that is there and not null.
const Json* Find(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<std::optional<double>> Number(const Json& object, const char* name) {
  const Json* value = Find(object, name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) return WrongType(name, *value, "a number");
  return value->get<double>();
}

// A whole number, also one that is written with a point, as some languages write all numbers.
struct WholeNumber {
  bool negative = false;
  uint64_t magnitude = 0;  // of one that is too large: the largest

  bool operator==(const WholeNumber&) const = default;
};

constexpr WholeNumber kMinusOne = {.negative = true, .magnitude = 1};

absl::StatusOr<std::optional<WholeNumber>> Whole(const Json& object, const char* name) {
  const Json* value = Find(object, name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return WholeNumber{.magnitude = value->get<uint64_t>()};
  if (value->is_number_integer()) {
    return WholeNumber{.negative = true,
                       .magnitude = 0 - static_cast<uint64_t>(value->get<int64_t>())};
  }
  if (!value->is_number()) return WrongType(name, *value, "a whole number");
  const double number = value->get<double>();
  if (std::trunc(number) != number) {
    return Wrong(name, absl::StrCat(" is ", number, ": it must be a whole number"));
  }
  constexpr double kTooLarge = 18446744073709551616.0;  // 2^64
  const double size = std::abs(number);
  return WholeNumber{.negative = number < 0,
                     .magnitude = size < kTooLarge ? static_cast<uint64_t>(size) : UINT64_MAX};
}

std::string InWords(const WholeNumber& number) {
  return absl::StrCat(number.negative ? "-" : "", number.magnitude);
}

absl::StatusOr<std::optional<uint64_t>> Count(const Json& object, const char* name,
                                              uint64_t highest) {
  WITHY_ASSIGN_OR_RETURN(const std::optional<WholeNumber> number, Whole(object, name));
  if (!number) return std::nullopt;
  if (number->negative || number->magnitude > highest) {
    return Wrong(name, absl::StrCat(" is ", InWords(*number), ": it must be from 0 to ", highest));
  }
  return number->magnitude;
}

absl::StatusOr<bool> Flag(const Json& object, const char* name) {
  const Json* value = Find(object, name);
  if (value == nullptr) return false;
  if (!value->is_boolean()) return WrongType(name, *value, "true or false");
  return value->get<bool>();
}

// `path`: what stands before the name in errors.
absl::StatusOr<std::string> Text(const Json& object, const std::string& path, const char* name) {
  const Json* value = Find(object, name);
  if (value == nullptr) return std::string();
  if (!value->is_string()) return WrongType(path + name, *value, "a string");
  return value->get_ref<const std::string&>();
}

// A field that withy honours for one value alone.
absl::Status Only(const Json& object, const char* name, double value) {
  WITHY_ASSIGN_OR_RETURN(const std::optional<double> given, Number(object, name));
  if (!given || *given == value) return absl::OkStatus();
  return Wrong(name, absl::StrCat(" is ", *given, ", which withy does not support: leave it out"));
}

absl::Status NotEmpty(const Json& object, const char* name, std::string_view remedy) {
  const Json* value = Find(object, name);
  if (value == nullptr || value->empty()) return absl::OkStatus();
  if (value->is_string() && value->get_ref<const std::string&>().empty()) return absl::OkStatus();
  return Wrong(name, absl::StrCat(" is not supported: ", ToAbsl(remedy)));
}

// `content`: a string, or an array of parts of which all are text.
absl::StatusOr<std::string> ContentOf(const Json& message, const std::string& field) {
  const Json* content = Find(message, "content");
  if (content == nullptr) return std::string();
  if (content->is_string()) return content->get_ref<const std::string&>();
  if (!content->is_array()) return WrongType(field, *content, "a string or an array of parts");
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& part = (*content)[i];
    const std::string name = absl::StrCat(field, "[", i, "]");
    if (!part.is_object()) return WrongType(name, part, "an object");
    WITHY_ASSIGN_OR_RETURN(const std::string type, Text(part, name + ".", "type"));
    if (type != "text") {
      return Wrong(name, absl::StrCat(".type is \"", type, "\": the model reads text only"));
    }
    const Json* piece = Find(part, "text");
    if (piece == nullptr || !piece->is_string()) return Wrong(name, ".text must be a string");
    text += piece->get_ref<const std::string&>();
  }
  return text;
}

// [{"id", "type": "function", "function": {"name", "arguments"}}]
absl::Status ReadCalls(const Json& given, const std::string& field, v1::Message* message) {
  const Json* calls = Find(given, "tool_calls");
  if (calls == nullptr) return absl::OkStatus();
  if (!calls->is_array()) return WrongType(field + ".tool_calls", *calls, "an array");
  for (size_t i = 0; i < calls->size(); ++i) {
    const Json& one = (*calls)[i];
    const std::string name = absl::StrCat(field, ".tool_calls[", i, "]");
    if (!one.is_object()) return WrongType(name, one, "an object");
    const Json* function = Find(one, "function");
    if (function == nullptr || !function->is_object()) {
      return Wrong(name, ".function must be an object: only functions can be called");
    }
    v1::ToolCall* call = message->add_tool_calls();
    WITHY_ASSIGN_OR_RETURN(*call->mutable_id(), Text(one, name + ".", "id"));
    WITHY_ASSIGN_OR_RETURN(*call->mutable_name(), Text(*function, name + ".function.", "name"));
    const Json* arguments = Find(*function, "arguments");
    if (arguments == nullptr) continue;
    // Some clients send the object itself.
    if (arguments->is_string()) {
      call->set_arguments_json(arguments->get_ref<const std::string&>());
    } else {
      WITHY_ASSIGN_OR_RETURN(*call->mutable_arguments_json(), JsonText(name, *arguments));
    }
  }
  return absl::OkStatus();
}

// Tools, and what a template is told beside them.
absl::Status ReadTools(const Json& body, v1::Messages* messages) {
  std::string choice = "auto";
  if (const Json* given = Find(body, "tool_choice")) {
    WITHY_ASSIGN_OR_RETURN(choice, JsonText("tool_choice", *given));
    if (*given != "auto" && *given != "none") {
      return Wrong("tool_choice",
                   absl::StrCat(" is ", choice, ": only \"auto\" and \"none\" are supported"));
    }
  }
  WITHY_RETURN_IF_ERROR(Flag(body, "parallel_tool_calls").status());
  if (const Json* tools = Find(body, "tools")) {
    if (!tools->is_array()) return WrongType("tools", *tools, "an array");
    WITHY_ASSIGN_OR_RETURN(*messages->mutable_tools_json(), JsonText("tools", *tools));
    if (choice == "\"none\"") messages->set_tools_json("[]");
  }
  if (const Json* arguments = Find(body, "chat_template_kwargs")) {
    if (!arguments->is_object()) return WrongType("chat_template_kwargs", *arguments, "an object");
    WITHY_ASSIGN_OR_RETURN(*messages->mutable_template_arguments_json(),
                           JsonText("chat_template_kwargs", *arguments));
  }
  return absl::OkStatus();
}

absl::Status ReadMessage(const Json& given, const std::string& field, bool last,
                         v1::Message* message) {
  if (!given.is_object()) return WrongType(field, given, "an object");
  WITHY_ASSIGN_OR_RETURN(std::string role, Text(given, field + ".", "role"));
  if (role.empty()) return Wrong(field, ".role is missing");
  const bool tool = role == "tool";
  message->set_role(std::move(role));
  WITHY_ASSIGN_OR_RETURN(*message->mutable_content(), ContentOf(given, field + ".content"));
  WITHY_RETURN_IF_ERROR(ReadCalls(given, field, message));
  if (tool) {
    WITHY_ASSIGN_OR_RETURN(*message->mutable_tool_call_id(),
                           Text(given, field + ".", "tool_call_id"));
    WITHY_ASSIGN_OR_RETURN(*message->mutable_name(), Text(given, field + ".", "name"));
  }
  // What was said before belongs to the conversation; it is no example that might be left out. Nor
  // is a tool's result, or an answer that is to go on.
  const bool own_words = last && !tool && message->role() != "assistant";
  if (own_words || message->content().empty()) return absl::OkStatus();
  v1::ByteSpan* all = message->add_fixed();
  all->set_end(static_cast<uint32_t>(message->content().size()));
  return absl::OkStatus();
}

absl::Status ReadMessages(const Json& body, v1::Prompt* prompt) {
  const Json* messages = Find(body, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return Wrong("messages", " must be an array of at least one message");
  }
  if (messages->size() > static_cast<size_t>(kMaxMessages)) {
    return absl::OutOfRangeError(absl::StrCat("messages has ", messages->size(),
                                              " entries: at most ", kMaxMessages,
                                              "; shorten the conversation"));
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    WITHY_RETURN_IF_ERROR(ReadMessage((*messages)[i], absl::StrCat("messages[", i, "]"),
                                      i + 1 == messages->size(),
                                      prompt->mutable_messages()->add_messages()));
  }
  return absl::OkStatus();
}

// Text, or tokens; alone or as an array of one.
absl::Status ReadPrompt(const Json& body, OpenAiCall* call) {
  const Json* given = Find(body, "prompt");
  if (given != nullptr && given->is_array() && given->size() == 1 && !(*given)[0].is_number()) {
    given = &(*given)[0];
  }
  if (given != nullptr && given->is_string()) {
    call->request.mutable_prompt()->set_text(given->get_ref<const std::string&>());
    return absl::OkStatus();
  }
  const bool tokens = given != nullptr && given->is_array() && !given->empty() &&
                      std::all_of(given->begin(), given->end(), [](const Json& one) {
                        return one.is_number_unsigned() && one.get<uint64_t>() <= INT32_MAX;
                      });
  if (!tokens) {
    return Wrong("prompt",
                 " must be a string or an array of tokens; of several prompts each is a request of "
                 "its own");
  }
  for (const Json& one : *given) call->prompt_tokens.push_back(one.get<int32_t>());
  return absl::OkStatus();
}

// Empty strings, which clients send for "none", stop nothing.
absl::Status ReadStop(const Json& body, v1::Limits* limits) {
  const Json* stop = Find(body, "stop");
  if (stop == nullptr) return absl::OkStatus();
  const auto add = [&](const Json& one) {
    if (one.is_null()) return absl::OkStatus();
    if (!one.is_string()) return WrongType("stop", one, "a string or an array of strings");
    const std::string& text = one.get_ref<const std::string&>();
    if (!text.empty()) limits->add_stop(text);
    return absl::OkStatus();
  };
  if (!stop->is_array()) return add(*stop);
  for (const Json& one : *stop) WITHY_RETURN_IF_ERROR(add(one));
  return absl::OkStatus();
}

// A chat asks with a flag and a number, a completion with a number.
absl::Status ReadLogprobs(OpenAiKind kind, const Json& body, v1::Limits* limits) {
  if (kind == OpenAiKind::kCompletion) {
    if (const Json* none = Find(body, "logprobs"); none != nullptr && *none == false) {
      return absl::OkStatus();
    }
    WITHY_ASSIGN_OR_RETURN(const auto count, Count(body, "logprobs", kMaxTopLogprobs));
    if (count) limits->set_logprobs(static_cast<uint32_t>(*count));
    return absl::OkStatus();
  }
  WITHY_ASSIGN_OR_RETURN(const bool wanted, Flag(body, "logprobs"));
  WITHY_ASSIGN_OR_RETURN(const auto count, Count(body, "top_logprobs", kMaxTopLogprobs));
  if (count.value_or(0) > 0 && !wanted) return Wrong("top_logprobs", " needs logprobs: true");
  if (wanted) limits->set_logprobs(static_cast<uint32_t>(count.value_or(0)));
  return absl::OkStatus();
}

// Clients send a limit of their own, whatever the model's window is. -1: as many as there is room
// for.
absl::Status ReadMaxTokens(const Json& body, OpenAiCall* call) {
  const char* name =
      Find(body, "max_completion_tokens") != nullptr ? "max_completion_tokens" : "max_tokens";
  WITHY_ASSIGN_OR_RETURN(const std::optional<WholeNumber> number, Whole(body, name));
  if (!number) return absl::OkStatus();
  const bool only_echo = number->magnitude == 0 && call->echo;
  if (number->negative ? *number != kMinusOne : number->magnitude == 0 && !only_echo) {
    return Wrong(name, absl::StrCat(" is ", InWords(*number),
                                    ": it must be at least 1, or -1 for no limit"));
  }
  call->only_echo = only_echo;
  const uint64_t tokens = number->negative ? UINT32_MAX : number->magnitude;
  call->request.mutable_limits()->set_max_tokens(
      static_cast<uint32_t>(std::min<uint64_t>(tokens, UINT32_MAX)));
  return absl::OkStatus();
}

// Names beyond OpenAI's are those that other servers take.
absl::Status ReadSampling(const Json& body, v1::Sampling* sampling) {
  WITHY_ASSIGN_OR_RETURN(const auto temperature, Number(body, "temperature"));
  if (temperature) sampling->set_temperature(static_cast<float>(*temperature));
  WITHY_ASSIGN_OR_RETURN(const auto top_p, Number(body, "top_p"));
  // 0 stands for the likeliest token alone.
  if (top_p) {
    sampling->set_top_p(*top_p == 0 ? std::numeric_limits<float>::min()
                                    : static_cast<float>(*top_p));
  }
  WITHY_ASSIGN_OR_RETURN(const auto min_p, Number(body, "min_p"));
  if (min_p) sampling->set_min_p(static_cast<float>(*min_p));
  WITHY_ASSIGN_OR_RETURN(const auto top_k, Whole(body, "top_k"));
  if (top_k) {
    if (top_k->negative && *top_k != kMinusOne) {
      return Wrong("top_k", absl::StrCat(" is ", InWords(*top_k),
                                         ": it must be at least 1, or 0 or -1 for all tokens"));
    }
    sampling->set_top_k(
        top_k->negative ? 0
                        : static_cast<uint32_t>(std::min<uint64_t>(top_k->magnitude, UINT32_MAX)));
  }
  WITHY_ASSIGN_OR_RETURN(const auto penalty, Number(body, "repetition_penalty"));
  if (penalty) sampling->set_repetition_penalty(static_cast<float>(*penalty));
  WITHY_ASSIGN_OR_RETURN(const auto seed, Whole(body, "seed"));
  if (seed) {
    // A negative one is as good as any other. The answer tells the seed, and many languages read
    // numbers of JSON as doubles: what they read must be the same seed.
    sampling->set_seed((seed->negative ? 0 - seed->magnitude : seed->magnitude) & kMaxExactSeed);
  }
  WITHY_RETURN_IF_ERROR(Only(body, "presence_penalty", 0));
  WITHY_RETURN_IF_ERROR(Only(body, "frequency_penalty", 0));
  return NotEmpty(body, "logit_bias", "leave it out");
}

// `strict` or not: a schema is always kept to.
absl::Status ReadFormat(const Json& body, v1::GenerateRequest* request) {
  const Json* format = Find(body, "response_format");
  if (format == nullptr) return absl::OkStatus();
  if (!format->is_object()) return WrongType("response_format", *format, "an object");
  WITHY_ASSIGN_OR_RETURN(const std::string type, Text(*format, "response_format.", "type"));
  if (type == "text" || format->empty()) return absl::OkStatus();
  if (type == "json_object") {
    request->mutable_output_format()->set_json_object(true);
    return absl::OkStatus();
  }
  if (type != "json_schema") {
    return Wrong("response_format.type",
                 absl::StrCat(" is \"", type,
                              "\": it must be \"text\", \"json_object\" or \"json_schema\""));
  }
  const Json* named = Find(*format, "json_schema");
  if (named == nullptr || !named->is_object()) {
    return Wrong("response_format.json_schema", " must be an object with a schema");
  }
  const std::string path = "response_format.json_schema.";
  WITHY_RETURN_IF_ERROR(Text(*named, path, "name").status());
  if (const Json* strict = Find(*named, "strict"); strict != nullptr && !strict->is_boolean()) {
    return WrongType(path + "strict", *strict, "true or false");
  }
  const Json* schema = Find(*named, "schema");
  if (schema == nullptr) return Wrong(path + "schema", " is missing: give a JSON Schema");
  WITHY_ASSIGN_OR_RETURN(*request->mutable_output_format()->mutable_json_schema(),
                         JsonText(path + "schema", *schema));
  return absl::OkStatus();
}

// Forms of answers that OpenAI's API has not.
absl::Status ReadOwnFormat(const Json& own, v1::GenerateRequest* request) {
  WITHY_ASSIGN_OR_RETURN(std::string regex, Text(own, "withy.", "regex"));
  WITHY_ASSIGN_OR_RETURN(std::string grammar, Text(own, "withy.", "grammar"));
  if (regex.empty() && grammar.empty()) return absl::OkStatus();
  if (request->has_output_format() || (!regex.empty() && !grammar.empty())) {
    return Wrong(regex.empty() ? "withy.grammar" : "withy.regex",
                 " is set beside another form of the answer: leave one of them out");
  }
  if (regex.empty()) {
    request->mutable_output_format()->set_grammar(std::move(grammar));
  } else {
    request->mutable_output_format()->set_regex(std::move(regex));
  }
  return absl::OkStatus();
}

// What is withy's own: an object, so that no name is one that OpenAI may give another meaning.
absl::Status ReadOwn(const Json& body, v1::GenerateRequest* request) {
  const Json* own = Find(body, "withy");
  if (own == nullptr) return absl::OkStatus();
  if (!own->is_object()) return WrongType("withy", *own, "an object");
  WITHY_RETURN_IF_ERROR(ReadOwnFormat(*own, request));
  WITHY_ASSIGN_OR_RETURN(const std::string truncation, Text(*own, "withy.", "truncation"));
  if (truncation.empty()) return absl::OkStatus();
  if (truncation == "none") {
    request->set_truncation(v1::TRUNCATION_NONE);
  } else if (truncation == "oldest") {
    request->set_truncation(v1::TRUNCATION_OLDEST);
  } else {
    return Wrong("withy.truncation",
                 absl::StrCat(" is \"", truncation, "\": it must be \"none\" or \"oldest\""));
  }
  return absl::OkStatus();
}

absl::Status HeaderNumber(const HeaderOf& header, const char* name, double lowest, double highest,
                          const std::function<void(double)>& set) {
  const std::optional<std::string> text = header(name);
  if (!text) return absl::OkStatus();
  double value = 0;
  if (!absl::SimpleAtod(*text, &value) || !(value >= lowest && value <= highest)) {
    return Wrong(
        absl::StrCat("header ", name),
        absl::StrCat(" is \"", *text, "\": it must be a number from ", lowest, " to ", highest));
  }
  set(value);
  return absl::OkStatus();
}

absl::Status ReadSpeculation(const HeaderOf& header, v1::GenerateRequest* request) {
  static constexpr std::pair<const char*, v1::Speculation> kSources[] = {
      {"off", v1::SPECULATION_OFF},
      {"auto", v1::SPECULATION_AUTO},
      {"lookup", v1::SPECULATION_LOOKUP},
      {"prefix", v1::SPECULATION_PREFIX},
      {"draft", v1::SPECULATION_DRAFT}};
  const std::optional<std::string> text = header("x-withy-speculation");
  if (!text) return absl::OkStatus();
  for (const auto& [name, source] : kSources) {
    if (*text != name) continue;
    request->set_speculation(source);
    return absl::OkStatus();
  }
  return Wrong("header x-withy-speculation",
               absl::StrCat(" is \"", *text, "\": it must be off, auto, lookup, prefix or draft"));
}

absl::Status ReadHeaders(const HeaderOf& header, v1::GenerateRequest* request) {
  constexpr double kNoLimit = 1e12;
  v1::Slo slo;
  const auto number = [&](const char* name, double highest, auto set) {
    return HeaderNumber(header, name, 0, highest, [&](double value) { (slo.*set)(value); });
  };
  WITHY_RETURN_IF_ERROR(number("x-slo-ttft-ms", kNoLimit, &v1::Slo::set_ttft_ms));
  WITHY_RETURN_IF_ERROR(number("x-slo-tpot-ms", kNoLimit, &v1::Slo::set_tpot_ms));
  WITHY_RETURN_IF_ERROR(number("x-slo-end-to-end-ms", kNoLimit, &v1::Slo::set_end_to_end_ms));
  WITHY_RETURN_IF_ERROR(number("x-slo-energy-mj", kNoLimit, &v1::Slo::set_energy_mj));
  WITHY_RETURN_IF_ERROR(number("x-slo-ttft-ratio", 1, &v1::Slo::set_ttft_ratio));
  WITHY_RETURN_IF_ERROR(number("x-slo-tpot-ratio", 1, &v1::Slo::set_tpot_ratio));
  if (const std::optional<std::string> strict = header("x-slo-strict")) {
    if (*strict != "true" && *strict != "false") {
      return Wrong("header x-slo-strict",
                   absl::StrCat(" is \"", *strict, "\": it must be true or false"));
    }
    slo.set_strict(*strict == "true");
  }
  if (slo.ByteSizeLong() > 0) *request->mutable_slo() = std::move(slo);
  WITHY_RETURN_IF_ERROR(HeaderNumber(header, "x-withy-model-level", 0, 100, [&](double level) {
    request->set_model_level_percent(static_cast<uint32_t>(level));
  }));
  WITHY_RETURN_IF_ERROR(HeaderNumber(header, "x-withy-prompt-level", 0, 100, [&](double level) {
    request->set_prompt_level_percent(static_cast<uint32_t>(level));
  }));
  WITHY_RETURN_IF_ERROR(HeaderNumber(header, "x-withy-priority", -10, 10, [&](double priority) {
    request->set_priority(static_cast<int32_t>(priority));
  }));
  if (const auto context = header("x-withy-context")) request->set_context_id(*context);
  if (const auto key = header("idempotency-key")) request->set_request_id(*key);
  return ReadSpeculation(header, request);
}

}  // namespace

absl::Status CheckOpenAiHeaders(const HeaderOf& header) {
  v1::GenerateRequest ignored;
  return ReadHeaders(header, &ignored);
}

void FitToModel(const v1::ModelDescription& model, v1::GenerateRequest* request) {
  const uint32_t window = model.context_length();
  if (window > 0 && request->limits().max_tokens() > window) {
    request->mutable_limits()->set_max_tokens(window);
  }
  const uint32_t vocabulary = model.vocabulary();
  if (vocabulary > 0 && request->sampling().top_k() > vocabulary) {
    request->mutable_sampling()->set_top_k(0);
  }
}

bool ContinuesAnswer(const v1::Messages& messages) {
  return !messages.messages().empty() && messages.messages().rbegin()->role() == "assistant";
}

absl::StatusOr<OpenAiCall> ParseOpenAiCall(OpenAiKind kind, std::string_view body,
                                           const HeaderOf& header) {
  Json json;
  if (const absl::Status parsed = ParseJson(body, &json, kMaxJsonDepth + kOuterLevels);
      !parsed.ok()) {
    return Wrong("the request's body ", ToStd(parsed.message()));
  }
  if (!json.is_object()) return WrongType("the request's body", json, "an object");
  OpenAiCall call;
  call.kind = kind;
  v1::GenerateRequest& request = call.request;
  WITHY_ASSIGN_OR_RETURN(*request.mutable_model(), Text(json, "", "model"));
  if (kind == OpenAiKind::kChat) {
    WITHY_RETURN_IF_ERROR(ReadMessages(json, request.mutable_prompt()));
    WITHY_RETURN_IF_ERROR(ReadTools(json, request.mutable_prompt()->mutable_messages()));
  } else {
    WITHY_RETURN_IF_ERROR(ReadPrompt(json, &call));
    WITHY_RETURN_IF_ERROR(NotEmpty(json, "suffix", "leave it out"));
    WITHY_RETURN_IF_ERROR(Only(json, "best_of", 1));
    WITHY_ASSIGN_OR_RETURN(call.echo, Flag(json, "echo"));
  }
  WITHY_RETURN_IF_ERROR(ReadMaxTokens(json, &call));
  WITHY_RETURN_IF_ERROR(ReadStop(json, request.mutable_limits()));
  WITHY_RETURN_IF_ERROR(ReadLogprobs(kind, json, request.mutable_limits()));
  WITHY_RETURN_IF_ERROR(ReadSampling(json, request.mutable_sampling()));
  WITHY_RETURN_IF_ERROR(Only(json, "n", 1));
  WITHY_RETURN_IF_ERROR(ReadFormat(json, &request));
  WITHY_RETURN_IF_ERROR(NotEmpty(json, "functions", "give tools instead"));
  WITHY_ASSIGN_OR_RETURN(call.stream, Flag(json, "stream"));
  if (const Json* options = Find(json, "stream_options")) {
    if (!options->is_object()) return WrongType("stream_options", *options, "an object");
    WITHY_ASSIGN_OR_RETURN(call.include_usage, Flag(*options, "include_usage"));
  }
  WITHY_RETURN_IF_ERROR(ReadOwn(json, &request));
  WITHY_RETURN_IF_ERROR(ReadHeaders(header, &request));
  return call;
}

}  // namespace withy::orchestrator
