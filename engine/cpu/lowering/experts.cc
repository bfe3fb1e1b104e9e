#include "engine/cpu/lowering/experts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/cpu/lowering/lora.h"

namespace withy::engine {
namespace {

// So many rows are routed, sorted and gathered by one thread: less work than handing it over.
constexpr int32_t kFewRows = 4;
constexpr PieceSize kRoutedRows{4, 32};
constexpr PieceSize kGatheredRows{8, 64};
constexpr PieceSize kSummedRows{1, 16};
// Tiles of a piece, in whole pairs.
constexpr PieceSize kExpertTiles{2, 16};
// Rows whose next experts are guessed one by one; of more rows nearly all experts are needed.
constexpr int32_t kGuessedRows = 4;

// Row `to_row` of `to` becomes row `from_row` of `from`, which has as many inputs, in the forms of
// `to`, which `from` has, too.
void CopyRow(const Activations& from, int from_row, int to_row, Activations* to) {
  const auto blocks = static_cast<size_t>(to->blocks());
  if ((to->forms() & kActQ8) != 0) {
    std::copy_n(from.quants(from_row), blocks * kQuantBlock, to->quants(to_row));
    std::copy_n(from.scales(from_row), blocks, to->scales(to_row));
    std::copy_n(from.init8(from_row), blocks, to->init8(to_row));
    std::copy_n(from.init4(from_row), blocks, to->init4(to_row));
    std::copy_n(from.sums(from_row), blocks, to->sums(to_row));
  }
  if ((to->forms() & kActF32) != 0) {
    std::copy_n(from.floats(from_row), blocks * kQuantBlock, to->floats(to_row));
  }
}

int TilesPerExpert(int32_t outputs) { return outputs / kTileRows; }

}  // namespace

void ChooseExperts(const float* logits, const ModelShape& shape, std::vector<bool>* used,
                   ExpertChoice* out) {
  const auto count = static_cast<size_t>(shape.experts);
  used->assign(count, false);
  for (int32_t rank = 0; rank < shape.experts_used; ++rank) {
    size_t best = count;
    for (size_t e = 0; e < count; ++e) {
      if (!(*used)[e] && (best == count || logits[e] > logits[best])) best = e;
    }
    (*used)[best] = true;
    out[rank] = {.expert = static_cast<int32_t>(best), .weight = logits[best]};
  }
  const float top = out[0].weight;
  float sum = 0.0f;
  if (shape.normed_expert_weights) {
    for (int32_t rank = 0; rank < shape.experts_used; ++rank) {
      sum += std::exp(out[rank].weight - top);
    }
  } else {
    for (size_t e = 0; e < count; ++e) sum += std::exp(logits[e] - top);
  }
  for (int32_t rank = 0; rank < shape.experts_used; ++rank) {
    out[rank].weight = std::exp(out[rank].weight - top) / sum * shape.expert_weight_scale;
  }
}

ExpertLowering::ExpertLowering(const ModelFacts& facts, const BoundWeights& weights,
                               const Kernels& kernels, Workspace& work, ExpertStream* stream)
    : facts_(facts), weights_(weights), kernels_(kernels), work_(work), stream_(stream) {
  if (stream_ == nullptr) return;
  const ModelShape& s = facts_.shape;
  guess_norm_.resize(static_cast<size_t>(s.d_model));
  guess_logits_.resize(static_cast<size_t>(s.experts));
  guess_input_.Reset(1, s.d_model, weights_.forms().input);
}

void ExpertLowering::Start(const RowPlan& plan) {
  if (facts_.shape.experts == 0) return;
  const auto places = static_cast<size_t>(plan.count()) * static_cast<size_t>(used());
  choices_.resize(places);
  places_.resize(places);
  sources_.resize(places);
  groups_.reserve(static_cast<size_t>(MostGroups(plan.count())));
  groups_.clear();
  chosen_.clear();
  layer_ = -1;
  failed_ = false;
  absl::MutexLock lock(&mutex_);
  status_ = absl::OkStatus();
}

void ExpertLowering::Resume() {
  if (stream_ != nullptr && layer_ >= 0 && !failed_) stream_->Resume(this, layer_, chosen_);
}

absl::Status ExpertLowering::status() const {
  if (!failed_) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  return status_;
}

int32_t ExpertLowering::MostGroups(int32_t rows) const {
  return std::min(facts_.shape.experts, rows * used());
}

void ExpertLowering::Route(const Op& op, StepList& steps) {
  const MatMulArgs product =
      ProductOf(weights_.Matrix(op.weights[0]), work_.input, op.rows, work_.router);
  AddMatMuls(steps, kernels_, {&product, 1}, {}, VectorOf(weights_, op, WeightRole::kRouterBias));
  if (op.rows > kFewRows) {
    steps.Add(op.rows, kRoutedRows, [this](int begin, int end) {
      for (int row = begin; row < end; ++row) ChooseRow(row);
    });
    steps.Add(1, 1, [this, &op](int, int) { MakeGroups(op); });
    return;
  }
  steps.Add(1, 1, [this, &op](int, int) {
    for (int32_t row = 0; row < op.rows; ++row) ChooseRow(row);
    MakeGroups(op);
    for (int32_t place = 0; place < op.rows * used(); ++place) Gather(place);
  });
}

void ExpertLowering::ChooseRow(int32_t row) {
  thread_local std::vector<bool> used_experts;
  ChooseExperts(work_.router.row(row), facts_.shape, &used_experts, ChoicesOf(row));
}

void ExpertLowering::MakeGroups(const Op& op) {
  const int32_t count = op.rows * used();
  rows_of_.assign(static_cast<size_t>(facts_.shape.experts), 0);
  for (int32_t i = 0; i < count; ++i) {
    ++rows_of_[static_cast<size_t>(choices_[static_cast<size_t>(i)].expert)];
  }
  chosen_.clear();
  for (int32_t expert = 0; expert < facts_.shape.experts; ++expert) {
    if (rows_of_[static_cast<size_t>(expert)] > 0) chosen_.push_back(expert);
  }
  layer_ = op.layer;
  const bool streams = stream_ != nullptr && !failed_;
  if (streams) stream_->Choose(this, layer_, chosen_);
  groups_.clear();
  int32_t first = 0;
  for (const int32_t expert : chosen_) {
    int32_t& rows = rows_of_[static_cast<size_t>(expert)];
    groups_.push_back({.expert = expert, .first = first, .rows = rows});
    // From now on the place of the expert's next row.
    first += std::exchange(rows, first);
  }
  for (int32_t i = 0; i < count; ++i) {
    const int32_t expert = choices_[static_cast<size_t>(i)].expert;
    const int32_t place = rows_of_[static_cast<size_t>(expert)]++;
    places_[static_cast<size_t>(i)] = place;
    sources_[static_cast<size_t>(place)] = i / used();
  }
  if (streams) GuessNext(op);
}

// The stream changes little from layer to layer, so that the next layer's router says of the
// present row much of what it will say of the next one.
void ExpertLowering::GuessNext(const Op& op) {
  const int32_t next = op.layer + 1;
  const ModelShape& s = facts_.shape;
  if (next == s.layers || !s.pre_norms || !stream_->guesses()) return;
  guesses_.clear();
  if (op.rows > kGuessedRows) {
    for (int32_t expert = 0; expert < s.experts; ++expert) guesses_.push_back(expert);
  } else {
    const PackedMatrix& router = weights_.Matrix({WeightRole::kRouter, next});
    const float* const norm = weights_.Vector({WeightRole::kFfnNorm, next});
    const float* const bias = weights_.Vector({WeightRole::kRouterBias, next});
    std::vector<ExpertChoice> choice(static_cast<size_t>(used()));
    for (int32_t row = 0; row < op.rows; ++row) {
      kernels_.rms_norm(work_.x.row(row), norm, s.rms_epsilon, s.d_model, guess_norm_.data());
      kernels_.prepare(guess_norm_.data(), s.d_model, 0, 1, 0, s.d_model, &guess_input_);
      MatMulArgs product;
      product.w = router;
      product.x = &guess_input_;
      product.rows = 1;
      product.y = guess_logits_.data();
      product.y_stride = s.experts;
      kernels_.matmul(product, 0, router.tiles());
      if (bias != nullptr) kernels_.add(bias, s.experts, guess_logits_.data());
      ChooseExperts(guess_logits_.data(), s, &scratch_, choice.data());
      for (const ExpertChoice& one : choice) guesses_.push_back(one.expert);
    }
  }
  stream_->Guess(next, guesses_);
}

void ExpertLowering::Gather(int32_t place) {
  CopyRow(work_.input, sources_[static_cast<size_t>(place)], place, &work_.expert_input);
}

template <typename Fn>
void ExpertLowering::ForGroups(int begin, int end, int tiles, Fn fn) const {
  for (int at = begin; at < end;) {
    const int number = at / tiles;
    if (static_cast<size_t>(number) >= groups_.size()) return;
    const int first = at % tiles;
    const int last = std::min(tiles, first + end - at);
    fn(groups_[static_cast<size_t>(number)], first, last);
    at += last - first;
  }
}

PackedMatrix ExpertLowering::ExpertMatrix(const WeightName& name, int32_t expert) {
  PackedMatrix matrix = weights_.Matrix(name);
  matrix.n_out /= facts_.shape.experts;
  const size_t bytes = PackedBytes(matrix);
  if (stream_ == nullptr) {
    matrix.data += static_cast<size_t>(expert) * bytes;
    return matrix;
  }
  matrix.data = nullptr;
  if (failed_) return matrix;
  const ExpertPart part = name.role == WeightRole::kGateExperts ? ExpertPart::kGate
                          : name.role == WeightRole::kUpExperts ? ExpertPart::kUp
                                                                : ExpertPart::kDown;
  const absl::StatusOr<const std::byte*> data = stream_->Await(name.layer, expert, part);
  if (data.ok()) {
    matrix.data = *data;
    return matrix;
  }
  absl::MutexLock lock(&mutex_);
  status_.Update(data.status());
  failed_ = true;
  return matrix;
}

void ExpertLowering::GateUp(const Op& op, StepList& steps) {
  if (op.rows > kFewRows) {
    steps.Add(op.rows * used(), kGatheredRows, [this](int begin, int end) {
      for (int place = begin; place < end; ++place) Gather(place);
    });
  }
  const int tiles = TilesPerExpert(facts_.shape.expert_neurons);
  steps.Add(MostGroups(op.rows) * tiles, kExpertTiles, [this, &op, tiles](int begin, int end) {
    ForGroups(begin, end, tiles,
              [&](const Group& group, int first, int last) { GateUpOf(op, group, first, last); });
  });
}

void ExpertLowering::GateUpOf(const Op& op, const Group& group, int begin, int end) {
  MatMulArgs gate = ProductOf(ExpertMatrix(op.weights[0], group.expert), work_.expert_input,
                              group.rows, work_.gate);
  gate.x_row = group.first;
  gate.y = work_.gate.row(group.first);
  MatMulArgs up = gate;
  up.w = ExpertMatrix(op.weights[1], group.expert);
  up.y = work_.up.row(group.first);
  up.y_stride = work_.up.stride();
  if (gate.w.data == nullptr || up.w.data == nullptr) return;
  const ptrdiff_t first = ptrdiff_t{group.expert} * facts_.shape.expert_neurons;
  const auto bias = [&](WeightRole role) {
    const float* const all = VectorOf(weights_, op, role);
    return all == nullptr ? nullptr : all + first;
  };
  GateUpTiles(kernels_, gate, up, begin, end, &work_.neurons, {},
              {.of = GateUpKernel(kernels_, op.activation),
               .gate_bias = bias(WeightRole::kGateExpertsBias),
               .up_bias = bias(WeightRole::kUpExpertsBias)});
}

void ExpertLowering::Down(const Op& op, StepList& steps) {
  const int tiles = TilesPerExpert(facts_.shape.d_model);
  steps.Add(MostGroups(op.rows) * tiles, kExpertTiles, [this, &op, tiles](int begin, int end) {
    ForGroups(begin, end, tiles,
              [&](const Group& group, int first, int last) { DownOf(op, group, first, last); });
  });
  steps.Add(op.rows, kSummedRows, [this, &op](int begin, int end) {
    for (int row = begin; row < end; ++row) AddUp(op, row);
  });
}

void ExpertLowering::DownOf(const Op& op, const Group& group, int begin, int end) {
  MatMulArgs down = ProductOf(ExpertMatrix(op.weights[0], group.expert), work_.neurons, group.rows,
                              work_.expert_output);
  down.x_row = group.first;
  down.y = work_.expert_output.row(group.first);
  if (down.w.data == nullptr) return;
  kernels_.matmul(down, begin, end);
  const float* const bias = VectorOf(weights_, op, WeightRole::kDownExpertsBias);
  if (bias == nullptr) return;
  const int32_t width = facts_.shape.d_model;
  const int32_t col = begin * kTileRows;
  const int32_t count = std::min(end * kTileRows, width) - col;
  const float* const of_expert = bias + ptrdiff_t{group.expert} * width;
  for (int32_t row = 0; row < group.rows; ++row) {
    kernels_.add(of_expert + col, count, work_.expert_output.row(group.first + row) + col);
  }
}

void ExpertLowering::AddUp(const Op& op, int32_t row) {
  const int32_t width = facts_.shape.d_model;
  float* const x = op.to_branch ? work_.branch.row(row) : work_.x.row(row);
  if (op.to_branch) std::fill_n(x, width, 0.0f);
  const ExpertChoice* const choices = ChoicesOf(row);
  for (int32_t rank = 0; rank < used(); ++rank) {
    const auto place = static_cast<size_t>(row * used() + rank);
    const float* const y = work_.expert_output.row(places_[place]);
    const float weight = choices[rank].weight;
    for (int32_t i = 0; i < width; ++i) x[i] += weight * y[i];
  }
}

}  // namespace withy::engine
