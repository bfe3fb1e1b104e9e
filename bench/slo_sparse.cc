#include "bench/slo_sparse.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "bench/held_out.h"
#include "elasticizer/tlm/decision_table.h"
#include "engine/gguf/quants.h"
#include "engine/kv/block.h"
#include "engine/model/scratch_kv.h"

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

// [rows, x.size()] times x.
Floats Product(const Floats& matrix, const Floats& x) {
  Floats out(matrix.size() / x.size());
  for (size_t row = 0; row < out.size(); ++row) {
    out[row] = Dot(matrix.data() + row * x.size(), x.data(), x.size());
  }
  return out;
}

Floats RmsNorm(const Floats& x, const Floats& weight, float epsilon) {
  const float mean = Dot(x.data(), x.data(), x.size()) / static_cast<float>(x.size());
  const float scale = 1 / std::sqrt(mean + epsilon);
  Floats out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * weight[i];
  return out;
}

// Turns every head of `x` to its position.
void Rope(const engine::ModelShape& shape, int32_t position, Floats* x) {
  const auto dim = static_cast<size_t>(shape.head_dim);
  const bool adjacent = shape.rope_pairing == engine::RopePairing::kAdjacent;
  for (size_t head = 0; head < x->size(); head += dim) {
    for (size_t pair = 0; pair < dim / 2; ++pair) {
      float& a = (*x)[head + (adjacent ? 2 * pair : pair)];
      float& b = (*x)[head + (adjacent ? 2 * pair + 1 : pair + dim / 2)];
      const double angle = double{shape.rope_frequencies[pair]} * position;
      const auto cosine = static_cast<float>(std::cos(angle));
      const auto sine = static_cast<float>(std::sin(angle));
      const float turned = a * cosine - b * sine;
      b = a * sine + b * cosine;
      a = turned;
    }
  }
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
  if (shape.qk_norm || shape.needs_qkv_bias) {
    return absl::UnimplementedError(
        absl::StrCat(path,
                     ": contextual sparsity is only judged on models without biases and "
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

void FloatModel::Attend(const Layer& layer, const Floats& x, int32_t position, Floats* keys,
                        Floats* values, Floats* out) const {
  Floats q = Product(layer.q, x);
  Floats k = Product(layer.k, x);
  Rope(shape_, position, &q);
  Rope(shape_, position, &k);
  const Floats v = Product(layer.v, x);
  keys->insert(keys->end(), k.begin(), k.end());
  values->insert(values->end(), v.begin(), v.end());
  const auto dim = static_cast<size_t>(shape_.head_dim);
  const auto kv_rows = static_cast<size_t>(shape_.kv_rows());
  const size_t tokens = keys->size() / kv_rows;
  Floats mixed(q.size(), 0);
  Floats weights(tokens);
  for (size_t head = 0; head < static_cast<size_t>(shape_.heads); ++head) {
    const size_t group = head / static_cast<size_t>(shape_.query_heads_per_group());
    float best = -INFINITY;
    for (size_t t = 0; t < tokens; ++t) {
      weights[t] = Dot(q.data() + head * dim, keys->data() + t * kv_rows + group * dim, dim) /
                   std::sqrt(static_cast<float>(dim));
      best = std::max(best, weights[t]);
    }
    float sum = 0;
    for (float& weight : weights) sum += weight = std::exp(weight - best);
    for (size_t t = 0; t < tokens; ++t) {
      const float* value = values->data() + t * kv_rows + group * dim;
      for (size_t i = 0; i < dim; ++i) mixed[head * dim + i] += weights[t] / sum * value[i];
    }
  }
  *out = Product(layer.o, mixed);
}

void FloatModel::Mlp(const Layer& layer, const Floats& x, double density, Floats* out) const {
  const Floats gate = Product(layer.gate, x);
  Floats activation = Product(layer.up, x);
  for (size_t i = 0; i < gate.size(); ++i) activation[i] *= gate[i] / (1 + std::exp(-gate[i]));
  const auto kept = std::clamp<size_t>(
      static_cast<size_t>(std::lround(density * static_cast<double>(gate.size()))), 1, gate.size());
  if (kept < gate.size()) {
    Floats sizes(activation.size());
    std::transform(activation.begin(), activation.end(), sizes.begin(),
                   [](float a) { return std::abs(a); });
    std::nth_element(sizes.begin(), sizes.begin() + static_cast<ptrdiff_t>(kept) - 1, sizes.end(),
                     std::greater<>());
    const float least = sizes[kept - 1];
    for (float& a : activation) a = std::abs(a) < least ? 0 : a;
  }
  *out = Product(layer.down, activation);
}

Floats FloatModel::Decode(int32_t token, int32_t position, double density,
                          std::vector<Floats>* keys, std::vector<Floats>* values) const {
  const auto width = static_cast<size_t>(shape_.d_model);
  const auto row = embedding_.begin() + static_cast<ptrdiff_t>(width) * token;
  Floats x(row, row + static_cast<ptrdiff_t>(width));
  Floats change;
  const auto add = [&] {
    for (size_t i = 0; i < width; ++i) x[i] += change[i];
  };
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    Attend(layer, RmsNorm(x, layer.attention_norm, shape_.rms_epsilon), position, &(*keys)[i],
           &(*values)[i], &change);
    add();
    Mlp(layer, RmsNorm(x, layer.ffn_norm, shape_.rms_epsilon), density, &change);
    add();
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
      const std::byte* block = view.blocks[t / engine::kChunkTokens * layers + layer];
      engine::ReadToken(geometry, block, static_cast<int>(t % engine::kChunkTokens),
                        keys[layer].data() + t * kv_rows, values[layer].data() + t * kv_rows);
    }
  }
  std::vector<bool> right;
  for (const double density : densities) {
    std::vector<Floats> own_keys = keys, own_values = values;
    bool all = true;
    for (size_t i = 0; all && i + 1 < answer.size(); ++i) {
      const auto position = static_cast<int32_t>(prompt.size() + i);
      all =
          Best(model.Decode(answer[i], position, density, &own_keys, &own_values)) == answer[i + 1];
    }
    right.push_back(all);
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
