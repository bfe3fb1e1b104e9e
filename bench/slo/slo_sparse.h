// Contextual sparsity as a baseline: at every token that is decoded only the MLP neurons with the
// largest activations take part, chosen with full knowledge of them (an oracle, where a real system
// has to predict). The prompt is computed densely, attention is never cut. Neighbours:
// slo_answers.h keeps the tables; the engine prefills and gives the KV of the prompt. The decoder
// is plain code in f32: it says what is right, not how long it takes.
//
// Source: ElastiLM section 5.1, LG2+CS (Deja Vu's contextual sparsity). An upper bound of it: no
// predictor that errs or costs time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/slo/slo_answers.h"
#include "engine/gguf/reader.h"
#include "engine/model/bundle.h"
#include "engine/weights/shape.h"

namespace withy::bench {

// Rows of floats, one behind the other.
struct FloatRows {
  size_t rows = 0;
  std::vector<float> values = {};
  size_t width() const { return values.size() / rows; }
  float* row(size_t i) { return values.data() + i * width(); }
  const float* row(size_t i) const { return values.data() + i * width(); }
};

// Weights of a llama-like model as floats. Immutable: may be shared by threads.
class FloatModel {
 public:
  struct Layer {
    std::vector<float> attention_norm, q, k, v, o, ffn_norm, gate, up, down;
  };

  // Errors: as engine::ReadShape; NOT_FOUND naming a tensor; UNIMPLEMENTED for biased or normed
  // projections.
  static absl::StatusOr<std::unique_ptr<FloatModel>> Open(const std::string& path);

  // Logits [density and, within it, token][vocab_size] after each of `tokens`, which follow a
  // prompt whose K and V are `keys` and `values` ([layer][token * kv_rows]). Of densities, shares
  // of the neurons that take part (at least one), each row sees the tokens of its own. All are
  // computed together: that reads the weights once.
  FloatRows Decode(std::span<const int32_t> tokens, std::span<const double> densities,
                   const std::vector<std::vector<float>>& keys,
                   const std::vector<std::vector<float>>& values) const;

  const engine::ModelShape& shape() const { return shape_; }

 private:
  explicit FloatModel(engine::ModelShape shape) : shape_(std::move(shape)) {}
  // Rows of `tokens` tokens each: what attention adds. `keys` and `values` of the prompt.
  FloatRows Attend(const Layer& layer, const FloatRows& x, size_t tokens,
                   const std::vector<float>& keys, const std::vector<float>& values) const;
  // Rows of densities.size() groups of equal length.
  FloatRows Mlp(const Layer& layer, const FloatRows& x, std::span<const double> densities) const;

  engine::ModelShape shape_;
  std::vector<float> embedding_, output_norm_, output_;
  std::vector<Layer> layers_;
};

// Whether the right answer to `prompt` is what greedy decoding says, at each density. `dense`
// computes the prompt. Errors: as engine::Model::Forward.
absl::StatusOr<std::vector<bool>> JudgeSparse(const FloatModel& model, engine::Model& dense,
                                              const std::vector<int32_t>& prompt,
                                              const std::vector<int32_t>& answer,
                                              const std::vector<double>& densities);

// Every prompt, shortened to every prompt level, at every density (per cent, ascending, the last
// 100). Errors: as JudgeSparse; from the disk.
absl::StatusOr<Answers> JudgeAllSparse(const std::string& model, const PromptSet& prompts,
                                       const std::vector<uint32_t>& prompt_levels,
                                       const std::vector<uint32_t>& densities,
                                       const std::vector<std::vector<float>>& keep,
                                       const std::string& keep_id, const AnswerOptions& options);

}  // namespace withy::bench
