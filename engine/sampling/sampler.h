// Picks the next token from logits. Pure: equal logits, parameters, position and history give the
// same token. Neighbour: stop.h ends an answer at a string. Runs no model and keeps no state
// between tokens.
//
//   WITHY_ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create({.temperature = 0.8f, .seed = 7}));
//   WITHY_ASSIGN_OR_RETURN(Sample sample, sampler.Pick(logits, position, history));
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ticks.h"

namespace withy::engine {

struct TokenBias {
  int32_t token = 0;
  float bias = 0.0f;  // -kMaxLogitBias..kMaxLogitBias; the lowest forbids the token

  bool operator==(const TokenBias&) const = default;
};

struct SamplingParams {
  float temperature = 0.0f;  // 0..kMaxTemperature; 0 is greedy
  int32_t top_k = 0;         // keep the k most likely; 0 keeps all
  float top_p = 1.0f;        // (0, 1]: keep the smallest set of tokens with this total probability
  float min_p = 0.0f;        // [0, 1]: keep tokens with this share of the highest probability
  // (0, 10]: divides positive and multiplies negative logits of tokens in the history.
  float repetition_penalty = 1.0f;
  int32_t repetition_window = 64;          // number of latest history tokens that count; 0..65536
  std::vector<TokenBias> logit_bias = {};  // added to logits; tokens beyond them are ignored
  // -2..2: subtracted from the logit of a token that the answer has, once and for each time.
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t prompt_tokens = 0;  // the answer's positions begin here
  // Tokens that are never penalised: those that end an answer. They occur in every conversation,
  // and a model that is discouraged from repeating them does not stop.
  std::vector<int32_t> unpenalized = {};
  uint64_t seed = 0;
  bool logprobs = false;     // fill Sample::logprob
  int32_t top_logprobs = 0;  // 0..20 entries in Sample::top
};

// Errors: InvalidArgument naming the field, its value and the limits (also for NaN and infinity).
absl::Status Validate(const SamplingParams& params);

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0f;  // natural logarithm, before penalty, temperature and truncation
};

struct Sample {
  int32_t id = 0;
  float logprob = 0.0f;           // if requested
  std::vector<TokenLogprob> top;  // most likely first; ties by lowest id
};

// Parts of a Pick, in ticks of `clock`; 0: the part was not needed.
struct PickTimes {
  TickClock clock;
  // The logits were copied, to be penalised.
  int64_t copy_started = 0;
  int64_t copy_ended = 0;
  // Probabilities were made of the logits, with the choice of candidates where sampling cuts them.
  int64_t softmax_started = 0;
  int64_t softmax_ended = 0;
};

// Uniform in [0, 1); a pure function of its arguments (Philox 4x32-10), so that a retry, another
// batch or speculation draws the same number.
double UniformAt(uint64_t seed, uint64_t position);

// Stateless except for scratch memory: one per thread or per call.
class Sampler {
 public:
  // Errors: as Validate().
  static absl::StatusOr<Sampler> Create(const SamplingParams& params);

  const SamplingParams& params() const { return params_; }
  // The prompt's length is known: as SamplingParams::prompt_tokens.
  void BeginAnswer(int32_t prompt_tokens) { params_.prompt_tokens = prompt_tokens; }

  // Picks the token at `position` (its index in the context). `logits`: [vocab], unchanged.
  // `history`: the tokens before it, of which the last repetition_window count, and of the answer's
  // all. Order of steps: penalties and bias, `allowed`, top-k, top-p, min-p (both on the
  // distribution before temperature), temperature, draw. A logit of -infinity forbids a token. Ties
  // go to the lowest id. `times`: overwritten, but for its clock; null: nobody asks. `allowed`: a
  // mask (output_grammar.h) without whose bit a token is not drawn; empty: all may be.
  // Log-probabilities are those of all tokens. Errors: InvalidArgument for empty logits; Internal
  // if a logit is NaN or +infinity, or those of all allowed tokens are -infinity;
  // InvalidArgument if only the bias makes them so.
  absl::StatusOr<Sample> Pick(std::span<const float> logits, uint64_t position,
                              std::span<const int32_t> history, PickTimes* times = nullptr,
                              std::span<const uint32_t> allowed = {});

 private:
  struct Candidate {
    float logit;
    int32_t id;
    float weight;  // unnormalised probability
  };
  explicit Sampler(const SamplingParams& params) : params_(params) {}

  std::span<const float> Penalize(std::span<const float> logits, uint64_t position,
                                  std::span<const int32_t> history);
  void PenalizeRepetition(std::span<const float> logits, std::span<const int32_t> history);
  void PenalizeAnswer(std::span<const int32_t> answer);
  bool NeverPenalized(int32_t id) const;
  std::span<const float> Restrict(std::span<const float> logits, std::span<const uint32_t> allowed);
  int32_t DrawFromAll(std::span<const float> logits, float largest, double uniform);
  int32_t DrawFromCandidates(std::span<const float> logits, float largest, double uniform);
  // Fills candidates_ with the tokens that remain after truncation, most likely first; at least
  // one.
  void CollectCandidates(std::span<const float> logits, float largest);
  void CollectAbove(std::span<const float> logits, float floor);
  void SortCandidates();
  void KeepTopK(size_t keep);
  // Sorts the candidates and truncates them by top-p. `all` is the weight of the whole
  // distribution, 0 if the candidates are all of it. Returns false and changes nothing if the
  // candidates hold too little weight and more can be collected (`last` false).
  bool KeepTopP(double all, float largest, bool last);
  void FillLogprobs(std::span<const float> logits, float largest, Sample& sample);

  // Notes the present time in the Pick's times, if anybody asks.
  void Mark(int64_t PickTimes::*time) const {
    if (times_ != nullptr) times_->*time = times_->clock.Now();
  }

  SamplingParams params_;
  PickTimes* times_ = nullptr;         // of the present Pick
  std::vector<float> penalized_;       // scratch
  std::vector<int32_t> said_;          // scratch
  std::vector<float> restricted_;      // scratch
  std::vector<float> weights_;         // scratch
  std::vector<Candidate> candidates_;  // scratch
};

}  // namespace withy::engine
