#include "bench/slo/slo_sparse.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "bench/quality/held_out.h"
#include "engine/gguf/quants.h"
#include "engine/kv/block.h"
#include "engine/model/scratch_kv.h"
#include "offline/tlm/decision_table.h"

namespace withy::bench {
namespace {

using Floats = std::vector<float>;

constexpr size_t kLanes = 16;  // sums side by side, for the compiler's sake

float Dot(const float* a, const float* b, size_t count) {
  std::array<float, kLanes> sums{};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float sum = std::accumulate(sums.begin(), sums.end(), 0.0f);
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// `matrix` [outputs, x.width()] times every row of x. Rows lie side by side while they are
// multiplied, so that the compiler makes vectors of them.
FloatRows Product(const Floats& matrix, const FloatRows& x) {
  const size_t width = x.width();
  const size_t outputs = matrix.size() / width;
  FloatRows out{.rows = x.rows, .values = Floats(x.rows * outputs)};
  Floats turned(width * kLanes);
  for (size_t first = 0; first < x.rows; first += kLanes) {
    const size_t rows = std::min(kLanes, x.rows - first);
    for (size_t lane = 0; lane < rows; ++lane) {
      for (size_t i = 0; i < width; ++i) turned[i * kLanes + lane] = x.row(first + lane)[i];
    }
    for (size_t output = 0; output < outputs; ++output) {
      const float* weights = matrix.data() + output * width;
      std::array<float, kLanes> sums{};
      for (size_t i = 0; i < width; ++i) {
        for (size_t lane = 0; lane < kLanes; ++lane) {
          sums[lane] += weights[i] * turned[i * kLanes + lane];
        }
      }
      for (size_t lane = 0; lane < rows; ++lane) out.row(first + lane)[output] = sums[lane];
    }
  }
  return out;
}

FloatRows RmsNorm(FloatRows x, const Floats& weight, float epsilon) {
  for (size_t r = 0; r < x.rows; ++r) {
    float* row = x.row(r);
    const float mean = Dot(row, row, x.width()) / static_cast<float>(x.width());
    const float scale = 1 / std::sqrt(mean + epsilon);
    for (size_t i = 0; i < x.width(); ++i) row[i] *= scale * weight[i];
  }
  return x;
}

// Turns every head of each row of `x`, `tokens` of which follow each other from `position` on.
void Rope(const engine::ModelShape& shape, size_t position, size_t tokens, FloatRows* x) {
  const auto dim = static_cast<size_t>(shape.head_dim);
  const bool adjacent = shape.rope_pairing == engine::RopePairing::kAdjacent;
  for (size_t r = 0; r < x->rows; ++r) {
    float* row = x->row(r);
    for (size_t pair = 0; pair < dim / 2; ++pair) {
      const double angle =
          double{shape.rope_frequencies[pair]} * static_cast<double>(position + r % tokens);
      const auto scale = double{shape.rope_scales[0]};
      const auto cosine = static_cast<float>(scale * std::cos(angle));
      const auto sine = static_cast<float>(scale * std::sin(angle));
      for (size_t head = 0; head < x->width(); head += dim) {
        float& a = row[head + (adjacent ? 2 * pair : pair)];
        float& b = row[head + (adjacent ? 2 * pair + 1 : pair + dim / 2)];
        const float turned = a * cosine - b * sine;
        b = a * sine + b * cosine;
        a = turned;
      }
    }
  }
}

// Leaves the neurons with the largest activations, the others nothing.
void KeepLargest(double density, size_t count, float* activations) {
  const auto kept = std::clamp<size_t>(
      static_cast<size_t>(std::lround(density * static_cast<double>(count))), 1, count);
  if (kept == count) return;
  Floats sizes(count);
  std::transform(activations, activations + count, sizes.begin(),
                 [](float a) { return std::abs(a); });
  std::nth_element(sizes.begin(), sizes.begin() + static_cast<ptrdiff_t>(kept) - 1, sizes.end(),
                   std::greater<>());
  const float least = sizes[kept - 1];
  std::replace_if(
      activations, activations + count, [&](float a) { return std::abs(a) < least; }, 0.0f);
}

absl::StatusOr<Floats> Read(const engine::GgufFile& file, const std::string& name) {
  WITHY_ASSIGN_OR_RETURN(const engine::TensorInfo* tensor, file.GetTensor(name));
  Floats values(static_cast<size_t>(tensor->elements()));
  WITHY_RETURN_IF_ERROR(
      engine::Dequantize(tensor->type, file.Data(*tensor), std::span<float>(values)));
  return values;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FloatModel>> FloatModel::Open(const std::string& path) {
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(path));
  WITHY_ASSIGN_OR_RETURN(engine::ModelShape shape, engine::ReadShape(file));
  shape.UseWindow(0);
  if (shape.qk_norm != engine::QkNorm::kNone || shape.needs_qkv_bias ||
      !engine::BeyondLlama(shape).empty()) {
    return absl::UnimplementedError(
        absl::StrCat(path,
                     ": contextual sparsity is only judged on llama models without biases and "
                     "norms of Q and K"));
  }
  std::unique_ptr<FloatModel> model(new FloatModel(std::move(shape)));
  WITHY_ASSIGN_OR_RETURN(model->embedding_, Read(file, "token_embd.weight"));
  WITHY_ASSIGN_OR_RETURN(model->output_norm_, Read(file, "output_norm.weight"));
  const bool tied = !file.GetTensor("output.weight").ok();
  WITHY_ASSIGN_OR_RETURN(model->output_, Read(file, tied ? "token_embd.weight" : "output.weight"));
  for (int32_t i = 0; i < model->shape_.layers; ++i) {
    Layer& layer = model->layers_.emplace_back();
    const std::pair<const char*, Floats*> tensors[] = {{"attn_norm", &layer.attention_norm},
                                                       {"attn_q", &layer.q},
                                                       {"attn_k", &layer.k},
                                                       {"attn_v", &layer.v},
                                                       {"attn_output", &layer.o},
                                                       {"ffn_norm", &layer.ffn_norm},
                                                       {"ffn_gate", &layer.gate},
                                                       {"ffn_up", &layer.up},
                                                       {"ffn_down", &layer.down}};
    for (const auto& [name, values] : tensors) {
      WITHY_ASSIGN_OR_RETURN(*values, Read(file, absl::StrCat("blk.", i, ".", name, ".weight")));
    }
  }
  return model;
}

FloatRows FloatModel::Attend(const Layer& layer, const FloatRows& x, size_t tokens,
                             const Floats& keys, const Floats& values) const {
  const auto dim = static_cast<size_t>(shape_.head_dim);
  const auto kv_rows = static_cast<size_t>(shape_.kv_rows());
  const size_t before = keys.size() / kv_rows;
  FloatRows q = Product(layer.q, x);
  FloatRows k = Product(layer.k, x);
  Rope(shape_, before, tokens, &q);
  Rope(shape_, before, tokens, &k);
  const FloatRows v = Product(layer.v, x);
  FloatRows mixed{.rows = q.rows, .values = Floats(q.values.size())};
  for (size_t r = 0; r < q.rows; ++r) {
    const size_t first = r - r % tokens;  // of its own density
    Floats weights(before + r - first + 1);
    const auto at = [&](const Floats& prompt, const FloatRows& own, size_t t) {
      return t < before ? prompt.data() + t * kv_rows : own.row(first + t - before);
    };
    for (size_t head = 0; head < static_cast<size_t>(shape_.heads); ++head) {
      const size_t group = head / static_cast<size_t>(shape_.query_heads_per_group()) * dim;
      float best = -INFINITY;
      for (size_t t = 0; t < weights.size(); ++t) {
        weights[t] = Dot(q.row(r) + head * dim, at(keys, k, t) + group, dim) /
                     std::sqrt(static_cast<float>(dim));
        best = std::max(best, weights[t]);
      }
      float sum = 0;
      for (float& weight : weights) sum += weight = std::exp(weight - best);
      float* out = mixed.row(r) + head * dim;
      for (size_t t = 0; t < weights.size(); ++t) {
        const float* value = at(values, v, t) + group;
        for (size_t i = 0; i < dim; ++i) out[i] += weights[t] / sum * value[i];
      }
    }
  }
  return Product(layer.o, mixed);
}

FloatRows FloatModel::Mlp(const Layer& layer, const FloatRows& x,
                          std::span<const double> densities) const {
  const FloatRows gate = Product(layer.gate, x);
  FloatRows activation = Product(layer.up, x);
  for (size_t i = 0; i < gate.values.size(); ++i) {
    activation.values[i] *= gate.values[i] / (1 + std::exp(-gate.values[i]));
  }
  const size_t tokens = x.rows / densities.size();
  for (size_t r = 0; r < x.rows; ++r) {
    KeepLargest(densities[r / tokens], activation.width(), activation.row(r));
  }
  return Product(layer.down, activation);
}

FloatRows FloatModel::Decode(std::span<const int32_t> tokens, std::span<const double> densities,
                             const std::vector<Floats>& keys,
                             const std::vector<Floats>& values) const {
  const auto width = static_cast<size_t>(shape_.d_model);
  FloatRows x{.rows = tokens.size() * densities.size()};
  for (size_t r = 0; r < x.rows; ++r) {
    const auto row = embedding_.begin() + static_cast<ptrdiff_t>(width) * tokens[r % tokens.size()];
    x.values.insert(x.values.end(), row, row + static_cast<ptrdiff_t>(width));
  }
  const auto add = [&](const FloatRows& change) {
    for (size_t i = 0; i < x.values.size(); ++i) x.values[i] += change.values[i];
  };
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    add(Attend(layer, RmsNorm(x, layer.attention_norm, shape_.rms_epsilon), tokens.size(), keys[i],
               values[i]));
    add(Mlp(layer, RmsNorm(x, layer.ffn_norm, shape_.rms_epsilon), densities));
  }
  return Product(output_, RmsNorm(x, output_norm_, shape_.rms_epsilon));
}

absl::StatusOr<std::vector<bool>> JudgeSparse(const FloatModel& model, engine::Model& dense,
                                              const std::vector<int32_t>& prompt,
                                              const std::vector<int32_t>& answer,
                                              const std::vector<double>& densities) {
  const engine::ModelInfo& info = dense.info();
  const engine::ScratchKv kv(info, static_cast<int32_t>(prompt.size()));
  Floats first(static_cast<size_t>(info.vocab_size));
  WITHY_RETURN_IF_ERROR(engine::Prefill(dense, kv, prompt, 0, first.data()));
  if (Best(first) != answer.front()) return std::vector<bool>(densities.size(), false);
  const engine::KvGeometry geometry{
      .layers = info.kv.layers, .kv_heads = info.kv.kv_heads, .head_dim = info.kv.head_dim};
  const auto layers = static_cast<size_t>(info.layers);
  const auto kv_rows =
      static_cast<size_t>(info.kv.kv_heads) * static_cast<size_t>(info.kv.head_dim);
  std::vector<Floats> keys(layers), values(layers);
  const engine::ContextView view = kv.View();
  for (size_t layer = 0; layer < layers; ++layer) {
    keys[layer].resize(prompt.size() * kv_rows);
    values[layer].resize(prompt.size() * kv_rows);
    for (size_t t = 0; t < prompt.size(); ++t) {
      const std::byte* block =
          view.memory.At(view.blocks[t / engine::kChunkTokens * layers + layer]);
      engine::ReadToken(geometry, block, static_cast<int>(t % engine::kChunkTokens),
                        keys[layer].data() + t * kv_rows, values[layer].data() + t * kv_rows);
    }
  }
  std::vector<bool> right(densities.size(), true);
  if (answer.size() < 2) return right;
  const auto asked = std::span(answer).first(answer.size() - 1);
  const FloatRows logits = model.Decode(asked, densities, keys, values);
  for (size_t r = 0; r < logits.rows; ++r) {
    if (Best({logits.row(r), logits.width()}) != answer[r % asked.size() + 1]) {
      right[r / asked.size()] = false;
    }
  }
  return right;
}

absl::StatusOr<Answers> JudgeAllSparse(const std::string& model, const PromptSet& prompts,
                                       const std::vector<uint32_t>& prompt_levels,
                                       const std::vector<uint32_t>& densities,
                                       const std::vector<std::vector<float>>& keep,
                                       const std::string& keep_id, const AnswerOptions& options) {
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<FloatModel> floats, FloatModel::Open(model));
  engine::ModelOptions model_options;
  model_options.threads = 1;
  std::vector<engine::ModelBundle> bundles;
  for (int i = 0; i < options.threads; ++i) {
    WITHY_ASSIGN_OR_RETURN(engine::ModelBundle bundle, engine::OpenBundle(model, model_options));
    bundles.push_back(std::move(bundle));
  }
  std::vector<double> shares;
  for (const uint32_t density : densities) shares.push_back(density / 100.0);
  const tlm::DecisionSpace space{.prompt_levels = {prompt_levels.begin(), prompt_levels.end()},
                                 .model_levels = {densities.begin(), densities.end()},
                                 .flops = {},
                                 .bytes = {}};
  const auto make = [&](size_t index, int thread) -> absl::StatusOr<std::string> {
    const engine::ModelBundle& bundle = bundles[static_cast<size_t>(thread)];
    const corpus::Prompt& prompt = prompts.prompts[index];
    tlm::DecisionRow row;
    for (const int32_t percent : space.prompt_levels) {
      const corpus::Record record =
          corpus::KeepWords(prompt, corpus::ChooseWords(prompt, keep[index], percent));
      WITHY_ASSIGN_OR_RETURN(const Question question, Encode(bundle, record));
      WITHY_ASSIGN_OR_RETURN(
          const std::vector<bool> right,
          JudgeSparse(*floats, *bundle.model, question.prompt, question.answer, shares));
      row.tokens.push_back(static_cast<int32_t>(question.prompt.size()));
      row.right.insert(row.right.end(), right.begin(), right.end());
    }
    return tlm::ToLine(row);
  };
  const std::string made_of = absl::StrCat(
      "sparse answers: model ", bundles.front().model->info().id, " prompts ", prompts.name,
      " per app ", prompts.per_app, " words ", keep_id, " prompt levels ",
      absl::StrJoin(prompt_levels, ","), " densities ", absl::StrJoin(densities, ","));
  WITHY_ASSIGN_OR_RETURN(const std::vector<std::string> lines,
                         KeptLines("sparse", made_of, prompts.prompts.size(), make, options));
  Answers answers{.prompt_levels = prompt_levels, .rows = {}};
  for (size_t i = 0; i < lines.size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(
        tlm::DecisionRow row,
        tlm::ParseDecisionRow(lines[i], space, absl::StrCat("sparse answers, line ", i + 2)));
    answers.rows.push_back({std::move(row.tokens), std::move(row.right)});
  }
  return answers;
}

}  // namespace withy::bench
