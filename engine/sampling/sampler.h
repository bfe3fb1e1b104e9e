// Picks the next token from logits. Pure: the same logits, parameters, position and history always
// give the same token. Neighbours: stop.h ends an answer at a string. Does not run the model, keeps
// no state between tokens.
//
//   WITHY_ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create({.temperature = 0.8f, .top_p = 0.95f,
//   .seed = 7})); WITHY_ASSIGN_OR_RETURN(Sample sample, sampler.Pick(logits, position, history));
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace withy::engine {

inline constexpr int32_t kMaxRepetitionWindow = 65536;

struct SamplingParams {
  float temperature = 0.0f;  // 0..100; 0 takes the most likely token
  int32_t top_k = 0;         // keep the k most likely; 0 keeps all
  float top_p = 1.0f;        // (0, 1]: keep the smallest set of tokens that holds this probability
  float min_p = 0.0f;        // [0, 1]: keep tokens at least this share as likely as the most likely
  float repetition_penalty =
      1.0f;  // (0, 10]: divides positive and multiplies negative logits of tokens in the history
  int32_t repetition_window = 64;  // how many last tokens of the history count; 0..65536
  // Tokens that are never penalised: those that end an answer stand in every conversation, and a
  // model that may not say them again does not stop.
  std::vector<int32_t> unpenalized = {};
  uint64_t seed = 0;
  bool logprobs = false;     // fill Sample::logprob
  int32_t top_logprobs = 0;  // 0..20 entries in Sample::top
};

// Errors: InvalidArgument naming the field, its value and the limits (also for NaN and infinity).
absl::Status Validate(const SamplingParams& params);

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0f;  // natural logarithm, of the model's own distribution: before penalty,
                         // temperature and cuts
};

struct Sample {
  int32_t id = 0;
  float logprob = 0.0f;           // when asked for
  std::vector<TokenLogprob> top;  // most likely first, ties by lowest id
};

// Uniform in [0, 1), a pure function of its arguments (Philox 4x32-10), so that a retry, another
// batch or speculation draws the same.
double UniformAt(uint64_t seed, uint64_t position);

// Stateless after creation apart from scratch memory: one a thread, or one a call.
class Sampler {
 public:
  // Errors: as Validate().
  static absl::StatusOr<Sampler> Create(const SamplingParams& params);

  const SamplingParams& params() const { return params_; }

  // The token for position `position` (its index in the context). `logits` is [vocab], not changed.
  // `history` are the tokens before it; only the last repetition_window count. Order of steps:
  // penalty, top-k, top-p, min-p (both on the untempered distribution), temperature, draw.
  // -infinity forbids a token. Ties break by lowest id.
  // Errors: InvalidArgument for empty logits; Internal when a logit is NaN or +infinity, or all are
  // -infinity.
  absl::StatusOr<Sample> Pick(std::span<const float> logits, uint64_t position,
                              std::span<const int32_t> history);

 private:
  struct Candidate {
    float logit;
    int32_t id;
    float weight;  // unnormalised probability
  };
  explicit Sampler(const SamplingParams& params) : params_(params) {}

  std::span<const float> Penalize(std::span<const float> logits, std::span<const int32_t> history);
  int32_t DrawFromAll(std::span<const float> logits, float largest, double uniform);
  int32_t DrawFromCandidates(std::span<const float> logits, float largest, double uniform);
  // Fills candidates_ with what the cuts leave, most likely first; at least one.
  void CollectCandidates(std::span<const float> logits, float largest);
  void CollectAbove(std::span<const float> logits, float floor);
  void SortCandidates();
  void KeepTopK(size_t keep);
  // Sorts the candidates and cuts them by top-p. `all` is the weight of the whole distribution, 0
  // when the candidates are all there is. False, with nothing done, when these candidates do not
  // hold enough of it and are not the last ones.
  bool KeepTopP(double all, float largest, bool last);
  void FillLogprobs(std::span<const float> logits, float largest, Sample& sample);

  SamplingParams params_;
  std::vector<float> penalized_;       // scratch
  std::vector<float> weights_;         // scratch
  std::vector<Candidate> candidates_;  // scratch
};

}  // namespace withy::engine
