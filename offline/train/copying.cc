#include "offline/train/copying.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace withy::train {
namespace {

using torch::Tensor;

constexpr double kAlwaysOn = 8;  // first coordinate of the residual stream, equal for all tokens
constexpr int64_t kPairs = 8;    // fastest RoPE pairs, which distinguish neighbours
constexpr double kPositionGain = 7;  // of those pairs, in query and key
constexpr double kMatchGain = 2;     // of query and key that compare a token with a remembered one
constexpr double kLogit = 10;        // approximate logit of a copied token
constexpr double kNoise = 0.1;       // share of random weights that remains in the heads used

// Coordinates of the residual stream.
struct Parts {
  int64_t word;      // [1, 1 + word): the token itself
  int64_t previous;  // next: projection of the previous token
  int64_t copied;    // next: projection of the token to predict
  int64_t previous_at() const { return 1 + word; }
  int64_t copied_at() const { return 1 + word + previous; }
};

// [rows, width], orthonormal rows.
Tensor Orthonormal(int64_t rows, int64_t width) {
  return std::get<0>(torch::linalg_qr(torch::randn({width, rows}))).t().contiguous();
}

Tensor Block(const Tensor& matrix, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  return matrix.narrow(0, row, rows).narrow(1, column, columns);
}

Tensor Weight(const Model& model, const std::string& name) {
  for (const Parameter& parameter : model.parameters())
    if (parameter.name == name) return parameter.value;
  TORCH_CHECK(false, "no parameter ", name);
}

Tensor LayerWeight(const Model& model, int64_t layer, const char* name) {
  return Weight(model, "blk." + std::to_string(layer) + "." + name + ".weight");
}

// The first head attends to the previous token and writes its `projection` to Parts::previous.
void RememberPrevious(const Model& model, const Parts& parts, const Tensor& projection) {
  const Shape& shape = model.shape();
  const Tensor q = LayerWeight(model, 0, "attn_q").narrow(0, 0, shape.head_dim);
  const Tensor k = LayerWeight(model, 0, "attn_k").narrow(0, 0, shape.head_dim);
  q.mul_(kNoise);
  k.mul_(kNoise);
  const double constant =
      kAlwaysOn / std::sqrt((kAlwaysOn * kAlwaysOn + static_cast<double>(parts.word)) /
                            static_cast<double>(shape.d_model));
  for (int64_t pair = 0; pair < kPairs; ++pair) {
    // A key one position back meets its query at the same angle.
    const double angle = std::pow(
        shape.rope_theta, -2.0 * static_cast<double>(pair) / static_cast<double>(shape.head_dim));
    q[2 * pair][0] = kPositionGain / constant;
    q[2 * pair + 1][0] = 0;
    k[2 * pair][0] = kPositionGain * std::cos(angle) / constant;
    k[2 * pair + 1][0] = kPositionGain * std::sin(angle) / constant;
  }
  const Tensor v = LayerWeight(model, 0, "attn_v");
  v.narrow(0, 0, parts.previous).zero_();
  Block(v, 0, parts.previous, 1, parts.word).copy_(projection);
  const Tensor o = LayerWeight(model, 0, "attn_output").narrow(1, 0, shape.head_dim);
  o.zero_();
  Block(o, parts.previous_at(), parts.previous, 0, parts.previous)
      .copy_(torch::eye(parts.previous));
}

// The first head attends to positions whose previous token is the present token and writes `copy`
// of their token to Parts::copied.
void RepeatWhatFollowed(const Model& model, int64_t layer, const Parts& parts,
                        const Tensor& projection, const Tensor& copy) {
  const Shape& shape = model.shape();
  const Tensor q = LayerWeight(model, layer, "attn_q").narrow(0, 0, shape.head_dim);
  const Tensor k = LayerWeight(model, layer, "attn_k").narrow(0, 0, shape.head_dim);
  q.mul_(kNoise);
  k.mul_(kNoise);
  // The slowest RoPE pairs: their values are compared almost independently of distance.
  const int64_t slow = shape.head_dim - parts.previous;
  Block(q, slow, parts.previous, 1, parts.word).copy_(projection * kMatchGain);
  Block(k, slow, parts.previous, parts.previous_at(), parts.previous)
      .copy_(torch::eye(parts.previous) * kMatchGain);
  const Tensor v = LayerWeight(model, layer, "attn_v");
  v.narrow(0, 0, parts.copied).zero_();
  Block(v, 0, parts.copied, 1, parts.word).copy_(copy);
  const Tensor o = LayerWeight(model, layer, "attn_output").narrow(1, 0, shape.head_dim);
  o.zero_();
  Block(o, parts.copied_at(), parts.copied, 0, parts.copied).copy_(torch::eye(parts.copied));
}

}  // namespace

void StartWithCopying(Model& model, uint64_t seed) {
  torch::NoGradGuard no_grad;
  torch::manual_seed(seed + 1);
  const Shape& shape = model.shape();
  Parts parts;
  parts.previous = shape.head_dim / 2;
  parts.copied = std::min(shape.head_dim, shape.d_model / 4);
  parts.word = shape.d_model - 1 - parts.previous - parts.copied;
  const Tensor projection = Orthonormal(parts.previous, parts.word);
  const Tensor copy = Orthonormal(parts.copied, parts.word);

  const Tensor embedding = Weight(model, "token_embd.weight");
  embedding.narrow(1, 0, 1).fill_(kAlwaysOn);
  embedding.narrow(1, parts.previous_at(), parts.previous + parts.copied).zero_();
  RememberPrevious(model, parts, projection);
  RepeatWhatFollowed(model, 1, parts, projection, copy);
  const Tensor words = embedding.narrow(1, 1, parts.word);
  Weight(model, "output.weight")
      .narrow(1, parts.copied_at(), parts.copied)
      .add_(torch::mm(words, copy.t()), kLogit / static_cast<double>(parts.copied));
}

}  // namespace withy::train
