#include "engine/cpu/lowering/streams.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <span>
#include <vector>

#include "engine/cpu/lowering/lora.h"

namespace withy::engine {
namespace {

constexpr PieceSize kStreamRows{1, 16};
constexpr int32_t kMostStreams = 4;
constexpr int32_t kMixedAtOnce = 256;  // elements of each copy, which stay in the cache
// Least mean square by which a copy is scaled, as the models were trained.
constexpr float kLeastSquare = 1e-5f;

float* Scratch(int32_t n) {
  thread_local std::vector<float> scratch;
  if (scratch.size() < static_cast<size_t>(n)) scratch.resize(static_cast<size_t>(n));
  return scratch.data();
}

// Matrix c, counted from 1, of those that lie one below the other.
PackedMatrix OneOf(const PackedMatrix& all, int32_t count, int32_t c) {
  PackedMatrix one = all;
  one.n_out /= count;
  one.data += static_cast<size_t>(c - 1) * PackedBytes(one);
  return one;
}

}  // namespace

void StreamLowering::LayerInputs(const Op& op, StepList& steps) {
  AddPrepareRows(steps, kernels_, work_.x.data(), work_.x.stride(), op.rows, &work_.input);
  const MatMulArgs product =
      ProductOf(weights_.Matrix(op.weights[0]), work_.input, op.rows, work_.layer_inputs);
  AddMatMuls(steps, kernels_, {&product, 1});
  steps.Add(op.rows, kStreamRows, [this, &op](int begin, int end) {
    for (int i = begin; i < end; ++i) MakeLayerInputs(op, i);
  });
}

void StreamLowering::MakeLayerInputs(const Op& op, int32_t i) {
  const ModelShape& s = facts_.shape;
  const float* row = nullptr;
  if (stream_ != nullptr && stream_->StreamsEmbedding(EmbeddingTable::kLayerInputs)) {
    row = stream_->FetchedRow(i, EmbeddingTable::kLayerInputs);
  } else {
    float* const unpacked = Scratch(s.layer_inputs_width());
    UnpackRow(weights_.Matrix(op.weights[2]), plan_->row(i).row->token, unpacked);
    row = unpacked;
  }
  const float* const norm = weights_.Vector(op.weights[1]);
  const float of_row = std::sqrt(static_cast<float>(s.layer_width));
  float* inputs = work_.layer_inputs.row(i);
  for (int32_t layer = 0; layer < s.layers; ++layer) {
    Scale(inputs, s.layer_width, 1.0f / std::sqrt(static_cast<float>(s.d_model)));
    kernels_.rms_norm(inputs, norm, s.rms_epsilon, s.layer_width, inputs);
    kernels_.add_scaled(row, of_row, s.layer_width, inputs);
    Scale(inputs, s.layer_width, std::numbers::sqrt2_v<float> / 2);
    inputs += s.layer_width;
    row += s.layer_width;
  }
}

float StreamLowering::FactorTo(float size, const float* y) const {
  const int32_t width = facts_.shape.d_model;
  const float square = kernels_.dot(y, y, width) / static_cast<float>(width);
  return size / std::sqrt(std::max(square, kLeastSquare));
}

void StreamLowering::Spread(const Op& op, StepList& steps) {
  AddPrepareRows(steps, kernels_, work_.x.data(), work_.x.stride(), op.rows, &work_.input);
  MatMulArgs product =
      ProductOf(weights_.Matrix(op.weights[0]), work_.input, op.rows, work_.streams);
  product.y += facts_.shape.d_model;  // behind the first
  AddMatMuls(steps, kernels_, {&product, 1});
  steps.Add(op.rows, kStreamRows, [this](int begin, int end) {
    const ModelShape& s = facts_.shape;
    for (int i = begin; i < end; ++i) {
      const float* const x = work_.x.row(i);
      const float size = std::sqrt(kernels_.dot(x, x, s.d_model) / static_cast<float>(s.d_model));
      for (int32_t c = 1; c < s.streams; ++c) {
        Scale(CopyOf(i, c), s.d_model, FactorTo(size, CopyOf(i, c)));
      }
    }
  });
}

void StreamLowering::Route(const Op& op, int32_t i, float* modalities) const {
  const ModelShape& s = facts_.shape;
  float* const normed = Scratch(s.d_model);
  kernels_.rms_norm(work_.x.row(i), weights_.Vector(op.weights[0]), s.rms_epsilon, s.d_model,
                    normed);
  const float* const router = weights_.Vector(op.weights[1]);
  for (int32_t c = 0; c < s.streams; ++c) {
    modalities[c] = std::tanh(kernels_.dot(router + c * s.d_model, normed, s.d_model) /
                              static_cast<float>(s.d_model));
  }
}

void StreamLowering::Predict(const Op& op, StepList& steps) {
  steps.Add(op.rows, kStreamRows, [this, &op](int begin, int end) {
    for (int i = begin; i < end; ++i) PredictRow(op, i);
  });
}

void StreamLowering::PredictRow(const Op& op, int32_t i) {
  const ModelShape& s = facts_.shape;
  const int32_t n = s.streams;
  std::array<float, kMostStreams> modalities;
  Route(op, i, modalities.data());
  // Row to * n + from of the coefficients is what copy `from` gives to copy `to`.
  const float* const rows = weights_.Vector(op.weights[2]);
  std::array<float, kMostStreams * kMostStreams> factors;
  for (int32_t row = 0; row < n * n; ++row) {
    float sum = 0.0f;
    for (int32_t c = 0; c < n; ++c) sum += rows[row * n + c] * modalities[static_cast<size_t>(c)];
    factors[static_cast<size_t>(row)] = sum;
  }
  float* const streams = work_.streams.row(i);
  std::copy_n(work_.x.row(i), s.d_model, streams);
  std::array<float, kMostStreams * kMixedAtOnce> before;
  for (int32_t first = 0; first < s.d_model; first += kMixedAtOnce) {
    const int32_t count = std::min(kMixedAtOnce, s.d_model - first);
    for (int32_t c = 0; c < n; ++c) {
      std::copy_n(streams + c * s.d_model + first, count, before.data() + c * kMixedAtOnce);
    }
    for (int32_t to = 0; to < n; ++to) {
      for (int32_t from = 0; from < n; ++from) {
        kernels_.add_scaled(before.data() + from * kMixedAtOnce,
                            factors[static_cast<size_t>(to * n + from)], count,
                            streams + to * s.d_model + first);
      }
    }
  }
  std::copy_n(streams, s.d_model, work_.x.row(i));
}

void StreamLowering::Laurel(const Op& op, StepList& steps) {
  const MatMulArgs left =
      ProductOf(weights_.Matrix(op.weights[0]), work_.input, op.rows, work_.narrow);
  AddMatMuls(steps, kernels_, {&left, 1});
  AddPrepareRows(steps, kernels_, work_.narrow.data(), work_.narrow.stride(), op.rows,
                 &work_.laurel_input);
  const MatMulArgs right =
      ProductOf(weights_.Matrix(op.weights[1]), work_.laurel_input, op.rows, work_.laurel);
  AddMatMuls(steps, kernels_, {&right, 1});
  steps.Add(op.rows, kStreamRows, [this, &op](int begin, int end) {
    const ModelShape& s = facts_.shape;
    float* const in = Scratch(s.d_model);
    for (int i = begin; i < end; ++i) {
      float* const laurel = work_.laurel.row(i);
      kernels_.rms_norm(laurel, weights_.Vector(op.weights[2]), s.rms_epsilon, s.d_model, laurel);
      kernels_.rms_norm(work_.x.row(i), weights_.Vector(op.weights[3]), s.rms_epsilon, s.d_model,
                        in);
      kernels_.add(in, s.d_model, laurel);
    }
  });
}

void StreamLowering::Correct(const Op& op, StepList& steps) {
  steps.Add(op.rows, kStreamRows, [this, &op](int begin, int end) {
    for (int i = begin; i < end; ++i) CorrectRow(op, i);
  });
}

void StreamLowering::CorrectRow(const Op& op, int32_t i) {
  const ModelShape& s = facts_.shape;
  const int32_t n = s.streams;
  std::array<float, kMostStreams> modalities;
  Route(op, i, modalities.data());
  float* const x = work_.x.row(i);
  float* const streams = work_.streams.row(i);
  kernels_.add_scaled(streams, -1.0f, s.d_model, x);  // by what the prediction missed
  const float* const rows = weights_.Vector(op.weights[2]);
  for (int32_t to = 0; to < n; ++to) {
    float factor = 1.0f;
    for (int32_t c = 0; c < n; ++c) {
      factor += rows[to * n + c] * modalities[static_cast<size_t>(c)];
    }
    kernels_.add_scaled(x, factor, s.d_model, streams + to * s.d_model);
  }
  std::copy_n(streams, s.d_model, x);
  const float* const scale = weights_.Vector(op.weights[3]);
  float* const scaled = Scratch(s.d_model);
  for (int32_t k = 0; k < s.d_model; ++k) scaled[k] = x[k] * scale[k];
  kernels_.prepare(scaled, s.d_model, i, i + 1, 0, s.d_model, &work_.input);
}

void StreamLowering::AddLayerInput(const Op& op, StepList& steps) {
  const MatMulArgs gate =
      ProductOf(weights_.Matrix(op.weights[0]), work_.input, op.rows, work_.narrow);
  AddMatMuls(steps, kernels_, {&gate, 1});
  steps.Add(op.rows, kStreamRows,
            [this, &op, of = GateUpKernel(kernels_, op.activation)](int begin, int end) {
              const int32_t width = facts_.shape.layer_width;
              for (int i = begin; i < end; ++i) {
                float* const gated = work_.narrow.row(i);
                of(gated, work_.layer_inputs.row(i) + op.layer * width, width, gated);
                kernels_.prepare(gated, width, i, i + 1, 0, width, &work_.layer_gated);
              }
            });
  const MatMulArgs out =
      ProductOf(weights_.Matrix(op.weights[1]), work_.layer_gated, op.rows, work_.branch);
  AddMatMuls(steps, kernels_, {&out, 1});
  steps.Add(op.rows, kStreamRows, [this, &op](int begin, int end) {
    const ModelShape& s = facts_.shape;
    for (int i = begin; i < end; ++i) {
      float* const branch = work_.branch.row(i);
      kernels_.rms_norm(branch, weights_.Vector(op.weights[2]), s.rms_epsilon, s.d_model, branch);
      for (int32_t c = 1; c < s.streams; ++c) kernels_.add(branch, s.d_model, CopyOf(i, c));
    }
  });
}

void StreamLowering::Merge(const Op& op, StepList& steps) {
  const ModelShape& s = facts_.shape;
  steps.Add(op.rows, kStreamRows, [this, &op](int begin, int end) {
    for (int32_t c = 1; c < facts_.shape.streams; ++c) {
      const int32_t first = (c - 1) * op.rows;
      kernels_.prepare(CopyOf(begin, c), work_.streams.stride(), first + begin, first + end, 0,
                       facts_.shape.d_model, &work_.merge_input);
    }
  });
  const PackedMatrix& all = weights_.Matrix(op.weights[0]);
  std::array<MatMulArgs, kMostStreams - 1> products;
  for (int32_t c = 1; c < s.streams; ++c) {
    MatMulArgs& product = products[static_cast<size_t>(c - 1)];
    product = ProductOf(OneOf(all, s.streams - 1, c), work_.merge_input, op.rows, work_.streams);
    product.x_row = (c - 1) * op.rows;
    product.y += c * s.d_model;
  }
  AddMatMuls(steps, kernels_, std::span(products).first(static_cast<size_t>(s.streams - 1)));
  steps.Add(op.rows, kStreamRows, [this](int begin, int end) {
    const ModelShape& shape = facts_.shape;
    for (int i = begin; i < end; ++i) {
      float* const x = work_.x.row(i);
      const float size =
          std::sqrt(kernels_.dot(x, x, shape.d_model) / static_cast<float>(shape.d_model));
      for (int32_t c = 1; c < shape.streams; ++c) {
        kernels_.add_scaled(CopyOf(i, c), FactorTo(size, CopyOf(i, c)), shape.d_model, x);
      }
      Scale(x, shape.d_model, 1.0f / static_cast<float>(shape.streams));
    }
  });
}

}  // namespace withy::engine
