#include "orchestrator/call/validate.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/contract_limits.h"
#include "base/status.h"
#include "grammar/format_check.h"
#include "orchestrator/call/validate_tools.h"
#include "wire/output_format.h"

namespace withy::orchestrator {
namespace {

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

// Longer than any window, so that nobody has to count its tokens.
template <typename... Args>
absl::Status TooLong(const Args&... args) {
  return absl::OutOfRangeError(absl::StrCat(args...));
}

absl::Status CheckText(const std::string& field, const std::string& text) {
  const size_t bad = FindInvalidUtf8(text);
  if (bad == std::string_view::npos) return absl::OkStatus();
  return Invalid(field, " is not valid UTF-8 at byte ", bad, ": convert the text to UTF-8");
}

absl::Status CheckBytes(const std::string& field, const std::string& text, size_t limit) {
  if (text.size() > limit) {
    return Invalid(field, " is ", text.size(), " bytes long: at most ", limit, "; shorten it");
  }
  return CheckText(field, text);
}

bool OnCharacterBoundary(const std::string& text, uint32_t offset) {
  return offset >= text.size() || (static_cast<uint8_t>(text[offset]) & 0xC0) != 0x80;
}

absl::Status CheckSpans(const std::string& field, const std::string& text,
                        const google::protobuf::RepeatedPtrField<v1::ByteSpan>& spans) {
  uint32_t last_end = 0;
  for (int i = 0; i < spans.size(); ++i) {
    const v1::ByteSpan& span = spans[i];
    const std::string name =
        absl::StrCat(field, "[", i, "] = [", span.begin(), ", ", span.end(), ")");
    if (span.begin() >= span.end()) {
      return Invalid(name, " is empty or reversed: begin must be less than end");
    }
    if (span.end() > text.size()) {
      return Invalid(name, " ends behind its text of ", text.size(),
                     " bytes: spans count bytes, not characters");
    }
    if (span.begin() < last_end) {
      return Invalid(name, " begins before the end ", last_end,
                     " of the span before: spans must ascend and not overlap");
    }
    if (!OnCharacterBoundary(text, span.begin()) || !OnCharacterBoundary(text, span.end())) {
      return Invalid(name, " cuts a UTF-8 character: move it to a character boundary");
    }
    last_end = span.end();
  }
  return absl::OkStatus();
}

absl::Status CheckMessages(const v1::Messages& prompt) {
  if (prompt.messages().empty()) {
    return Invalid("prompt.messages is empty: give at least one message");
  }
  if (prompt.messages_size() > kMaxMessages) {
    return TooLong("prompt.messages has ", prompt.messages_size(), " entries: at most ",
                   kMaxMessages, "; keep the conversation in a context instead");
  }
  WITHY_RETURN_IF_ERROR(ValidateTools(prompt));
  size_t bytes = prompt.tools_json().size() + prompt.template_arguments_json().size();
  for (int i = 0; i < prompt.messages_size(); ++i) {
    const v1::Message& message = prompt.messages(i);
    const std::string field = absl::StrCat("prompt.messages[", i, "]");
    WITHY_RETURN_IF_ERROR(CheckText(field + ".role", message.role()));
    constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
    if (std::find(std::begin(kRoles), std::end(kRoles), message.role()) == std::end(kRoles)) {
      return Invalid(field, ".role is \"", message.role().substr(0, 32),
                     "\": must be \"system\", \"developer\", \"user\", \"assistant\" or \"tool\"");
    }
    WITHY_RETURN_IF_ERROR(CheckText(field + ".content", message.content()));
    WITHY_RETURN_IF_ERROR(CheckSpans(field + ".fixed", message.content(), message.fixed()));
    WITHY_RETURN_IF_ERROR(ValidateCalls(message, i));
    bytes += message.content().size();
    for (const v1::ToolCall& call : message.tool_calls()) bytes += call.arguments_json().size();
  }
  if (bytes > kMaxPromptBytes) {
    return TooLong("prompt.messages hold ", bytes, " bytes: at most ", kMaxPromptBytes,
                   "; shorten the prompt");
  }
  const v1::Message& last = prompt.messages(prompt.messages_size() - 1);
  if (last.tool_calls_size() > 0) {
    return Invalid("prompt.messages[", prompt.messages_size() - 1,
                   "].tool_calls is set in the last message: its results are missing, give them in "
                   "messages of the role tool");
  }
  return absl::OkStatus();
}

// `low_open`: `low` itself is not allowed; the same for `high_open`.
absl::Status CheckRange(const char* field, double value, double low, bool low_open, double high,
                        bool high_open) {
  const bool low_ok = low_open ? value > low : value >= low;
  const bool high_ok = high_open ? value < high : value <= high;
  if (low_ok && high_ok) return absl::OkStatus();  // NaN fails both
  return Invalid(field, " is ", value, ": must be in ", low_open ? "(" : "[", low, ", ", high,
                 high_open ? ")" : "]");
}

absl::Status CheckBiases(const v1::Sampling& sampling) {
  if (static_cast<size_t>(sampling.logit_bias_size()) > kMaxLogitBiases) {
    return Invalid("sampling.logit_bias has ", sampling.logit_bias_size(), " tokens: at most ",
                   kMaxLogitBiases);
  }
  std::set<uint32_t> seen;
  for (const v1::TokenBias& one : sampling.logit_bias()) {
    const std::string field = absl::StrCat("sampling.logit_bias[", one.token(), "]");
    if (!seen.insert(one.token()).second) {
      return Invalid(field, " is there twice: give each token one bias");
    }
    WITHY_RETURN_IF_ERROR(
        CheckRange(field.c_str(), one.bias(), -kMaxLogitBias, false, kMaxLogitBias, false));
  }
  return absl::OkStatus();
}

absl::Status CheckSampling(const v1::Sampling& sampling) {
  WITHY_RETURN_IF_ERROR(
      CheckRange("sampling.temperature", sampling.temperature(), 0, false, kMaxTemperature, false));
  if (sampling.has_top_p()) {
    WITHY_RETURN_IF_ERROR(CheckRange("sampling.top_p", sampling.top_p(), 0, true, 1, false));
  }
  WITHY_RETURN_IF_ERROR(CheckRange("sampling.min_p", sampling.min_p(), 0, false, 1, true));
  if (sampling.has_repetition_penalty()) {
    WITHY_RETURN_IF_ERROR(CheckRange("sampling.repetition_penalty", sampling.repetition_penalty(),
                                     0, true, kMaxRepetitionPenalty, false));
  }
  WITHY_RETURN_IF_ERROR(CheckBiases(sampling));
  for (const auto& [field, penalty] :
       {std::pair("sampling.presence_penalty", sampling.presence_penalty()),
        std::pair("sampling.frequency_penalty", sampling.frequency_penalty())}) {
    WITHY_RETURN_IF_ERROR(CheckRange(field, penalty, -kMaxPenalty, false, kMaxPenalty, false));
  }
  return CheckRange("sampling.repetition_window", sampling.repetition_window(), 0, false,
                    kMaxRepetitionWindow, false);
}

absl::Status CheckTarget(const char* field, double value, double limit) {
  if (value == 0) return absl::OkStatus();
  WITHY_RETURN_IF_ERROR(CheckRange(field, value, 0, true, limit, false));
  return absl::OkStatus();
}

absl::Status CheckSlo(const v1::Slo& slo) {
  constexpr double kDayMs = 86400e3;
  WITHY_RETURN_IF_ERROR(CheckTarget("slo.ttft_ratio", slo.ttft_ratio(), 1));
  WITHY_RETURN_IF_ERROR(CheckTarget("slo.tpot_ratio", slo.tpot_ratio(), 1));
  WITHY_RETURN_IF_ERROR(CheckTarget("slo.ttft_ms", slo.ttft_ms(), kDayMs));
  WITHY_RETURN_IF_ERROR(CheckTarget("slo.tpot_ms", slo.tpot_ms(), kDayMs));
  WITHY_RETURN_IF_ERROR(CheckTarget("slo.end_to_end_ms", slo.end_to_end_ms(), kDayMs));
  WITHY_RETURN_IF_ERROR(CheckTarget("slo.energy_mj", slo.energy_mj(), 1e12));
  std::vector<std::string> families;
  if (slo.ttft_ratio() > 0 || slo.tpot_ratio() > 0)
    families.push_back("ratios (ttft_ratio, tpot_ratio)");
  if (slo.ttft_ms() > 0 || slo.tpot_ms() > 0) families.push_back("milliseconds (ttft_ms, tpot_ms)");
  if (slo.end_to_end_ms() > 0) families.push_back("an end-to-end time (end_to_end_ms)");
  if (slo.energy_mj() > 0) families.push_back("an energy budget (energy_mj)");
  if (families.size() > 1) {
    return Invalid("slo mixes ", absl::StrJoin(families, " and "), ": set one family only");
  }
  return absl::OkStatus();
}

absl::Status CheckLimits(const v1::Limits& limits) {
  if (static_cast<size_t>(limits.stop_size()) > kMaxStopStrings) {
    return Invalid("limits.stop has ", limits.stop_size(), " entries: at most ", kMaxStopStrings);
  }
  for (int i = 0; i < limits.stop_size(); ++i) {
    const std::string field = absl::StrCat("limits.stop[", i, "]");
    if (limits.stop(i).empty())
      return Invalid(field, " is empty: give 1 to ", kMaxStopStringBytes,
                     " bytes, or leave it out");
    WITHY_RETURN_IF_ERROR(CheckBytes(field, limits.stop(i), kMaxStopStringBytes));
  }
  if (limits.has_logprobs() && limits.logprobs() > uint32_t{kMaxTopLogprobs}) {
    return Invalid("limits.logprobs is ", limits.logprobs(), ": at most ", kMaxTopLogprobs);
  }
  return absl::OkStatus();
}

}  // namespace

size_t FindInvalidUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    // Length by the lead byte, and the range its second byte must lie in.
    size_t length = 0;
    uint8_t low = 0x80, high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) {
      length = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      length = 3;
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      length = 4;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (length == 0 || i + length > text.size() || byte(i + 1) < low || byte(i + 1) > high)
      return i;
    for (size_t k = 2; k < length; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) return i;
    }
    i += length;
  }
  return std::string_view::npos;
}

absl::Status ValidatePrompt(const v1::Prompt& prompt) {
  switch (prompt.form_case()) {
    case v1::Prompt::kText:
      if (prompt.text().empty()) return Invalid("prompt.text is empty: there is nothing to answer");
      if (prompt.text().size() > kMaxPromptBytes) {
        return TooLong("prompt.text is ", prompt.text().size(), " bytes long: at most ",
                       kMaxPromptBytes, "; shorten it");
      }
      WITHY_RETURN_IF_ERROR(CheckText("prompt.text", prompt.text()));
      return CheckSpans("prompt.fixed", prompt.text(), prompt.fixed());
    case v1::Prompt::kMessages:
      return CheckMessages(prompt.messages());
    case v1::Prompt::FORM_NOT_SET:
      break;
  }
  return Invalid("prompt is missing: set prompt.text or prompt.messages");
}

absl::Status ValidateContextId(std::string_view context_id) {
  if (context_id.empty())
    return Invalid("context_id is empty: give the id that CreateContext returned");
  return CheckBytes("context_id", std::string(context_id), kMaxIdBytes);
}

absl::Status ValidateCountTokens(const v1::CountTokensRequest& request) {
  WITHY_RETURN_IF_ERROR(ValidatePrompt(request.prompt()));
  return CheckBytes("model", request.model(), 256);
}

absl::Status ValidateScore(const v1::ScoreRequest& request) {
  if (request.prompt().form_case() != v1::Prompt::FORM_NOT_SET) {
    WITHY_RETURN_IF_ERROR(ValidatePrompt(request.prompt()));
    if (request.window_tokens() > 0) {
      return Invalid(
          "window_tokens is ", request.window_tokens(),
          " and prompt is set: a text behind a prompt is scored as one window; leave one "
          "of the two out");
    }
  }
  if (request.text().empty()) return Invalid("text is empty: give the text that is to be scored");
  WITHY_RETURN_IF_ERROR(CheckBytes("text", request.text(), kMaxScoreBytes));
  if (request.logprobs() > uint32_t{kMaxTopLogprobs}) {
    return Invalid("logprobs is ", request.logprobs(), ": at most ", kMaxTopLogprobs);
  }
  return CheckBytes("model", request.model(), 256);
}

absl::Status ValidateEmbed(const v1::EmbedRequest& request) {
  if (request.inputs().empty()) return Invalid("inputs is empty: give at least one text");
  if (request.inputs_size() > kMaxEmbedInputs) {
    return Invalid("inputs has ", request.inputs_size(), " entries: at most ", kMaxEmbedInputs,
                   "; send several requests");
  }
  for (int i = 0; i < request.inputs_size(); ++i) {
    const v1::EmbedInput& input = request.inputs(i);
    const std::string field = absl::StrCat("inputs[", i, "]");
    if (input.has_tokens() ? input.tokens().ids().empty() : input.text().empty()) {
      return Invalid(field, " is empty: give a text, or at least one token");
    }
    if (input.text().size() > kMaxPromptBytes) {
      return TooLong(field, " is ", input.text().size(), " bytes long: at most ", kMaxPromptBytes,
                     "; shorten it, or send its parts as inputs of their own");
    }
    WITHY_RETURN_IF_ERROR(CheckText(field, input.text()));
  }
  return CheckBytes("model", request.model(), 256);
}

absl::Status ValidateCancel(const v1::CancelRequest& request) {
  WITHY_RETURN_IF_ERROR(CheckBytes("call_id", request.call_id(), kMaxIdBytes));
  WITHY_RETURN_IF_ERROR(CheckBytes("request_id", request.request_id(), kMaxIdBytes));
  if (request.call_id().empty() == request.request_id().empty()) {
    return Invalid(request.call_id().empty() ? "call_id and request_id are empty"
                                             : "call_id and request_id are both set",
                   ": name the call by one of them");
  }
  return absl::OkStatus();
}

absl::Status ValidateGenerate(const v1::GenerateRequest& request) {
  if (!request.context_id().empty()) WITHY_RETURN_IF_ERROR(ValidateContextId(request.context_id()));
  WITHY_RETURN_IF_ERROR(ValidatePrompt(request.prompt()));
  const auto& messages = request.prompt().messages().messages();
  if (!request.context_id().empty() && !messages.empty() &&
      messages.rbegin()->role() == "assistant") {
    return Invalid(
        "prompt.messages ends with an assistant message, and context_id is set: an "
        "answer that is to go on must be in a stateless call, with the conversation "
        "before it");
  }
  WITHY_RETURN_IF_ERROR(CheckSlo(request.slo()));
  WITHY_RETURN_IF_ERROR(CheckSampling(request.sampling()));
  WITHY_RETURN_IF_ERROR(CheckLimits(request.limits()));
  if (request.priority() < -10 || request.priority() > 10) {
    return Invalid("priority is ", request.priority(), ": must be in [-10, 10]");
  }
  WITHY_RETURN_IF_ERROR(CheckBytes("request_id", request.request_id(), kMaxIdBytes));
  WITHY_RETURN_IF_ERROR(CheckBytes("model", request.model(), 256));
  if (!v1::Speculation_IsValid(request.speculation())) {
    return Invalid("speculation is ", static_cast<int>(request.speculation()),
                   ": must be 0 or 2 (all sources that pay), 1 (off), 3 (lookup), 4 (prefix) or "
                   "5 (draft)");
  }
  if (!v1::Truncation_IsValid(request.truncation())) {
    return Invalid("truncation is ", static_cast<int>(request.truncation()),
                   ": must be 0 (by the context), 1 (none) or 2 (the oldest messages)");
  }
  if (request.model_level_percent() > 100) {
    return Invalid("model_level_percent is ", request.model_level_percent(),
                   ": must be in [1, 100], or 0 to decide");
  }
  if (request.prompt_level_percent() > 100) {
    return Invalid("prompt_level_percent is ", request.prompt_level_percent(),
                   ": must be in [1, 100], or 0 to decide");
  }
  return grammar::CheckFormat(
      engine::FormatFromWire(request.output_format(), request.prompt().messages().tools_json()));
}

absl::Status ValidateForModel(const v1::GenerateRequest& request, const ModelLimits& model) {
  if (!request.context_id().empty() && !model.keeps_contexts) {
    return Invalid("context_id is set, but model \"", request.model(),
                   "\" answers stateless calls only: leave context_id empty or use the target");
  }
  if (model.context_length > 0 && request.limits().max_tokens() > model.context_length) {
    return Invalid("limits.max_tokens is ", request.limits().max_tokens(),
                   ": at most the model's window of ", model.context_length, " tokens");
  }
  if (model.vocabulary > 0 && request.sampling().top_k() > model.vocabulary) {
    return Invalid("sampling.top_k is ", request.sampling().top_k(), ": at most the vocabulary of ",
                   model.vocabulary, " tokens; 0 keeps all");
  }
  for (const v1::TokenBias& one : request.sampling().logit_bias()) {
    if (model.vocabulary == 0 || one.token() < model.vocabulary) continue;
    return Invalid("sampling.logit_bias[", one.token(), "] is no token: the vocabulary has ",
                   model.vocabulary);
  }
  if (const uint32_t level = request.model_level_percent(); level != 0) {
    for (uint32_t known : model.levels_percent) {
      if (known == level) return absl::OkStatus();
    }
    return Invalid("model_level_percent is ", level, ": this model has the levels ",
                   absl::StrJoin(model.levels_percent, ", "), "; 0 lets withy decide");
  }
  return absl::OkStatus();
}

absl::Status ValidateBindApp(const v1::BindAppRequest& request) {
  const std::string& name = request.app();
  bool good = !name.empty() && name.size() <= 64;
  for (char c : name) {
    good = good && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '.' || c == '_' || c == '-');
  }
  if (good) return absl::OkStatus();
  WITHY_RETURN_IF_ERROR(CheckText("app", name));
  return Invalid("app is \"", name.substr(0, 64), "\" (", name.size(),
                 " bytes): must be 1 to 64 of letters, digits, '.', '_' and '-'");
}

absl::Status ValidateCreateContext(const v1::CreateContextRequest& request) {
  WITHY_RETURN_IF_ERROR(
      CheckBytes("system_prompt", request.system_prompt(), kMaxSystemPromptBytes));
  WITHY_RETURN_IF_ERROR(CheckBytes("title", request.title(), kMaxTitleBytes));
  return CheckBytes("request_id", request.request_id(), kMaxIdBytes);
}

absl::Status ValidateListContexts(const v1::ListContextsRequest& request) {
  if (request.page_size() > kMaxPageSize) {
    return Invalid("page_size is ", request.page_size(), ": at most ", kMaxPageSize,
                   "; 0 means 100");
  }
  return CheckBytes("page_token", request.page_token(), kMaxPageTokenBytes);
}

}  // namespace withy::orchestrator
