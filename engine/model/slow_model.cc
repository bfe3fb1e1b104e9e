#include "engine/model/slow_model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"
#include "engine/weights/shape.h"

namespace withy::engine {
namespace {

using Numbers = std::vector<double>;

class SlowModel {
 public:
  SlowModel(const GgufFile& file, ModelShape shape) : file_(file), shape_(std::move(shape)) {}

  absl::StatusOr<Numbers> Run(std::span<const int32_t> tokens) {
    WITHY_ASSIGN_OR_RETURN(const Numbers embedding, Tensor("token_embd.weight"));
    const auto width = static_cast<size_t>(shape_.d_model);
    for (const int32_t token : tokens) {
      if (token < 0 || token >= shape_.vocab_size) {
        return absl::InvalidArgumentError(
            absl::StrCat("token ", token, " is not in a vocabulary of ", shape_.vocab_size));
      }
      const auto row = embedding.begin() + token * shape_.d_model;
      stream_.emplace_back(row, row + shape_.d_model);
    }
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      WITHY_RETURN_IF_ERROR(Attention(absl::StrCat("blk.", layer, ".")));
      WITHY_RETURN_IF_ERROR(FeedForward(absl::StrCat("blk.", layer, ".")));
    }
    WITHY_ASSIGN_OR_RETURN(const Numbers norm, Tensor("output_norm.weight"));
    Numbers head = embedding;
    if (file_.FindTensor("output.weight") != nullptr) {
      WITHY_ASSIGN_OR_RETURN(head, Tensor("output.weight"));
    }
    Numbers logits;
    for (const Numbers& x : stream_) {
      const Numbers row = Product(head, Norm(x, norm), width);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return logits;
  }

 private:
  absl::StatusOr<Numbers> Tensor(const std::string& name) const {
    WITHY_ASSIGN_OR_RETURN(const TensorInfo* info, file_.GetTensor(name));
    std::vector<float> values(static_cast<size_t>(info->elements()));
    WITHY_RETURN_IF_ERROR(Dequantize(info->type, file_.Data(*info), values));
    return Numbers(values.begin(), values.end());
  }

  Numbers Norm(const Numbers& x, const Numbers& weight) const {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) +
                                       static_cast<double>(shape_.rms_epsilon));
    Numbers out(x.size());
    for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * weight[i];
    return out;
  }

  static Numbers Product(const Numbers& matrix, const Numbers& x, size_t width) {
    Numbers out(matrix.size() / width);
    for (size_t row = 0; row < out.size(); ++row) {
      for (size_t i = 0; i < width; ++i) out[row] += matrix[row * width + i] * x[i];
    }
    return out;
  }

  void Rope(Numbers* heads, size_t position) const {
    const auto dim = static_cast<size_t>(shape_.head_dim);
    const bool adjacent = shape_.rope_pairing == RopePairing::kAdjacent;
    for (size_t head = 0; head < heads->size(); head += dim) {
      for (size_t pair = 0; pair < dim / 2; ++pair) {
        const double angle =
            static_cast<double>(position) * static_cast<double>(shape_.rope_frequencies[pair]);
        double& x = (*heads)[head + (adjacent ? 2 * pair : pair)];
        double& y = (*heads)[head + (adjacent ? 2 * pair + 1 : pair + dim / 2)];
        const auto scale = static_cast<double>(shape_.rope_scales[0]);
        const double before = x;
        x = scale * (before * std::cos(angle) - y * std::sin(angle));
        y = scale * (y * std::cos(angle) + before * std::sin(angle));
      }
    }
  }

  // Q, K or V of all tokens, with bias, before RoPE.
  absl::StatusOr<std::vector<Numbers>> Project(const std::string& name,
                                               const std::vector<Numbers>& inputs) const {
    WITHY_ASSIGN_OR_RETURN(const Numbers matrix, Tensor(name + ".weight"));
    Numbers bias;
    if (file_.FindTensor(name + ".bias") != nullptr) {
      WITHY_ASSIGN_OR_RETURN(bias, Tensor(name + ".bias"));
    }
    std::vector<Numbers> outputs;
    for (const Numbers& x : inputs) {
      outputs.push_back(Product(matrix, x, x.size()));
      for (size_t i = 0; i < bias.size(); ++i) outputs.back()[i] += bias[i];
    }
    return outputs;
  }

  absl::Status Attention(const std::string& layer) {
    WITHY_ASSIGN_OR_RETURN(const Numbers norm, Tensor(layer + "attn_norm.weight"));
    WITHY_ASSIGN_OR_RETURN(const Numbers output, Tensor(layer + "attn_output.weight"));
    std::vector<Numbers> inputs;
    for (const Numbers& x : stream_) inputs.push_back(Norm(x, norm));
    WITHY_ASSIGN_OR_RETURN(std::vector<Numbers> q, Project(layer + "attn_q", inputs));
    WITHY_ASSIGN_OR_RETURN(std::vector<Numbers> k, Project(layer + "attn_k", inputs));
    WITHY_ASSIGN_OR_RETURN(const std::vector<Numbers> v, Project(layer + "attn_v", inputs));
    for (size_t p = 0; p < q.size(); ++p) {
      Rope(&q[p], p);
      Rope(&k[p], p);
    }
    for (size_t p = 0; p < q.size(); ++p) {
      Numbers attended(q[p].size());
      for (size_t head = 0; head < static_cast<size_t>(shape_.heads); ++head) {
        Attend(head, q[p], k, v, p, &attended);
      }
      const Numbers added = Product(output, attended, attended.size());
      for (size_t i = 0; i < added.size(); ++i) stream_[p][i] += added[i];
    }
    return absl::OkStatus();
  }

  void Attend(size_t head, const Numbers& q, const std::vector<Numbers>& k,
              const std::vector<Numbers>& v, size_t position, Numbers* out) const {
    const auto dim = static_cast<size_t>(shape_.head_dim);
    const size_t of_q = head * dim;
    const size_t of_kv = head / static_cast<size_t>(shape_.query_heads_per_group()) * dim;
    Numbers scores;
    for (size_t p = 0; p <= position; ++p) {
      double dot = 0;
      for (size_t d = 0; d < dim; ++d) dot += q[of_q + d] * k[p][of_kv + d];
      scores.push_back(dot / std::sqrt(static_cast<double>(dim)));
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - top);
    for (size_t p = 0; p <= position; ++p) {
      for (size_t d = 0; d < dim; ++d) {
        (*out)[of_q + d] += scores[p] / sum * v[p][of_kv + d];
      }
    }
  }

  absl::Status FeedForward(const std::string& layer) {
    WITHY_ASSIGN_OR_RETURN(const Numbers norm, Tensor(layer + "ffn_norm.weight"));
    WITHY_ASSIGN_OR_RETURN(const Numbers gate, Tensor(layer + "ffn_gate.weight"));
    WITHY_ASSIGN_OR_RETURN(const Numbers up, Tensor(layer + "ffn_up.weight"));
    WITHY_ASSIGN_OR_RETURN(const Numbers down, Tensor(layer + "ffn_down.weight"));
    for (Numbers& x : stream_) {
      const Numbers input = Norm(x, norm);
      Numbers neurons = Product(gate, input, input.size());
      const Numbers factors = Product(up, input, input.size());
      for (size_t i = 0; i < neurons.size(); ++i) {
        neurons[i] = neurons[i] / (1 + std::exp(-neurons[i])) * factors[i];
      }
      const Numbers added = Product(down, neurons, neurons.size());
      for (size_t i = 0; i < added.size(); ++i) x[i] += added[i];
    }
    return absl::OkStatus();
  }

  const GgufFile& file_;
  const ModelShape shape_;
  std::vector<Numbers> stream_;  // by token
};

double LogOfSum(const double* logits, size_t count) {
  const double top = *std::max_element(logits, logits + count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += std::exp(logits[i] - top);
  return top + std::log(sum);
}

}  // namespace

absl::StatusOr<std::vector<double>> SlowLogits(const std::string& path,
                                               std::span<const int32_t> tokens, int32_t window) {
  WITHY_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  WITHY_ASSIGN_OR_RETURN(ModelShape shape, ReadShape(file));
  shape.UseWindow(window);
  const std::string beyond = BeyondLlama(shape);
  if (!beyond.empty()) return absl::UnimplementedError(absl::StrCat(path, ": ", beyond));
  if (shape.qk_norm != QkNorm::kNone)
    return absl::UnimplementedError(absl::StrCat(path, ": head norms"));
  return SlowModel(file, std::move(shape)).Run(tokens);
}

double MeanLogProbError(std::span<const double> want, std::span<const float> got,
                        size_t vocabulary) {
  double error = 0;
  for (size_t row = 0; row + vocabulary <= want.size(); row += vocabulary) {
    const std::vector<double> ours(got.begin() + static_cast<ptrdiff_t>(row),
                                   got.begin() + static_cast<ptrdiff_t>(row + vocabulary));
    const double shift = LogOfSum(&want[row], vocabulary) - LogOfSum(ours.data(), vocabulary);
    for (size_t i = 0; i < vocabulary; ++i) error += std::abs(ours[i] + shift - want[row + i]);
  }
  return error / static_cast<double>(want.size());
}

}  // namespace withy::engine
