#include "wire/answer_defaults.h"

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace withy::engine {
namespace {

// With temperature 0.7 and top-p 0.95 alone, one answer in twenty of a 135 M model ends in a loop.
constexpr float kTemperature = 0.7f;
constexpr float kTopP = 0.95f;
constexpr float kRepetitionPenalty = 1.1f;
// Lists and letters repeat themselves at distances of more than 64 tokens.
constexpr uint32_t kRepetitionWindow = 256;

// Greedy, with all other parameters off.
v1::Sampling Off() { return ToWire(SamplingParams{}); }

v1::Sampling FromFile(const RecommendedSampling& file) {
  v1::Sampling out = Off();
  out.set_temperature(file.temperature.value_or(kTemperature));
  if (file.top_k) out.set_top_k(*file.top_k);
  if (file.top_p) out.set_top_p(*file.top_p);
  if (file.min_p) out.set_min_p(*file.min_p);
  if (file.repetition_penalty) out.set_repetition_penalty(*file.repetition_penalty);
  if (file.repetition_window) out.set_repetition_window(*file.repetition_window);
  return out;
}

v1::Sampling Own() {
  v1::Sampling out = Off();
  out.set_temperature(kTemperature);
  out.set_top_p(kTopP);
  out.set_repetition_penalty(kRepetitionPenalty);
  out.set_repetition_window(kRepetitionWindow);
  return out;
}

}  // namespace

void CountsFromWire(const v1::Sampling& sampling, SamplingParams* params) {
  for (const v1::TokenBias& one : sampling.logit_bias()) {
    params->logit_bias.push_back({static_cast<int32_t>(one.token()), one.bias()});
  }
  params->presence_penalty = sampling.presence_penalty();
  params->frequency_penalty = sampling.frequency_penalty();
}

SamplingParams ParamsOf(const v1::Sampling& sampling) {
  SamplingParams params;
  params.temperature = sampling.temperature();
  params.top_k = static_cast<int32_t>(sampling.top_k());
  params.top_p = sampling.top_p();
  params.min_p = sampling.min_p();
  params.repetition_penalty = sampling.repetition_penalty();
  params.repetition_window = static_cast<int32_t>(sampling.repetition_window());
  CountsFromWire(sampling, &params);
  params.seed = sampling.seed();
  return params;
}

v1::Sampling ToWire(const SamplingParams& params) {
  v1::Sampling out;
  out.set_temperature(params.temperature);
  out.set_top_k(static_cast<uint32_t>(params.top_k));
  out.set_top_p(params.top_p);
  out.set_min_p(params.min_p);
  out.set_repetition_penalty(params.repetition_penalty);
  out.set_repetition_window(static_cast<uint32_t>(params.repetition_window));
  for (const TokenBias& one : params.logit_bias) {
    v1::TokenBias* bias = out.add_logit_bias();
    bias->set_token(static_cast<uint32_t>(one.token));
    bias->set_bias(one.bias);
  }
  out.set_presence_penalty(params.presence_penalty);
  out.set_frequency_penalty(params.frequency_penalty);
  out.set_seed(params.seed);
  return out;
}

std::string Describe(const v1::Sampling& sampling) {
  const bool greedy = sampling.temperature() == 0;
  std::string text = greedy ? "greedy" : absl::StrCat("temperature ", sampling.temperature());
  const auto add = [&](bool on, const char* name, auto value) {
    if (on) absl::StrAppend(&text, ", ", name, " ", value);
  };
  add(!greedy && sampling.top_k() > 0, "top-k", sampling.top_k());
  add(!greedy && sampling.has_top_p() && sampling.top_p() < 1, "top-p", sampling.top_p());
  add(!greedy && sampling.min_p() > 0, "min-p", sampling.min_p());
  const bool penalty = sampling.has_repetition_penalty() && sampling.repetition_penalty() != 1;
  add(penalty, "repetition penalty", sampling.repetition_penalty());
  if (penalty && sampling.has_repetition_window())
    absl::StrAppend(&text, " over ", Counted(sampling.repetition_window(), "token"));
  add(sampling.presence_penalty() != 0, "presence penalty", sampling.presence_penalty());
  add(sampling.frequency_penalty() != 0, "frequency penalty", sampling.frequency_penalty());
  add(sampling.logit_bias_size() > 0, "bias of",
      Counted(static_cast<uint64_t>(sampling.logit_bias_size()), "token"));
  return text;
}

v1::Sampling WithDefaults(const v1::Sampling& asked, const v1::Sampling& defaults) {
  const bool greedy = asked.has_temperature() && asked.temperature() == 0;
  v1::Sampling out = greedy ? Off() : defaults;
  out.clear_seed();
  if (asked.logit_bias_size() > 0) out.clear_logit_bias();  // not both lists
  out.MergeFrom(asked);
  return out;
}

AnswerDefaults DefaultsFor(const v1::ModelConfig& config, const RecommendedSampling& file,
                           int32_t vocabulary) {
  AnswerDefaults out;
  out.sampling = WithDefaults(config.sampling(), file.any() ? FromFile(file) : Own());
  if (out.sampling.top_k() >= static_cast<uint32_t>(vocabulary)) out.sampling.set_top_k(0);
  out.max_tokens = config.max_tokens() != 0 ? config.max_tokens() : kDefaultTokens;
  out.raw_max_tokens = config.max_tokens() != 0 ? config.max_tokens() : kDefaultRawTokens;
  return out;
}

}  // namespace withy::engine
