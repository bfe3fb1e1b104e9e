#include "orchestrator/openai/openai_request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "base/json.h"
#include "base/status.h"
#include "engine/chat/tool_calls.h"
#include "orchestrator/call/digest.h"
#include "orchestrator/call/validate.h"
#include "orchestrator/call/validate_tools.h"
#include "orchestrator/openai/request_json.h"

namespace withy::orchestrator {
namespace {

// Keeps the order of keys, which a model sees in tools.
using Json = OrderedJson;
using body::Count;
using body::Find;
using body::Flag;
using body::InWords;
using body::JsonText;
using body::kMinusOne;
using body::NotEmpty;
using body::Number;
using body::Only;
using body::Text;
using body::Whole;
using body::WholeNumber;
using body::Wrong;
using body::WrongType;

// Levels around a tool's schema or a call's arguments, which have kMaxJsonDepth of their own.
constexpr int kOuterLevels = 8;
// Answers to a prompt, and to all prompts of a request, which come one after the other.
constexpr uint64_t kMostSamples = 8;
constexpr size_t kMostChoices = 64;

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

// Whether calls that the model may make are held to a form: a tool is strict, or one call at most
// is asked for.
bool HoldsCalls(const Json& body, bool one_call) {
  const Json* tools = Find(body, "tools");
  if (tools == nullptr || !tools->is_array() || tools->empty()) return false;
  return one_call || std::any_of(tools->begin(), tools->end(), [](const Json& tool) {
           const Json* function = tool.is_object() ? Find(tool, "function") : nullptr;
           const Json* strict =
               function != nullptr && function->is_object() ? Find(*function, "strict") : nullptr;
           return strict != nullptr && *strict == true;
         });
}

// "auto", "none" and "required", or {"type": "function", "function": {"name"}}. Of what must be
// called, and of calls that HoldsCalls, the form is told.
absl::Status ReadToolChoice(const Json& body, v1::GenerateRequest* request) {
  WITHY_RETURN_IF_ERROR(Flag(body, "parallel_tool_calls").status());
  const Json* parallel = Find(body, "parallel_tool_calls");
  const Json* choice = Find(body, "tool_choice");
  const bool one_call = parallel != nullptr && *parallel == false;
  if (choice == nullptr || *choice == "auto") {
    if (!HoldsCalls(body, one_call)) return absl::OkStatus();
    v1::ToolCallsForm& calls = *request->mutable_output_format()->mutable_tool_calls();
    calls.set_free_text(true);
    calls.set_one_call(one_call);
    return absl::OkStatus();
  }
  v1::Messages& messages = *request->mutable_prompt()->mutable_messages();
  if (*choice == "none") {
    messages.set_tools_json("[]");
    return absl::OkStatus();
  }
  if (engine::IsEmptyJson(messages.tools_json())) {
    return Wrong("tool_choice", " asks for a call, but there are no tools: give some in tools");
  }
  std::string name;
  if (choice->is_object()) {
    WITHY_ASSIGN_OR_RETURN(const std::string type, Text(*choice, "tool_choice.", "type"));
    const Json* function = Find(*choice, "function");
    if (type != "function" || function == nullptr || !function->is_object()) {
      return Wrong("tool_choice.type",
                   absl::StrCat(" is \"", type, "\": it must be \"function\", with a function"));
    }
    WITHY_ASSIGN_OR_RETURN(name, Text(*function, "tool_choice.function.", "name"));
    if (name.empty()) return Wrong("tool_choice.function.name", " is missing");
  } else if (*choice != "required") {
    WITHY_ASSIGN_OR_RETURN(const std::string given, JsonText("tool_choice", *choice));
    return Wrong("tool_choice", absl::StrCat(" is ", given,
                                             ": it must be \"auto\", \"none\", \"required\" or a "
                                             "function"));
  }
  v1::ToolCallsForm& calls = *request->mutable_output_format()->mutable_tool_calls();
  calls.set_one_call(!name.empty() || one_call);
  calls.set_tool(std::move(name));
  return absl::OkStatus();
}

// Tools, and what a template is told beside them.
absl::Status ReadTools(const Json& body, v1::GenerateRequest* request) {
  v1::Messages& messages = *request->mutable_prompt()->mutable_messages();
  if (const Json* tools = Find(body, "tools")) {
    if (!tools->is_array()) return WrongType("tools", *tools, "an array");
    WITHY_ASSIGN_OR_RETURN(*messages.mutable_tools_json(), JsonText("tools", *tools));
  }
  if (const Json* arguments = Find(body, "chat_template_kwargs")) {
    if (!arguments->is_object()) return WrongType("chat_template_kwargs", *arguments, "an object");
    WITHY_ASSIGN_OR_RETURN(*messages.mutable_template_arguments_json(),
                           JsonText("chat_template_kwargs", *arguments));
  }
  return ReadToolChoice(body, request);
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

std::optional<CompletionPrompt> PromptOf(const Json& given) {
  if (given.is_string()) return CompletionPrompt{.text = given.get_ref<const std::string&>()};
  CompletionPrompt prompt;
  if (!given.is_array()) return std::nullopt;
  for (const Json& one : given) {
    if (!one.is_number_unsigned() || one.get<uint64_t>() > INT32_MAX) return std::nullopt;
    prompt.tokens.push_back(one.get<int32_t>());
  }
  return prompt.tokens.empty() ? std::nullopt : std::optional(std::move(prompt));
}

// Text or tokens, or an array of prompts.
absl::Status ReadPrompt(const Json& body, OpenAiCall* call) {
  const Json* given = Find(body, "prompt");
  std::vector<CompletionPrompt> prompts;
  const bool several =
      given != nullptr && given->is_array() && !given->empty() && !(*given)[0].is_number();
  bool good = given != nullptr;
  for (size_t i = 0; good && i < (several ? given->size() : 1); ++i) {
    std::optional<CompletionPrompt> one = PromptOf(several ? (*given)[i] : *given);
    good = one.has_value();
    if (good) prompts.push_back(*std::move(one));
  }
  const auto long_one = std::find_if(prompts.begin(), prompts.end(), [](const auto& prompt) {
    return std::max(prompt.text.size(), prompt.tokens.size()) > kMaxPromptBytes;
  });
  if (long_one != prompts.end()) {
    return Wrong("prompt",
                 absl::StrCat(" number ", long_one - prompts.begin() + 1, " is longer than ",
                              kMaxPromptBytes, " bytes or tokens: send a shorter one"));
  }
  if (!good) {
    return Wrong("prompt",
                 " must be a string, an array of tokens, or an array of such prompts, none empty");
  }
  if (!prompts[0].tokens.empty()) {
    call->prompt_tokens = std::move(prompts[0].tokens);
  } else {
    call->request.mutable_prompt()->set_text(std::move(prompts[0].text));
  }
  prompts.erase(prompts.begin());
  call->more_prompts = std::move(prompts);
  return absl::OkStatus();
}

// `n`, and how many choices that makes.
absl::Status ReadChoices(const Json& body, OpenAiCall* call) {
  WITHY_ASSIGN_OR_RETURN(const std::optional<WholeNumber> number, Whole(body, "n"));
  if (number && (number->negative || number->magnitude < 1 || number->magnitude > kMostSamples)) {
    return Wrong("n",
                 absl::StrCat(" is ", InWords(*number), ": it must be from 1 to ", kMostSamples));
  }
  if (number) call->samples = static_cast<int>(number->magnitude);
  const size_t choices = static_cast<size_t>(call->samples) * (1 + call->more_prompts.size());
  if (choices <= kMostChoices) return absl::OkStatus();
  return Wrong("prompt", absl::StrCat(" has ", 1 + call->more_prompts.size(), " prompts for ",
                                      call->samples, " answers each: at most ", kMostChoices,
                                      " answers; send several requests"));
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

// {"TOKEN": BIAS}, in the order of the tokens, so that the same request is the same.
absl::Status ReadBias(const Json& body, v1::Sampling* sampling) {
  const Json* given = Find(body, "logit_bias");
  if (given == nullptr) return absl::OkStatus();
  if (!given->is_object()) return WrongType("logit_bias", *given, "an object");
  std::map<uint32_t, float> biases;
  for (const auto& [token, bias] : given->items()) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(token, &id)) {
      return Wrong("logit_bias", absl::StrCat(" has \"", token, "\": keys must be ids of tokens"));
    }
    const std::string name = absl::StrCat("logit_bias[", id, "]");
    if (!bias.is_number()) return WrongType(name, bias, "a number");
    if (!biases.emplace(id, bias.get<float>()).second) return Wrong(name, " is there twice");
  }
  for (const auto& [token, bias] : biases) {
    v1::TokenBias* one = sampling->add_logit_bias();
    one->set_token(token);
    one->set_bias(bias);
  }
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
  WITHY_ASSIGN_OR_RETURN(const auto presence, Number(body, "presence_penalty"));
  if (presence) sampling->set_presence_penalty(static_cast<float>(*presence));
  WITHY_ASSIGN_OR_RETURN(const auto frequency, Number(body, "frequency_penalty"));
  if (frequency) sampling->set_frequency_penalty(static_cast<float>(*frequency));
  return ReadBias(body, sampling);
}

// An answer that calls tools is no JSON of the schema; one that must call them never is.
void SetSchema(std::string schema, v1::GenerateRequest* request) {
  v1::OutputFormat& format = *request->mutable_output_format();
  if (format.has_tool_calls() && !format.tool_calls().free_text()) return;
  if (engine::IsEmptyJson(request->prompt().messages().tools_json())) {
    format.set_json_schema(std::move(schema));
    return;
  }
  format.mutable_tool_calls()->set_free_text(false);
  format.mutable_tool_calls()->set_json_schema(std::move(schema));
}

// `strict` or not: a schema is always kept to.
absl::Status ReadFormat(const Json& body, v1::GenerateRequest* request) {
  const Json* format = Find(body, "response_format");
  if (format == nullptr) return absl::OkStatus();
  if (!format->is_object()) return WrongType("response_format", *format, "an object");
  WITHY_ASSIGN_OR_RETURN(const std::string type, Text(*format, "response_format.", "type"));
  if (type == "text" || format->empty()) return absl::OkStatus();
  if (type == "json_object") {
    SetSchema(R"({"type": "object"})", request);
    if (request->output_format().has_json_schema()) {
      request->mutable_output_format()->set_json_object(true);
    }
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
  WITHY_ASSIGN_OR_RETURN(std::string text, JsonText(path + "schema", *schema));
  SetSchema(std::move(text), request);
  return absl::OkStatus();
}

// Forms of answers that OpenAI's API has not.
absl::Status ReadOwnFormat(const Json& own, v1::GenerateRequest* request) {
  WITHY_ASSIGN_OR_RETURN(std::string regex, Text(own, "withy.", "regex"));
  WITHY_ASSIGN_OR_RETURN(std::string grammar, Text(own, "withy.", "grammar"));
  if (regex.empty() && grammar.empty()) return absl::OkStatus();
  const bool given =
      request->has_output_format() && !request->output_format().tool_calls().free_text();
  if (given || (!regex.empty() && !grammar.empty())) {
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
      {"off", v1::SPECULATION_OFF},       {"auto", v1::SPECULATION_AUTO},
      {"lookup", v1::SPECULATION_LOOKUP}, {"prefix", v1::SPECULATION_PREFIX},
      {"draft", v1::SPECULATION_DRAFT},   {"head", v1::SPECULATION_HEAD}};
  const std::optional<std::string> text = header("x-withy-speculation");
  if (!text) return absl::OkStatus();
  for (const auto& [name, source] : kSources) {
    if (*text != name) continue;
    request->set_speculation(source);
    return absl::OkStatus();
  }
  return Wrong(
      "header x-withy-speculation",
      absl::StrCat(" is \"", *text, "\": it must be off, auto, lookup, prefix, draft or head"));
}

absl::Status ReadHeaders(const HeaderOf& header, v1::GenerateRequest* request) {
  constexpr double kNoLimit = 1e12;
  v1::Slo slo;
  const auto number = [&](const char* name, double highest, auto set) {
    return HeaderNumber(header, name, 0, highest, [&](double value) { (slo.*set)(value); });
  };
  // llm-d's names; a client's own header comes behind, and wins.
  WITHY_RETURN_IF_ERROR(number("x-llm-d-slo-ttft-ms", kNoLimit, &v1::Slo::set_ttft_ms));
  WITHY_RETURN_IF_ERROR(number("x-llm-d-slo-tpot-ms", kNoLimit, &v1::Slo::set_tpot_ms));
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

bool OpenAiCall::MayCallTools() const {
  if (kind != OpenAiKind::kChat) return false;
  return !engine::IsEmptyJson(request.prompt().messages().tools_json()) ||
         !request.context_id().empty();
}

std::vector<OpenAiCall> ChoicesOf(const OpenAiCall& call) {
  OpenAiCall others = call;  // without prompts, of which every choice has its own
  others.more_prompts.clear();
  if (!call.more_prompts.empty()) {
    others.prompt_tokens = {};
    others.request.clear_prompt();
  }
  std::vector<OpenAiCall> choices;
  for (size_t prompt = 0; prompt <= call.more_prompts.size(); ++prompt) {
    for (int sample = 0; sample < call.samples; ++sample) {
      OpenAiCall& one = choices.emplace_back(others);
      one.choice = static_cast<int>(choices.size()) - 1;
      one.sample = sample;
      if (prompt > 0) {
        one.request.mutable_prompt()->set_text(call.more_prompts[prompt - 1].text);
        one.prompt_tokens = call.more_prompts[prompt - 1].tokens;
      } else if (!call.more_prompts.empty()) {
        *one.request.mutable_prompt() = call.request.prompt();
        one.prompt_tokens = call.prompt_tokens;
      }
      if (one.choice == 0) continue;
      if (one.request.sampling().has_seed() && sample > 0) {
        one.request.mutable_sampling()->set_seed(
            (call.request.sampling().seed() + static_cast<uint64_t>(sample)) & kMaxExactSeed);
      }
      if (!call.request.request_id().empty()) {
        std::string id = absl::StrCat(call.request.request_id(), "#", one.choice);
        if (id.size() > kMaxIdBytes) id = absl::BytesToHexString(Sha256(id));
        one.request.set_request_id(std::move(id));
      }
    }
  }
  return choices;
}

absl::StatusOr<OrderedJson> ParseBody(std::string_view body) {
  Json json;
  if (const absl::Status parsed = ParseJson(body, &json, kMaxJsonDepth + kOuterLevels);
      !parsed.ok()) {
    return Wrong("the request's body ", ToStd(parsed.message()));
  }
  if (!json.is_object()) return WrongType("the request's body", json, "an object");
  return json;
}

absl::StatusOr<OpenAiCall> ParseOpenAiCall(OpenAiKind kind, std::string_view body,
                                           const HeaderOf& header) {
  WITHY_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  return ReadOpenAiCall(kind, json, header);
}

absl::StatusOr<OpenAiCall> ReadOpenAiCall(OpenAiKind kind, const OrderedJson& json,
                                          const HeaderOf& header) {
  OpenAiCall call;
  call.kind = kind;
  v1::GenerateRequest& request = call.request;
  WITHY_ASSIGN_OR_RETURN(*request.mutable_model(), Text(json, "", "model"));
  if (kind == OpenAiKind::kChat) {
    WITHY_RETURN_IF_ERROR(ReadMessages(json, request.mutable_prompt()));
    WITHY_RETURN_IF_ERROR(ReadTools(json, &request));
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
  WITHY_RETURN_IF_ERROR(ReadChoices(json, &call));
  WITHY_RETURN_IF_ERROR(ReadFormat(json, &request));
  WITHY_RETURN_IF_ERROR(NotEmpty(json, "functions", "give tools instead"));
  WITHY_ASSIGN_OR_RETURN(call.stream, Flag(json, "stream"));
  if (const Json* options = Find(json, "stream_options")) {
    if (!options->is_object()) return WrongType("stream_options", *options, "an object");
    WITHY_ASSIGN_OR_RETURN(call.include_usage, Flag(*options, "include_usage"));
  }
  WITHY_RETURN_IF_ERROR(ReadOwn(json, &request));
  WITHY_RETURN_IF_ERROR(ReadHeaders(header, &request));
  if (!request.context_id().empty() && (call.samples > 1 || !call.more_prompts.empty())) {
    return Wrong(call.samples > 1 ? "n" : "prompt",
                 " asks for several answers, which cannot all continue one context: leave "
                 "x-withy-context out, or ask for one");
  }
  return call;
}

}  // namespace withy::orchestrator
