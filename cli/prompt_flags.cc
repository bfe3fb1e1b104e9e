#include "cli/prompt_flags.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/contract_limits.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "cli/utf8.h"

namespace withy::cli {
namespace {

constexpr int kMaxTimeoutS = 24 * 60 * 60;
constexpr int64_t kMaxUint32 = std::numeric_limits<uint32_t>::max();

constexpr const char* kSloFields[] = {"ttft_ms",    "tpot_ms",       "ttft_ratio",
                                      "tpot_ratio", "end_to_end_ms", "energy_mj"};

// Reads a prompt, or what `flag` names; "-" is standard input.
absl::StatusOr<std::string> ReadText(const std::string& flag, const std::string& path) {
  const bool standard_input = path == "-";
  UniqueFd opened;
  if (!standard_input) opened = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const std::string what = standard_input ? "standard input" : absl::StrCat("--", flag, " ", path);
  const auto unreadable = [&] {
    return ErrnoError("cannot read " + what + " (give a file of text, or - for standard input)");
  };
  if (!standard_input && !opened.valid()) return unreadable();
  const int file = standard_input ? STDIN_FILENO : opened.get();
  std::string text(kMaxPromptBytes + 1, '\0');
  size_t bytes = 0;
  while (bytes < text.size()) {
    const ssize_t count = read(file, text.data() + bytes, text.size() - bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return unreadable();
    if (count == 0) break;
    bytes += static_cast<size_t>(count);
  }
  if (bytes > kMaxPromptBytes) {
    return absl::InvalidArgumentError(absl::StrCat(what, " holds more than ", kMaxPromptBytes,
                                                   " bytes, the longest prompt: shorten it"));
  }
  text.resize(bytes);
  WITHY_RETURN_IF_ERROR(CheckUtf8(what, text));
  return text;
}

absl::Status AddMessage(const std::string& text, v1::Messages* messages) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--message is \"", text, "\": it must be ROLE:CONTENT, e.g. --message \"user:Hello\""));
  }
  v1::Message& message = *messages->add_messages();
  message.set_role(text.substr(0, colon));
  message.set_content(text.substr(colon + 1));
  return absl::OkStatus();
}

// TOKEN=BIAS.
absl::Status AddBias(const std::string& text, v1::Sampling* sampling) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  v1::TokenBias bias;
  uint32_t token = 0;
  float value = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &token) ||
      !absl::SimpleAtof(parts[1], &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--logit-bias is \"", text,
                     "\": it must be TOKEN=BIAS with a token's id and a number, e.g. 7=-100"));
  }
  bias.set_token(token);
  bias.set_bias(value);
  *sampling->add_logit_bias() = bias;
  return absl::OkStatus();
}

absl::Status FillSampling(const Args& args, v1::Sampling* sampling) {
  WITHY_ASSIGN_OR_RETURN(const auto temperature, args.Number("temperature"));
  if (temperature) sampling->set_temperature(static_cast<float>(*temperature));
  if (args.Has("greedy")) {
    if (temperature.value_or(0) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("give --greedy or --temperature ", args.Get("temperature"), ", not both"));
    }
    sampling->set_temperature(0);
  }
  WITHY_ASSIGN_OR_RETURN(const auto top_k, args.Integer("top-k", 0, kMaxUint32));
  if (top_k) sampling->set_top_k(static_cast<uint32_t>(*top_k));
  WITHY_ASSIGN_OR_RETURN(const auto top_p, args.Number("top-p"));
  if (top_p) sampling->set_top_p(static_cast<float>(*top_p));
  WITHY_ASSIGN_OR_RETURN(const auto min_p, args.Number("min-p"));
  if (min_p) sampling->set_min_p(static_cast<float>(*min_p));
  WITHY_ASSIGN_OR_RETURN(const auto penalty, args.Number("repetition-penalty"));
  if (penalty) sampling->set_repetition_penalty(static_cast<float>(*penalty));
  WITHY_ASSIGN_OR_RETURN(const auto window, args.Integer("repetition-window", 0, kMaxUint32));
  if (window) sampling->set_repetition_window(static_cast<uint32_t>(*window));
  WITHY_ASSIGN_OR_RETURN(const auto presence, args.Number("presence-penalty"));
  if (presence) sampling->set_presence_penalty(static_cast<float>(*presence));
  WITHY_ASSIGN_OR_RETURN(const auto frequency, args.Number("frequency-penalty"));
  if (frequency) sampling->set_frequency_penalty(static_cast<float>(*frequency));
  for (const std::string& bias : args.GetAll("logit-bias")) {
    WITHY_RETURN_IF_ERROR(AddBias(bias, sampling));
  }
  WITHY_ASSIGN_OR_RETURN(const auto seed, args.Unsigned("seed"));
  if (seed) sampling->set_seed(*seed);
  return absl::OkStatus();
}

absl::Status FillLimits(const Args& args, v1::Limits* limits) {
  WITHY_ASSIGN_OR_RETURN(const auto max_tokens, args.Integer("max-tokens", 1, kMaxUint32));
  if (max_tokens) limits->set_max_tokens(static_cast<uint32_t>(*max_tokens));
  for (const std::string& stop : args.GetAll("stop")) limits->add_stop(stop);
  WITHY_ASSIGN_OR_RETURN(const auto logprobs, args.Integer("logprobs", 0, kMaxUint32));
  if (logprobs) limits->set_logprobs(static_cast<uint32_t>(*logprobs));
  return absl::OkStatus();
}

// At most one form.
absl::Status FillFormat(const Args& args, v1::GenerateRequest* request) {
  std::string given;
  for (const char* flag : {"json-object", "json-schema", "regex", "grammar", "tool-choice"}) {
    if (!args.Has(flag)) continue;
    if (!given.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("give --", given, " or --", flag, ", not both"));
    }
    given = flag;
  }
  if (given.empty()) return absl::OkStatus();
  v1::OutputFormat* format = request->mutable_output_format();
  if (given == "json-object") {
    format->set_json_object(true);
  } else if (given == "tool-choice") {
    WITHY_RETURN_IF_ERROR(CheckFlagsUtf8(args, {"tool-choice"}));
    const std::string tool = args.Get("tool-choice");
    v1::ToolCallsForm& calls = *format->mutable_tool_calls();
    if (tool == "auto") {
      calls.set_free_text(true);
    } else if (tool != "required") {
      calls.set_one_call(true);
      calls.set_tool(tool);
    }
  } else if (given == "regex") {
    WITHY_RETURN_IF_ERROR(CheckFlagsUtf8(args, {"regex"}));
    format->set_regex(args.Get("regex"));
  } else {
    WITHY_ASSIGN_OR_RETURN(std::string text, ReadText(given, args.Get(given)));
    given == "grammar" ? format->set_grammar(std::move(text))
                       : format->set_json_schema(std::move(text));
  }
  return absl::OkStatus();
}

absl::Status CheckTarget(const std::string& name, double value) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ": it must be a number above 0"));
}

bool AsksForSpeed(v1::Slo slo) {
  slo.clear_strict();
  return slo.ByteSizeLong() > 0;
}

absl::Status FillSlo(const Args& args, v1::Slo* slo) {
  for (const char* field : kSloFields) {
    std::string flag = absl::StrCat("slo-", field);
    for (char& c : flag) c = c == '_' ? '-' : c;
    WITHY_ASSIGN_OR_RETURN(const auto value, args.Number(flag));
    if (!value) continue;
    WITHY_RETURN_IF_ERROR(CheckTarget("--" + flag, *value));
    WITHY_RETURN_IF_ERROR(SetSlo(field, *value, slo));
  }
  if (!args.Has("strict")) return absl::OkStatus();
  if (!AsksForSpeed(*slo)) {
    return absl::InvalidArgumentError(
        "--strict has no SLO to be strict about: give one too, e.g. --slo-ttft-ms 200");
  }
  slo->set_strict(true);
  return absl::OkStatus();
}

}  // namespace

std::vector<Flag> ToolFlags() {
  return {{"tools", "PATH",
           "tools that the model may call: a file with a JSON list in OpenAI's form; - is standard "
           "input"},
          {"template-arguments", "JSON",
           "arguments of the model's chat template, e.g. {\"enable_thinking\": false}"}};
}

std::vector<Flag> PromptFlags() {
  std::vector<Flag> flags = {
      {"message", "ROLE:CONTENT",
       "one message of the prompt (system, user or assistant); repeatable"},
      {"system", "TEXT", "a system message in front"},
      {"raw", "",
       "give TEXT to the model unchanged, without the chat template; control tokens spelled "
       "in it are control tokens"},
      {"file", "PATH", "read TEXT from a file; - is standard input"}};
  for (Flag& flag : ToolFlags()) flags.push_back(std::move(flag));
  return flags;
}

std::vector<Flag> ModelFlags() {
  return {{"worker", "target|draft", "which model answers (default target)"},
          {"model", "NAME", "the model that answers, by name"}};
}

std::vector<Flag> SettingFlags() {
  std::vector<Flag> flags = {
      {"context", "ID", "continue this context (default: stateless)"},
      {"slo-ttft-ms", "MS", "first token within MS milliseconds"},
      {"slo-tpot-ms", "MS", "MS milliseconds per token after the first"},
      {"slo-ttft-ratio", "R", "first token within R times the full model's time"},
      {"slo-tpot-ratio", "R", "the same per token after the first"},
      {"slo-end-to-end-ms", "MS", "the whole answer within MS milliseconds"},
      {"slo-energy-mj", "MJ", "the whole answer within MJ millijoules"},
      {"strict", "", "refuse the call if the SLO cannot be met"},
      {"greedy", "",
       "always take the most likely token, as --temperature 0 (default of this and the next five: "
       "the configuration's, else the model file's, else --temperature 0.7 --top-p 0.95 "
       "--repetition-penalty 1.1 --repetition-window 256)"},
      {"temperature", "T", "0 to 10; higher is more varied"},
      {"top-k", "K", "keep the K most likely tokens; 0 = all"},
      {"top-p", "P", "keep the smallest set of tokens that reaches probability P; 1 = all"},
      {"min-p", "P", "drop tokens below P times the highest probability; 0 = none"},
      {"repetition-penalty", "F", "penalise previously seen tokens by the factor F; 1 = off"},
      {"repetition-window", "N", "the last N tokens count as previously seen"},
      {"presence-penalty", "P", "-2 to 2: subtracted from the logits of the answer's tokens"},
      {"frequency-penalty", "P", "the same, once for each time that the answer has the token"},
      {"logit-bias", "TOKEN=BIAS",
       "-100 to 100: added to the logit of the token with this id; -100 forbids it; repeatable"},
      {"seed", "N", "the same seed gives the same text (default: random)"},
      {"max-tokens", "N",
       "maximum tokens (default: the configuration's, else 2048, or 256 with --raw)"},
      {"stop", "TEXT", "end the answer before TEXT; repeatable"},
      {"json-object", "", "the answer is a JSON object"},
      {"json-schema", "PATH", "the answer is JSON that this JSON Schema allows: a file"},
      {"regex", "REGEX", "the whole answer matches this regular expression"},
      {"grammar", "PATH",
       "the answer is a text of this grammar: a file of EBNF, whose rule root it is"},
      {"tool-choice", "NAME",
       "the answer calls this tool of --tools; required = at least one, auto = if it wants to"},
      {"logprobs", "N", "report log-probabilities and N alternatives per token (with --json)"},
      {"priority", "N", "-10..10, orders calls of equal deadline; higher goes first"},
      {"request-id", "ID", "a retry with the same ID returns the stored answer"},
      {"speculation", "SOURCE",
       "where drafted tokens come from: off, lookup, prefix, draft, head, or auto for all that pay "
       "(default: the configuration's, else auto)"},
      {"level", "PERCENT", "fix the model level"},
      {"prompt-level", "PERCENT",
       "fix the prompt level: the per cent of the prompt's words to keep"}};
  for (Flag& flag : ModelFlags()) flags.push_back(std::move(flag));
  return flags;
}

Flag TimeoutFlag(absl::Duration fallback) {
  return {"timeout-s", "S",
          absl::StrCat("give up on an answer after S seconds (default ",
                       absl::ToInt64Seconds(fallback), ")")};
}

absl::StatusOr<v1::Prompt> PromptFromArgs(const Args& args) {
  std::string text = absl::StrJoin(args.positional(), " ");
  WITHY_RETURN_IF_ERROR(CheckUtf8("TEXT", text));
  WITHY_RETURN_IF_ERROR(CheckFlagsUtf8(args, {"system", "message"}));
  const std::vector<std::string> messages = args.GetAll("message");
  if (args.Has("file")) {
    if (!text.empty()) return absl::InvalidArgumentError("give TEXT or --file, not both");
    WITHY_ASSIGN_OR_RETURN(text, ReadText("file", args.Get("file")));
  }
  if (text.empty() == messages.empty()) {
    return absl::InvalidArgumentError(text.empty()
                                          ? "no prompt: give TEXT, --message or --file"
                                          : "give TEXT (or --file) or --message, not both");
  }
  v1::Prompt prompt;
  if (args.Has("raw")) {
    if (!messages.empty() || args.Has("system") || args.Has("tools") ||
        args.Has("template-arguments")) {
      return absl::InvalidArgumentError(
          "--raw takes only TEXT: messages and tools need the chat template");
    }
    prompt.set_text(text);
    return prompt;
  }
  v1::Messages& out = *prompt.mutable_messages();
  WITHY_RETURN_IF_ERROR(FillTools(args, &out));
  if (args.Has("system")) WITHY_RETURN_IF_ERROR(AddMessage("system:" + args.Get("system"), &out));
  for (const std::string& message : messages) WITHY_RETURN_IF_ERROR(AddMessage(message, &out));
  if (messages.empty()) WITHY_RETURN_IF_ERROR(AddMessage("user:" + text, &out));
  return prompt;
}

absl::Status FillTools(const Args& args, v1::Messages* messages) {
  WITHY_RETURN_IF_ERROR(CheckFlagsUtf8(args, {"template-arguments"}));
  if (args.Has("tools")) {
    if (args.Get("tools") == "-" && args.Get("file") == "-") {
      return absl::InvalidArgumentError("only one of --tools and --file can be standard input");
    }
    WITHY_ASSIGN_OR_RETURN(*messages->mutable_tools_json(), ReadText("tools", args.Get("tools")));
  }
  messages->set_template_arguments_json(args.Get("template-arguments"));
  return absl::OkStatus();
}

absl::StatusOr<std::string> ModelFromArgs(const Args& args) {
  WITHY_RETURN_IF_ERROR(CheckFlagsUtf8(args, {"worker", "model"}));
  if (args.Has("worker") && args.Has("model"))
    return absl::InvalidArgumentError("give --worker or --model, not both");
  return args.Get("worker", args.Get("model"));
}

absl::StatusOr<v1::Speculation> SpeculationFromText(const std::string& text) {
  const std::pair<std::string_view, v1::Speculation> known[] = {
      {"off", v1::SPECULATION_OFF},       {"lookup", v1::SPECULATION_LOOKUP},
      {"prefix", v1::SPECULATION_PREFIX}, {"draft", v1::SPECULATION_DRAFT},
      {"head", v1::SPECULATION_HEAD},     {"auto", v1::SPECULATION_AUTO}};
  for (const auto& [name, speculation] : known) {
    if (text == name) return speculation;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "speculation is \"", text, "\": it must be off, lookup, prefix, draft, head or auto"));
}

absl::StatusOr<v1::GenerateRequest> SettingsFromArgs(const Args& args) {
  WITHY_RETURN_IF_ERROR(CheckFlagsUtf8(args, {"context", "stop", "request-id", "speculation"}));
  v1::GenerateRequest request;
  request.set_context_id(args.Get("context"));
  WITHY_RETURN_IF_ERROR(FillSlo(args, request.mutable_slo()));
  WITHY_RETURN_IF_ERROR(FillSampling(args, request.mutable_sampling()));
  WITHY_RETURN_IF_ERROR(FillLimits(args, request.mutable_limits()));
  WITHY_RETURN_IF_ERROR(FillFormat(args, &request));
  WITHY_ASSIGN_OR_RETURN(const auto priority, args.Integer("priority", -10, 10));
  if (priority) request.set_priority(static_cast<int32_t>(*priority));
  request.set_request_id(args.Get("request-id"));
  if (args.Has("speculation")) {
    WITHY_ASSIGN_OR_RETURN(const v1::Speculation speculation,
                           SpeculationFromText(args.Get("speculation")));
    request.set_speculation(speculation);
  }
  WITHY_ASSIGN_OR_RETURN(const auto level, args.Integer("level", 1, 100));
  if (level) request.set_model_level_percent(static_cast<uint32_t>(*level));
  WITHY_ASSIGN_OR_RETURN(const auto prompt_level, args.Integer("prompt-level", 1, 100));
  if (prompt_level) request.set_prompt_level_percent(static_cast<uint32_t>(*prompt_level));
  WITHY_ASSIGN_OR_RETURN(*request.mutable_model(), ModelFromArgs(args));
  return request;
}

absl::StatusOr<absl::Duration> TimeoutFromArgs(const Args& args, absl::Duration fallback) {
  WITHY_ASSIGN_OR_RETURN(const auto seconds, args.Number("timeout-s"));
  if (!seconds) return fallback;
  if (!(*seconds > 0 && *seconds <= kMaxTimeoutS)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--timeout-s is ", args.Get("timeout-s"), ": it must be above 0 and at most ",
                     kMaxTimeoutS, "; leave it out for ", absl::ToInt64Seconds(fallback)));
  }
  return absl::Seconds(*seconds);
}

absl::StatusOr<v1::Slo> SloFromWords(std::span<const std::string> words) {
  v1::Slo slo;
  for (const std::string& word : words) {
    if (word == "off") continue;
    if (word == "strict") {
      slo.set_strict(true);
      continue;
    }
    const std::vector<std::string> parts = absl::StrSplit(word, '=');
    double value = 0;
    if (parts.size() != 2 || !absl::SimpleAtod(parts[1], &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", word, "\" must be FIELD=NUMBER, e.g. ttft_ms=200"));
    }
    WITHY_RETURN_IF_ERROR(CheckTarget(parts[0], value));
    WITHY_RETURN_IF_ERROR(SetSlo(parts[0], value, &slo));
  }
  if (slo.strict() && !AsksForSpeed(slo)) {
    return absl::InvalidArgumentError(
        "strict has no SLO to be strict about: give one too, e.g. ttft_ms=200 strict");
  }
  return slo;
}

absl::Status SetSlo(const std::string& field, double value, v1::Slo* slo) {
  const auto* descriptor = v1::Slo::descriptor()->FindFieldByName(field);
  if (descriptor == nullptr ||
      descriptor->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE) {
    return absl::InvalidArgumentError(
        absl::StrCat("no SLO field \"", field, "\": there are ", absl::StrJoin(kSloFields, ", ")));
  }
  slo->GetReflection()->SetDouble(slo, descriptor, value);
  return absl::OkStatus();
}

}  // namespace withy::cli
