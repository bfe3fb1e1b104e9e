#include "wire/wire.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "base/status.h"
#include "base/strings.h"
#include "wire/calibration.h"
#include "wire/output_format.h"

namespace withy::engine {
namespace {

using SpansOnWire = google::protobuf::RepeatedPtrField<v1::ByteSpan>;

constexpr auto kMaxInt = static_cast<uint32_t>(std::numeric_limits<int32_t>::max());

std::vector<ByteSpan> SpansFromWire(const SpansOnWire& wire) {
  std::vector<ByteSpan> spans;
  for (const v1::ByteSpan& span : wire) spans.push_back({span.begin(), span.end()});
  return spans;
}

void SpansToWire(const std::vector<ByteSpan>& spans, SpansOnWire* wire) {
  for (const ByteSpan& span : spans) {
    v1::ByteSpan* out = wire->Add();
    out->set_begin(span.begin);
    out->set_end(span.end);
  }
}

std::vector<ToolCall> CallsFromWire(const google::protobuf::RepeatedPtrField<v1::ToolCall>& wire) {
  std::vector<ToolCall> calls;
  for (const v1::ToolCall& call : wire) {
    const bool none = call.arguments_json().empty();
    calls.push_back({.id = call.id(),
                     .name = call.name(),
                     .arguments_json = none ? "{}" : call.arguments_json()});
  }
  return calls;
}

void CallsToWire(std::span<const ToolCall> calls,
                 google::protobuf::RepeatedPtrField<v1::ToolCall>* wire) {
  for (const ToolCall& call : calls) {
    v1::ToolCall* out = wire->Add();
    out->set_id(call.id);
    out->set_name(call.name);
    out->set_arguments_json(call.arguments_json);
  }
}

absl::Status CheckBound(std::string_view field, uint32_t value, uint32_t limit) {
  if (value <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(field), ": ", value, "; the limit is ", limit));
}

absl::StatusOr<SamplingParams> SamplingFromWire(const v1::RunRequest& request,
                                                const v1::Sampling& defaults, uint64_t seed) {
  const v1::Sampling wire = WithDefaults(request.sampling(), defaults);
  WITHY_RETURN_IF_ERROR(CheckBound("sampling.top_k", wire.top_k(), kMaxInt));
  WITHY_RETURN_IF_ERROR(
      CheckBound("sampling.repetition_window", wire.repetition_window(), kMaxRepetitionWindow));
  SamplingParams params;
  params.temperature = wire.temperature();
  if (!(params.temperature >= 0 && params.temperature <= kMaxTemperature)) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.temperature: ", params.temperature,
                                                   "; the range is 0 to ", kMaxTemperature));
  }
  params.top_k = static_cast<int32_t>(wire.top_k());
  if (wire.has_top_p()) params.top_p = wire.top_p();
  params.min_p = wire.min_p();
  if (wire.has_repetition_penalty()) params.repetition_penalty = wire.repetition_penalty();
  if (wire.has_repetition_window())
    params.repetition_window = static_cast<int32_t>(wire.repetition_window());
  WITHY_RETURN_IF_ERROR(CheckBound("sampling.logit_bias",
                                   static_cast<uint32_t>(wire.logit_bias_size()), kMaxLogitBiases));
  CountsFromWire(wire, &params);
  params.seed = wire.has_seed() ? wire.seed() : seed;
  if (request.limits().has_logprobs()) {
    WITHY_RETURN_IF_ERROR(
        CheckBound("limits.logprobs", request.limits().logprobs(), kMaxTopLogprobs));
    params.logprobs = true;
    params.top_logprobs = static_cast<int32_t>(request.limits().logprobs());
  }
  return params;
}

// The requested maximum, else the default, limited by the window.
int32_t MaxTokens(const v1::RunRequest& request, const AnswerDefaults& defaults, int32_t window) {
  if (request.limits().max_tokens() != 0)
    return static_cast<int32_t>(request.limits().max_tokens());
  const uint32_t usual =
      request.prompt().has_text() ? defaults.raw_max_tokens : defaults.max_tokens;
  const auto room = static_cast<uint32_t>(window);
  return static_cast<int32_t>(usual == 0 ? room : std::min(usual, room));
}

}  // namespace

absl::StatusOr<std::vector<Segment>> PromptFromWire(
    const v1::Prompt& prompt, const google::protobuf::RepeatedPtrField<v1::KeptSpans>& kept) {
  std::vector<Segment> segments;
  switch (prompt.form_case()) {
    case v1::Prompt::kText: {
      Segment& segment = segments.emplace_back();
      segment.text = prompt.text();
      segment.fixed = SpansFromWire(prompt.fixed());
      break;
    }
    case v1::Prompt::kMessages:
      for (const v1::Message& message : prompt.messages().messages()) {
        if (message.role().empty()) {
          return absl::InvalidArgumentError(
              absl::StrCat("prompt.messages[", segments.size(),
                           "].role: empty; give system, user or assistant"));
        }
        Segment& segment = segments.emplace_back();
        segment.role = message.role();
        segment.text = message.content();
        segment.fixed = SpansFromWire(message.fixed());
        segment.tool_calls = CallsFromWire(message.tool_calls());
        segment.name = message.name();
        segment.tool_call_id = message.tool_call_id();
      }
      if (!segments.empty()) {
        segments.front().tools_json = prompt.messages().tools_json();
        segments.front().template_arguments_json = prompt.messages().template_arguments_json();
      }
      break;
    case v1::Prompt::FORM_NOT_SET:
      break;
  }
  if (segments.empty()) {
    return absl::InvalidArgumentError("prompt: empty; give text or at least one message");
  }
  if (kept.empty()) return segments;
  if (kept.size() != static_cast<int>(segments.size())) {
    return absl::InvalidArgumentError(absl::StrCat("kept: ", kept.size(), " entries for ",
                                                   segments.size(), " messages; give one each"));
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    segments[i].kept = SpansFromWire(kept[static_cast<int>(i)].spans());
  }
  return segments;
}

Truncation TruncationFromWire(v1::Truncation truncation) {
  switch (truncation) {
    case v1::TRUNCATION_NONE:
      return Truncation::kNone;
    case v1::TRUNCATION_OLDEST:
      return Truncation::kOldest;
    default:  // without a context there is no record
      return Truncation::kRecord;
  }
}

absl::StatusOr<AnswerRequest> RequestFromWire(const v1::RunRequest& request,
                                              const AnswerDefaults& defaults,
                                              uint64_t fallback_seed, int32_t window) {
  AnswerRequest result;
  WITHY_ASSIGN_OR_RETURN(result.prompt, PromptFromWire(request.prompt(), request.kept()));
  WITHY_ASSIGN_OR_RETURN(result.sampling,
                         SamplingFromWire(request, defaults.sampling, fallback_seed));
  const v1::Limits& limits = request.limits();
  WITHY_RETURN_IF_ERROR(CheckBound("limits.max_tokens", limits.max_tokens(), kMaxInt));
  result.max_tokens = MaxTokens(request, defaults, window);
  result.stop.assign(limits.stop().begin(), limits.stop().end());
  WITHY_RETURN_IF_ERROR(CheckBound("model_level_percent", request.model_level_percent(), 100));
  result.level_percent = request.model_level_percent() == 0
                             ? 100
                             : static_cast<int32_t>(request.model_level_percent());
  result.truncation = TruncationFromWire(request.truncation());
  result.output_format =
      FormatFromWire(request.output_format(), request.prompt().messages().tools_json());
  return result;
}

Segment SegmentFromWire(const v1::Segment& wire) {
  Segment segment;
  segment.role = wire.role();
  segment.text = wire.text();
  segment.kept = SpansFromWire(wire.kept());
  segment.fixed = SpansFromWire(wire.fixed());
  segment.level_percent = static_cast<int32_t>(wire.model_level_percent());
  segment.cancelled = wire.cancelled();
  segment.ended = wire.ended();
  segment.unix_s = wire.unix_s();
  segment.token_ids.assign(wire.token_ids().begin(), wire.token_ids().end());
  segment.tokenizer_fingerprint = wire.tokenizer_fingerprint();
  segment.tool_calls = CallsFromWire(wire.tool_calls());
  segment.name = wire.name();
  segment.tool_call_id = wire.tool_call_id();
  segment.tools_json = wire.tools_json();
  segment.template_arguments_json = wire.template_arguments_json();
  return segment;
}

v1::Segment ToWire(const Segment& segment) {
  v1::Segment wire;
  wire.set_role(segment.role);
  wire.set_text(segment.text);
  SpansToWire(segment.kept, wire.mutable_kept());
  SpansToWire(segment.fixed, wire.mutable_fixed());
  wire.set_model_level_percent(static_cast<uint32_t>(segment.level_percent));
  wire.set_cancelled(segment.cancelled);
  wire.set_ended(segment.ended);
  wire.set_unix_s(segment.unix_s);
  wire.mutable_token_ids()->Add(segment.token_ids.begin(), segment.token_ids.end());
  wire.set_tokenizer_fingerprint(segment.tokenizer_fingerprint);
  CallsToWire(segment.tool_calls, wire.mutable_tool_calls());
  wire.set_name(segment.name);
  wire.set_tool_call_id(segment.tool_call_id);
  wire.set_tools_json(segment.tools_json);
  wire.set_template_arguments_json(segment.template_arguments_json);
  return wire;
}

v1::FinishReason ToWire(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return v1::FINISH_REASON_UNSPECIFIED;
    case FinishReason::kEndOfTurn:
      return v1::FINISH_REASON_END_OF_TURN;
    case FinishReason::kStopString:
      return v1::FINISH_REASON_STOP_STRING;
    case FinishReason::kMaxTokens:
      return v1::FINISH_REASON_MAX_TOKENS;
    case FinishReason::kContextFull:
      return v1::FINISH_REASON_CONTEXT_FULL;
    case FinishReason::kKvFull:
      return v1::FINISH_REASON_KV_FULL;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void FillAnswer(FinishReason reason, const std::string& text, std::span<const ToolCall> calls,
                v1::GenerateFinished* finished) {
  finished->set_reason(calls.empty() ? ToWire(reason) : v1::FINISH_REASON_TOOL_CALLS);
  finished->set_text(text);
  CallsToWire(calls, finished->mutable_tool_calls());
}

v1::Token ToWire(const Sample& sample, const SamplingParams& params, const Tokenizer& tokenizer) {
  v1::Token wire;
  wire.set_id(sample.id);
  if (!params.logprobs) return wire;
  wire.set_logprob(sample.logprob);
  wire.set_text(std::string(tokenizer.TokenBytes(sample.id)));
  for (const TokenLogprob& top : sample.top) {
    v1::TokenAlternative* alternative = wire.add_alternatives();
    alternative->set_id(top.id);
    alternative->set_text(std::string(tokenizer.TokenBytes(top.id)));
    alternative->set_logprob(top.logprob);
  }
  return wire;
}

v1::GenerateDelta ToWire(const AnswerDelta& delta, const SamplingParams& params,
                         const Tokenizer& tokenizer) {
  v1::GenerateDelta wire;
  wire.set_text(delta.text);
  if (delta.token.has_value()) *wire.add_tokens() = ToWire(*delta.token, params, tokenizer);
  return wire;
}

ServedModelOptions OptionsFromWire(const v1::ModelConfig& config, const std::string& state_dir) {
  ServedModelOptions options;
  options.path = config.path();
  options.text = {.chat_template = config.chat_template(), .pre_tokenizer = config.pre_tokenizer()};
  options.context_length = static_cast<int32_t>(config.context_length());
  options.model.device = config.device().empty() ? "auto" : config.device();
  options.model.exact_prefill = config.cuda_exact_prefill();
  options.model.threads = static_cast<int32_t>(config.threads());
  options.model.target = config.kernel_target();
  options.model.cache_dir = PackedDir(state_dir);
  options.model.weight_budget_bytes = config.weight_budget_bytes();
  return options;
}

WeightGuardOptions GuardOptionsFromWire(const v1::ModelConfig& config,
                                        const std::string& state_dir) {
  WeightGuardOptions options;
  options.model_path = config.path();
  options.cache_dir = PackedDir(state_dir);
  options.bytes_per_second = config.scrub_bytes_per_s();
  options.interval = absl::Seconds(config.scrub_interval_s());
  return options;
}

double KernelSpanShare(const v1::ProfilerConfig& config) {
  return config.kernel_spans_off() ? 0 : config.kernel_spans_per_mille() / 1000.0;
}

v1::ModelDescription Describe(const ModelInfo& info, std::string_view role, int32_t window,
                              const AnswerDefaults& defaults) {
  v1::ModelDescription wire;
  wire.set_name(info.name);
  wire.set_role(std::string(role));
  wire.set_architecture(info.architecture);
  wire.set_parameters(static_cast<uint64_t>(info.parameters));
  wire.set_weight_bytes(static_cast<uint64_t>(info.weight_bytes));
  wire.set_context_length(static_cast<uint32_t>(window));
  wire.set_vocabulary(static_cast<uint32_t>(info.vocab_size));
  for (const LevelInfo& level : info.levels) {
    wire.add_levels_percent(static_cast<uint32_t>(level.percent));
  }
  wire.set_model_id(info.id);
  *wire.mutable_default_sampling() = defaults.sampling;
  wire.set_default_max_tokens(defaults.max_tokens);
  if (role == "target") wire.set_embedding_values(static_cast<uint32_t>(info.d_model));
  return wire;
}

std::string CutText(FinishReason reason, size_t tokens) {
  switch (reason) {
    case FinishReason::kMaxTokens:
      return absl::StrCat("The answer was cut after ", Counted(tokens, "token"),
                          ", its limit: raise limits.max_tokens for a longer one.");
    case FinishReason::kContextFull:
      return absl::StrCat("The answer was cut after ", Counted(tokens, "token"),
                          ", because the window is full: use a new context, a shorter prompt or "
                          "a higher model.context_length.");
    case FinishReason::kKvFull:
      return absl::StrCat("The answer was cut after ", Counted(tokens, "token"),
                          ", because the KV arena is full: retry, or raise store.arena_bytes.");
    default:
      return "";
  }
}

}  // namespace withy::engine
