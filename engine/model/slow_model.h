// A model computed slowly and plainly, in double precision, with no KV cache: the reference of
// tests and benchmarks for small models. Neighbours: model.h is the engine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace withy::engine {

// Logits after each of `tokens`, [tokens, vocab_size], of a plain "llama" or "qwen2" file. Weights
// count as their types store them. Errors: those of GgufFile::Open and ReadShape; NOT_FOUND (a
// tensor); UNIMPLEMENTED (head norms, a model BeyondLlama); INVALID_ARGUMENT (a token outside the
// vocabulary). `window`: ModelShape::UseWindow.
absl::StatusOr<std::vector<double>> SlowLogits(const std::string& path,
                                               std::span<const int32_t> tokens, int32_t window = 0);

// Mean distance of the log-probabilities that two sets of logits give, over rows and vocabulary.
double MeanLogProbError(std::span<const double> want, std::span<const float> got,
                        size_t vocabulary);

}  // namespace withy::engine
