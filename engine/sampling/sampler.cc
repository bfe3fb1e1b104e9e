#include "engine/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "base/status.h"
#include "base/strings.h"

namespace withy::engine {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

template <typename T>
absl::Status OutOfRange(std::string_view field, T value, std::string_view limits) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(field), " is ", value, "; it must be ", ToAbsl(limits)));
}

// One Philox round: two 32x32-bit products; their halves are exchanged and mixed with the key.
void PhiloxRound(std::array<uint32_t, 4>& counter, uint32_t key0, uint32_t key1) {
  const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
  const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
  counter = {
      static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
      static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
}

// More likely first; ties by lowest id.
template <typename Candidate>
bool MoreLikely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

constexpr size_t kLanes =
    16;  // independent accumulators, so that loops vectorise without reordering sums

// e^x for x <= 0 with a relative error below 1e-6 down to -20. A polynomial, so that it is equal on
// all platforms and vectorises.
float ExpOfNegative(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kRound = 12582912.0f;  // adding it leaves an integer in the low mantissa bits
  const float exponent = std::max(x * kLog2E, -126.0f);
  const float whole = (exponent + kRound) - kRound;
  const float f = exponent - whole;  // in [-0.5, 0.5]
  float power = 1.52527338e-5f;      // 2^f: (ln 2)^k / k!
  power = power * f + 1.54035304e-4f;
  power = power * f + 1.33335581e-3f;
  power = power * f + 9.61812911e-3f;
  power = power * f + 5.55041087e-2f;
  power = power * f + 2.40226507e-1f;
  power = power * f + 6.93147181e-1f;
  power = power * f + 1.0f;
  const float scale = std::bit_cast<float>((static_cast<int32_t>(whole) + 127) << 23);
  return x < -87.0f ? 0.0f : power * scale;
}

// The largest logit; sets `bad` if one is NaN or +infinity.
float LargestOf(std::span<const float> logits, bool* bad) {
  std::array<float, kLanes> largest;
  std::array<int32_t, kLanes> wrong = {};
  largest.fill(kNegativeInfinity);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float logit = logits[i + lane];
      largest[lane] = logit > largest[lane] ? logit : largest[lane];
      wrong[lane] |= logit < std::numeric_limits<float>::infinity() ? 0 : 1;
    }
  }
  for (; i < logits.size(); ++i) {
    largest[0] = std::max(largest[0], logits[i]);
    wrong[0] |= logits[i] < std::numeric_limits<float>::infinity() ? 0 : 1;
  }
  *bad = std::any_of(wrong.begin(), wrong.end(), [](int32_t value) { return value != 0; });
  return *std::max_element(largest.begin(), largest.end());
}

absl::Status EveryTokenForbidden() {
  return absl::InternalError("every token is forbidden: all logits are -infinity");
}

// The largest logit, or an error if a logit is invalid.
absl::StatusOr<float> CheckedLargest(std::span<const float> logits) {
  if (logits.empty()) return absl::InvalidArgumentError("no logits to sample from");
  bool bad = false;
  const float largest = LargestOf(logits, &bad);
  if (bad) {
    const auto culprit = std::find_if(logits.begin(), logits.end(), [](float logit) {
      return !(logit < std::numeric_limits<float>::infinity());
    });
    return absl::InternalError(absl::StrCat("logit ", culprit - logits.begin(), " is ", *culprit,
                                            "; the model's numbers are broken"));
  }
  if (largest > kNegativeInfinity) return largest;
  return EveryTokenForbidden();
}

// Σ e^(logit - largest).
double SumOfWeights(std::span<const float> logits, float largest) {
  std::array<double, kLanes> sums = {};
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += ExpOfNegative(logits[i + lane] - largest);
    }
  }
  double total = 0.0;
  for (; i < logits.size(); ++i) total += ExpOfNegative(logits[i] - largest);
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

absl::Status Validate(const SamplingParams& params) {
  // The comparisons are written so that NaN fails them.
  if (!(params.temperature >= 0.0f && params.temperature <= kMaxTemperature)) {
    return OutOfRange("temperature", params.temperature,
                      absl::StrCat("from 0 (always the most likely) to ", kMaxTemperature));
  }
  if (params.top_k < 0) return OutOfRange("top_k", params.top_k, "0 (off) or more");
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) {
    return OutOfRange("top_p", params.top_p, "above 0 and at most 1 (off)");
  }
  if (!(params.min_p >= 0.0f && params.min_p <= 1.0f)) {
    return OutOfRange("min_p", params.min_p, "from 0 (off) to 1");
  }
  if (!(params.repetition_penalty > 0.0f && params.repetition_penalty <= kMaxRepetitionPenalty)) {
    return OutOfRange("repetition_penalty", params.repetition_penalty,
                      absl::StrCat("above 0 and at most ", kMaxRepetitionPenalty, " (1 is off)"));
  }
  if (params.repetition_window < 0 || params.repetition_window > kMaxRepetitionWindow) {
    return OutOfRange("repetition_window", params.repetition_window,
                      absl::StrCat("from 0 to ", kMaxRepetitionWindow));
  }
  for (const TokenBias& one : params.logit_bias) {
    if (!(one.bias >= -kMaxLogitBias && one.bias <= kMaxLogitBias)) {
      return OutOfRange("logit_bias", one.bias,
                        absl::StrCat("from ", -kMaxLogitBias, " to ", kMaxLogitBias));
    }
  }
  for (const auto& [name, penalty] : {std::pair("presence_penalty", params.presence_penalty),
                                      std::pair("frequency_penalty", params.frequency_penalty)}) {
    if (penalty >= -kMaxPenalty && penalty <= kMaxPenalty) continue;
    return OutOfRange(name, penalty, absl::StrCat("from ", -kMaxPenalty, " to ", kMaxPenalty));
  }
  if (params.top_logprobs < 0 || params.top_logprobs > kMaxTopLogprobs) {
    return OutOfRange("top_logprobs", params.top_logprobs,
                      absl::StrCat("from 0 to ", kMaxTopLogprobs));
  }
  return absl::OkStatus();
}

double UniformAt(uint64_t seed, uint64_t position) {
  std::array<uint32_t, 4> counter = {static_cast<uint32_t>(position),
                                     static_cast<uint32_t>(position >> 32), 0, 0};
  auto key0 = static_cast<uint32_t>(seed);
  auto key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    PhiloxRound(counter, key0, key1);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  const uint64_t bits = (uint64_t{counter[1]} << 32 | counter[0]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

absl::StatusOr<Sampler> Sampler::Create(const SamplingParams& params) {
  WITHY_RETURN_IF_ERROR(Validate(params));
  return Sampler(params);
}

absl::StatusOr<Sample> Sampler::Pick(std::span<const float> logits, uint64_t position,
                                     std::span<const int32_t> history, PickTimes* times,
                                     std::span<const uint32_t> allowed) {
  times_ = times;
  if (times != nullptr) *times = {.clock = times->clock};
  WITHY_ASSIGN_OR_RETURN(const float largest, CheckedLargest(logits));
  const std::span<const float> penalized = Restrict(Penalize(logits, position, history), allowed);
  bool bad = false;
  const float penalized_largest =
      penalized.data() == logits.data() ? largest : LargestOf(penalized, &bad);
  if (penalized_largest == kNegativeInfinity) {
    if (params_.logit_bias.empty()) return EveryTokenForbidden();
    return absl::InvalidArgumentError(
        "sampling.logit_bias forbids every token that may come next: forbid fewer");
  }
  Sample sample;
  if (params_.temperature == 0.0f) {
    sample.id = static_cast<int32_t>(
        std::find(penalized.begin(), penalized.end(), penalized_largest) - penalized.begin());
  } else {
    const double uniform = UniformAt(params_.seed, position);
    const bool cuts = params_.top_k > 0 || params_.top_p < 1.0f || params_.min_p > 0.0f;
    sample.id = cuts ? DrawFromCandidates(penalized, penalized_largest, uniform)
                     : DrawFromAll(penalized, penalized_largest, uniform);
  }
  FillLogprobs(logits, largest, sample);
  return sample;
}

bool Sampler::NeverPenalized(int32_t id) const {
  const auto& never = params_.unpenalized;
  return id < 0 || static_cast<size_t>(id) >= penalized_.size() ||
         std::find(never.begin(), never.end(), id) != never.end();
}

std::span<const float> Sampler::Penalize(std::span<const float> logits, uint64_t position,
                                         std::span<const int32_t> history) {
  const auto window = std::min(static_cast<size_t>(params_.repetition_window), history.size());
  const bool repetition = params_.repetition_penalty != 1.0f && window > 0;
  const auto prompt = static_cast<uint64_t>(params_.prompt_tokens);
  const size_t said = position > prompt ? std::min<size_t>(position - prompt, history.size()) : 0;
  const bool counts =
      said > 0 && (params_.presence_penalty != 0.0f || params_.frequency_penalty != 0.0f);
  if (!repetition && !counts && params_.logit_bias.empty()) return logits;
  Mark(&PickTimes::copy_started);
  penalized_.assign(logits.begin(), logits.end());
  Mark(&PickTimes::copy_ended);
  if (repetition) PenalizeRepetition(logits, history.last(window));
  for (const TokenBias& one : params_.logit_bias) {
    if (one.token < 0 || static_cast<size_t>(one.token) >= penalized_.size()) continue;
    float& logit = penalized_[static_cast<size_t>(one.token)];
    logit = one.bias <= -kMaxLogitBias ? kNegativeInfinity : logit + one.bias;
  }
  if (counts) PenalizeAnswer(history.last(said));
  return penalized_;
}

void Sampler::PenalizeRepetition(std::span<const float> logits, std::span<const int32_t> history) {
  for (const int32_t id : history) {
    if (NeverPenalized(id)) continue;
    // Uses the original value: a token that occurs twice is penalised once.
    const float logit = logits[static_cast<size_t>(id)];
    penalized_[static_cast<size_t>(id)] =
        logit > 0.0f ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
  }
}

void Sampler::PenalizeAnswer(std::span<const int32_t> answer) {
  said_.assign(answer.begin(), answer.end());
  std::sort(said_.begin(), said_.end());
  for (auto first = said_.begin(); first != said_.end();) {
    const auto end = std::upper_bound(first, said_.end(), *first);
    if (!NeverPenalized(*first)) {
      penalized_[static_cast<size_t>(*first)] -=
          params_.presence_penalty + params_.frequency_penalty * static_cast<float>(end - first);
    }
    first = end;
  }
}

// The logits of the allowed tokens, and -infinity for the others.
std::span<const float> Sampler::Restrict(std::span<const float> logits,
                                         std::span<const uint32_t> allowed) {
  if (allowed.empty()) return logits;
  restricted_.assign(logits.size(), kNegativeInfinity);
  for (size_t word = 0; word < allowed.size(); ++word) {
    for (uint32_t bits = allowed[word]; bits != 0; bits &= bits - 1) {
      const size_t id = 32 * word + static_cast<size_t>(std::countr_zero(bits));
      if (id < logits.size()) restricted_[id] = logits[id];
    }
  }
  return restricted_;
}

int32_t Sampler::DrawFromAll(std::span<const float> logits, float largest, double uniform) {
  Mark(&PickTimes::softmax_started);
  weights_.resize(logits.size());
  const float inverse = 1.0f / params_.temperature;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = ExpOfNegative((logits[i] - largest) * inverse);
  }
  double total = 0.0;
  for (const float weight : weights_) total += weight;
  Mark(&PickTimes::softmax_ended);
  const double target = uniform * total;
  double sum = 0.0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    sum += weights_[i];
    if (target < sum) return static_cast<int32_t>(i);
  }
  // Reached only by rounding errors: the most likely token.
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
}

int32_t Sampler::DrawFromCandidates(std::span<const float> logits, float largest, double uniform) {
  Mark(&PickTimes::softmax_started);
  CollectCandidates(logits, largest);
  const float inverse = 1.0f / params_.temperature;
  double total = 0.0;
  for (Candidate& candidate : candidates_) {
    candidate.weight = ExpOfNegative((candidate.logit - largest) * inverse);
    total += candidate.weight;
  }
  Mark(&PickTimes::softmax_ended);
  const double target = uniform * total;
  double sum = 0.0;
  for (const Candidate& candidate : candidates_) {
    sum += candidate.weight;
    if (target < sum) return candidate.id;
  }
  return candidates_.front().id;
}

void Sampler::CollectCandidates(std::span<const float> logits, float largest) {
  const auto top_k = static_cast<size_t>(params_.top_k);
  const float floor = params_.min_p > 0.0f ? largest + std::log(params_.min_p) : kNegativeInfinity;
  if (top_k == 0 && params_.top_p == 1.0f) {
    CollectAbove(logits, floor);
    SortCandidates();
    return;
  }
  const double all = top_k == 0 ? SumOfWeights(logits, largest) : 0.0;
  // The vocabulary is large, and usually few candidates remain: look near the top first, and wider
  // only if necessary.
  for (const float depth : {8.0f, 16.0f, 32.0f, std::numeric_limits<float>::infinity()}) {
    const bool everything = depth == std::numeric_limits<float>::infinity();
    CollectAbove(logits, largest - depth);
    if (top_k > 0 && candidates_.size() < top_k && !everything) continue;
    KeepTopK(top_k);
    if (KeepTopP(all, largest, everything)) break;
  }
  while (candidates_.size() > 1 && candidates_.back().logit < floor) candidates_.pop_back();
}

void Sampler::CollectAbove(std::span<const float> logits, float floor) {
  candidates_.clear();
  constexpr size_t kBlock = 64;
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::span<const float> block =
        logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    int hits = 0;
    for (const float logit : block) hits += logit >= floor ? 1 : 0;
    if (hits == 0) continue;
    for (size_t i = 0; i < block.size(); ++i) {
      if (block[i] < floor || block[i] == kNegativeInfinity) continue;
      candidates_.push_back({block[i], static_cast<int32_t>(begin + i), 0.0f});
    }
  }
}

void Sampler::SortCandidates() {
  std::sort(candidates_.begin(), candidates_.end(), MoreLikely<Candidate>);
}

void Sampler::KeepTopK(size_t keep) {
  if (keep == 0 || keep >= candidates_.size()) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(keep),
                   candidates_.end(), MoreLikely<Candidate>);
  candidates_.resize(keep);
}

bool Sampler::KeepTopP(double all, float largest, bool last) {
  double held = 0.0;
  for (Candidate& candidate : candidates_) {
    candidate.weight = ExpOfNegative(candidate.logit - largest);
    held += candidate.weight;
  }
  const double wanted = (all == 0.0 ? held : all) * params_.top_p;
  if (held < wanted && !last) return false;
  SortCandidates();
  if (params_.top_p == 1.0f) return true;
  double sum = 0.0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    sum += candidates_[i].weight;
    if (sum < wanted) continue;
    candidates_.resize(i + 1);
    break;
  }
  return true;
}

void Sampler::FillLogprobs(std::span<const float> logits, float largest, Sample& sample) {
  if (!params_.logprobs && params_.top_logprobs == 0) return;
  const double norm = largest + std::log(SumOfWeights(logits, largest));
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(logits[static_cast<size_t>(id)] - norm);
  };
  sample.logprob = logprob(sample.id);
  const size_t count = std::min(static_cast<size_t>(params_.top_logprobs), logits.size());
  if (count == 0) return;
  for (const float depth : {8.0f, 32.0f, std::numeric_limits<float>::infinity()}) {
    CollectAbove(logits, largest - depth);
    if (candidates_.size() >= count) break;
  }
  KeepTopK(count);
  SortCandidates();
  for (const Candidate& candidate : candidates_) {
    sample.top.push_back({candidate.id, logprob(candidate.id)});
  }
}

}  // namespace withy::engine
