// Measures what a model's predictions lose when KV is stored in each of the formats. Neighbours:
// `withyctl calibrate` stores the result, context_store weighs formats by it,
// bench/quality/kv_quality.cc does the same with much more text.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/format.h"
#include "engine/model/model.h"

namespace withy::engine {

struct KvFormatError {
  KvFormat format = KvFormat::kQ8;
  // Mean Kullback-Leibler divergence, in nats, of the predicted distributions from those over 16
  // bits. The rows that are measured are at 8 bits themselves.
  double divergence = 0;
  friend bool operator==(const KvFormatError&, const KvFormatError&) = default;
};

// Tokens that MeasureKvErrors uses at most, and at least.
inline constexpr int32_t kKvErrorTokens = 512;
inline constexpr int32_t kLeastKvErrorTokens = 128;

// A text of more than kKvErrorTokens tokens of any vocabulary, about several subjects.
std::string_view KvErrorText();

// Prefills the first part of `tokens`, stores its chunks except the first and the last two in each
// format, and predicts the rest over it. Computes kKvErrorTokens * 3 rows. Returns kQ8, kQ4, kQ4Q2
// and kQ2. `progress`: the share that is done. Errors: INVALID_ARGUMENT (fewer than
// kLeastKvErrorTokens), CANCELLED (`cancel` became true), those of Model::Forward.
absl::StatusOr<std::vector<KvFormatError>> MeasureKvErrors(
    Model& model, std::span<const int32_t> tokens, const std::atomic<bool>* cancel,
    const std::function<void(double)>& progress = nullptr);

}  // namespace withy::engine
