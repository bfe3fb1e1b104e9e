#include "engine/session/predictions.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace withy::engine {

void LogSoftmax(std::span<float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += static_cast<double>(std::exp(logit - top));
  const float shift = top + static_cast<float>(std::log(sum));
  for (float& logit : logits) logit -= shift;
}

double Divergence(std::span<const float> p, std::span<const float> q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    sum += static_cast<double>(std::exp(p[i]) * (p[i] - q[i]));
  }
  return std::max(sum, 0.0);
}

int32_t Likeliest(std::span<const float> values) {
  return static_cast<int32_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

std::vector<TokenLogprob> LikeliestTokens(std::span<const float> log_probabilities, int32_t count) {
  std::vector<int32_t> ids(log_probabilities.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto value = [&](int32_t id) { return log_probabilities[static_cast<size_t>(id)]; };
  const auto end = ids.begin() + std::min<ptrdiff_t>(count, static_cast<ptrdiff_t>(ids.size()));
  std::partial_sort(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
    return value(a) != value(b) ? value(a) > value(b) : a < b;
  });
  std::vector<TokenLogprob> tokens;
  for (auto id = ids.begin(); id != end; ++id) tokens.push_back({*id, value(*id)});
  return tokens;
}

}  // namespace withy::engine
