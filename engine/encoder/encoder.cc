#include "engine/encoder/encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/encoder/elementwise.h"
#include "engine/gguf/quants.h"

namespace withy::engine {
namespace {

// Rows that pass through a layer together: their activations and the layer's weights fit a core's
// second-level cache.
constexpr int kBlockRows = 32;
static_assert(kBlockRows % AttentionMemory::kRowUnit == 0);

constexpr ptrdiff_t kStridePad = 16;  // avoids that equal columns of many rows share a cache set

ptrdiff_t Stride(int32_t n) { return n + kStridePad; }

bool AllFinite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace

// Scratch of one thread for one block. Belongs to the thread, so no piece of work waits for it.
struct Encoder::Scratch {
  Activations wide;    // rows of the residual stream's width, or of the embedded trigram's
  Activations narrow;  // rows of the bottleneck's width
  Activations inner;   // rows of the feed-forward's width
  AttentionScratch attention;
  AlignedArray<float> a;
  AlignedArray<float> b;
  AlignedArray<float> rows;  // embedded or feed-forward rows
};

Encoder::Scratch& Encoder::ThreadScratchOf() {
  thread_local Scratch scratch;
  return scratch;
}

Encoder::Encoder(const TlmWeights& weights, ThreadPool* pool, const Kernels& kernels)
    : weights_(weights), pool_(pool), kernels_(kernels) {}

Encoder::~Encoder() = default;

absl::Status Encoder::CheckWindows(std::span<const std::vector<int32_t>> windows) const {
  const TlmShape& shape = weights_.shape;
  for (size_t i = 0; i < windows.size(); ++i) {
    if (windows[i].empty() || windows[i].size() > static_cast<size_t>(shape.window)) {
      return absl::InvalidArgumentError(absl::StrCat("window ", i, " has ", windows[i].size(),
                                                     " tokens, limits 1 to ", shape.window));
    }
    for (const int32_t id : windows[i]) {
      if (id >= 0 && id < shape.encoder.vocab) continue;
      return absl::InvalidArgumentError(absl::StrCat("window ", i, " has token ", id,
                                                     ", but the TLM's vocabulary has ",
                                                     shape.encoder.vocab, " tokens"));
    }
  }
  return absl::OkStatus();
}

absl::Status Encoder::Run(std::span<const std::vector<int32_t>> windows, EncoderOutput* out) {
  if (absl::Status status = CheckWindows(windows); !status.ok()) return status;
  Reserve(windows);
  const TlmShape& shape = weights_.shape;
  size_t rows = 0;
  for (const std::vector<int32_t>& window : windows) rows += window.size();
  out->keep.resize(rows);
  out->prompt.resize(windows.size() * shape.prompt_levels.size());
  out->model.resize(windows.size() * shape.model_levels.size());
  const std::vector<Stage> stages = PlanStages();
  for (size_t i = 0; i < stages.size(); ++i) {
    RunStage(stages[i], static_cast<int>(i), windows, out);
    if (tap_) Tap(stages[i]);
  }
  Decide(static_cast<int>(windows.size()), out);
  if (AllFinite(out->keep) && AllFinite(out->prompt) && AllFinite(out->model)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      "the TLM's outputs are not finite numbers: its weights are damaged; replace the file");
}

void Encoder::Reserve(std::span<const std::vector<int32_t>> windows) {
  const EncoderShape& e = weights_.shape.encoder;
  window_rows_.clear();
  window_begin_.clear();
  blocks_.clear();
  cls_blocks_.clear();
  int begin = 0;
  for (size_t w = 0; w < windows.size(); ++w) {
    const int rows = static_cast<int>(windows[w].size());
    window_rows_.push_back(rows);
    window_begin_.push_back(begin);
    cls_blocks_.push_back({static_cast<int>(w), 0, begin, 1});
    for (int first = 0; first < rows; first += kBlockRows) {
      blocks_.push_back(
          {static_cast<int>(w), first, begin + first, std::min(kBlockRows, rows - first)});
    }
    begin += rows;
  }
  const auto n = static_cast<size_t>(begin);
  x_.Resize(n * static_cast<size_t>(Stride(e.hidden)));
  y_.Resize(n * static_cast<size_t>(Stride(e.hidden)));
  q_.Resize(n * static_cast<size_t>(Stride(e.bottleneck)));
  layer_input_.Resize(n * static_cast<size_t>(Stride(e.bottleneck)));
  for (AttentionMemory& memory : memory_) {
    memory.Reset(window_rows_.data(), static_cast<int>(windows.size()), e.heads, e.head_dim());
  }
}

// Shared layers on x, the score tower from x to y, then the decision tower on x.
std::vector<Encoder::Stage> Encoder::PlanStages() {
  std::vector<Stage> stages(1);
  stages[0].out = x_.data();
  const auto add = [&](EncoderTower tower, const std::vector<EncoderLayer>& layers, float* out) {
    const float* in = x_.data();
    for (size_t i = 0; i < layers.size(); ++i) {
      stages.back().project = &layers[i];
      stages.back().project_in = in;
      Stage stage;
      stage.finish = &layers[i];
      stage.in = in;
      stage.out = out;
      stage.tower = tower;
      stage.layer = static_cast<int32_t>(i);
      stages.push_back(stage);
      in = out;
    }
  };
  add(EncoderTower::kShared, weights_.shared, x_.data());
  add(EncoderTower::kScore, weights_.score, y_.data());
  stages.back().keep_from = weights_.score.empty() ? x_.data() : y_.data();
  add(EncoderTower::kDecision, weights_.decision, x_.data());
  stages.back().only_cls = !weights_.decision.empty() && !tap_;
  return stages;
}

void Encoder::RunStage(const Stage& stage, int index, std::span<const std::vector<int32_t>> windows,
                       EncoderOutput* out) {
  const AttentionMemory& finishing = memory_[(index + 1) % 2];
  AttentionMemory* beginning = &memory_[index % 2];
  const std::vector<Block>& blocks = stage.only_cls ? cls_blocks_ : blocks_;
  pool_->ParallelFor(static_cast<int>(blocks.size()), 1, [&](int first, int last) {
    Scratch& s = ThreadScratchOf();
    for (int i = first; i < last; ++i) {
      const Block& block = blocks[static_cast<size_t>(i)];
      if (stage.finish == nullptr) {
        Embed(block, windows[static_cast<size_t>(block.window)], &s);
      } else {
        Finish(stage, block, finishing, &s);
      }
      if (stage.keep_from != nullptr) Keep(stage.keep_from, block, &s, out);
      if (stage.project != nullptr) Project(*stage.project, block, stage.project_in, beginning, &s);
    }
  });
}

void Encoder::Tap(const Stage& stage) const {
  const auto hidden = static_cast<size_t>(weights_.shape.encoder.hidden);
  const auto stride = static_cast<size_t>(Stride(weights_.shape.encoder.hidden));
  size_t rows = 0;
  for (const int n : window_rows_) rows += static_cast<size_t>(n);
  std::vector<float> compact(rows * hidden);
  for (size_t row = 0; row < rows; ++row) {
    std::memcpy(&compact[row * hidden], stage.out + row * stride, hidden * sizeof(float));
  }
  tap_(stage.tower, stage.layer, compact);
}

void Encoder::Prepare(const float* x, ptrdiff_t stride, int rows, int n_in, unsigned forms,
                      Activations* out) const {
  out->Reset(rows, n_in, forms);
  kernels_.prepare(x, stride, 0, rows, 0, n_in, out);
}

void Encoder::Apply(const LinearWeights& linear, const Activations& x, int rows, float* y,
                    ptrdiff_t stride) const {
  const MatMulArgs args = {.w = linear.w, .x = &x, .rows = rows, .y = y, .y_stride = stride};
  kernels_.matmul(args, 0, linear.w.tiles());
}

// Converts token rows (with both neighbours for trigrams) to the residual's width and adds position
// and type.
void Encoder::Embed(const Block& block, std::span<const int32_t> ids, Scratch* s) {
  const EncoderShape& e = weights_.shape.encoder;
  const auto width = static_cast<size_t>(e.embedding);
  const ptrdiff_t x_stride = Stride(e.hidden);
  float* x = x_.data() + block.begin * x_stride;
  const ptrdiff_t stride = e.has_transform() ? Stride(e.embedded()) : x_stride;
  s->rows.Resize(static_cast<size_t>(kBlockRows * stride));
  float* embedded = e.has_transform() ? s->rows.data() : x;
  const auto fetch = [&](int at, float* to) {
    if (at < 0 || at >= static_cast<int>(ids.size())) {
      std::fill_n(to, width, 0.0f);
      return;
    }
    const size_t row = static_cast<size_t>(ids[static_cast<size_t>(at)]);
    // Sizes and type were checked when the weights were loaded.
    (void)Dequantize(weights_.token_type,
                     std::span(weights_.token_rows)
                         .subspan(row * weights_.token_row_bytes, weights_.token_row_bytes),
                     {to, width});
  };
  for (int i = 0; i < block.rows; ++i) {
    float* to = embedded + i * stride;
    const int at = block.first + i;
    if (!e.trigram) {
      fetch(at, to);
      continue;
    }
    fetch(at + 1, to);  // in the source's order: next, own, previous
    if (i == 0) {
      fetch(at, to + width);
      fetch(at - 1, to + 2 * width);
    } else {
      std::memcpy(to + width, to - stride, width * sizeof(float));
      std::memcpy(to + 2 * width, to - stride + width, width * sizeof(float));
    }
  }
  if (e.has_transform()) {
    Prepare(embedded, stride, block.rows, e.embedded(), FormFor(weights_.transform.w.type),
            &s->wide);
    Apply(weights_.transform, s->wide, block.rows, x, x_stride);
  }
  for (int i = 0; i < block.rows; ++i, x += x_stride) {
    if (e.has_transform()) AddBias(weights_.transform.bias, e.hidden, x);
    AddBias(weights_.positions + static_cast<ptrdiff_t>(block.first + i) * e.hidden, e.hidden, x);
    AddAndNorm(weights_.token_types, nullptr, weights_.embedding_norm, e.hidden, x);
  }
}

// The part of a layer up to its queries, keys and values.
void Encoder::Project(const EncoderLayer& layer, const Block& block, const float* in,
                      AttentionMemory* memory, Scratch* s) {
  const EncoderShape& e = weights_.shape.encoder;
  const ptrdiff_t wide = Stride(e.hidden);
  const ptrdiff_t narrow = Stride(e.bottleneck);
  const int rows = block.rows;
  const size_t room = static_cast<size_t>(kBlockRows * narrow);
  s->a.Resize(room);
  s->b.Resize(room);
  const auto form = [](const LinearWeights& linear) {
    return linear.w.n_out > 0 ? FormFor(linear.w.type) : 0u;
  };
  const unsigned qk_forms = form(layer.q) | form(layer.k);
  Prepare(in + block.begin * wide, wide, rows, e.hidden,
          qk_forms | form(layer.v) | form(layer.bottleneck_in) | form(layer.bottleneck_qk),
          &s->wide);
  const Activations* query_input = &s->wide;
  const Activations* value_input = &s->wide;
  if (e.use_bottleneck) {
    const auto squeeze = [&](const LinearWeights& linear, const NormWeights& norm, float* to) {
      Apply(linear, s->wide, rows, to, narrow);
      for (int i = 0; i < rows; ++i) {
        AddAndNorm(linear.bias, nullptr, norm, e.bottleneck, to + i * narrow);
      }
    };
    float* layer_input = layer_input_.data() + block.begin * narrow;
    squeeze(layer.bottleneck_in, layer.bottleneck_in_norm, layer_input);
    if (e.bottleneck_attention) {
      Prepare(layer_input, narrow, rows, e.bottleneck, qk_forms | form(layer.v), &s->narrow);
      query_input = value_input = &s->narrow;
    } else if (e.shared_qk) {
      squeeze(layer.bottleneck_qk, layer.bottleneck_qk_norm, s->a.data());
      Prepare(s->a.data(), narrow, rows, e.bottleneck, qk_forms, &s->narrow);
      query_input = &s->narrow;
    }
  }
  float* q = q_.data() + block.begin * narrow;
  Apply(layer.q, *query_input, rows, q, narrow);
  Apply(layer.k, *query_input, rows, s->a.data(), narrow);
  Apply(layer.v, *value_input, rows, s->b.data(), narrow);
  for (int i = 0; i < rows; ++i) {
    AddBias(layer.q.bias, e.bottleneck, q + i * narrow);
    AddBias(layer.k.bias, e.bottleneck, s->a.data() + i * narrow);
    AddBias(layer.v.bias, e.bottleneck, s->b.data() + i * narrow);
  }
  memory->Pack(block.window, block.first, rows, s->a.data(), s->b.data(), narrow);
}

// s->a = norm(down(relu(up(s->a))) + s->a)
void Encoder::FeedForward(const FeedForwardWeights& ffn, int rows, Scratch* s) {
  const EncoderShape& e = weights_.shape.encoder;
  const ptrdiff_t narrow = Stride(e.bottleneck);
  const ptrdiff_t inner = Stride(e.ffn);
  s->rows.Resize(static_cast<size_t>(kBlockRows * inner));
  Prepare(s->a.data(), narrow, rows, e.bottleneck, FormFor(ffn.up.w.type), &s->narrow);
  Apply(ffn.up, s->narrow, rows, s->rows.data(), inner);
  for (int i = 0; i < rows; ++i) AddBiasRelu(ffn.up.bias, e.ffn, s->rows.data() + i * inner);
  Prepare(s->rows.data(), inner, rows, e.ffn, FormFor(ffn.down.w.type), &s->inner);
  Apply(ffn.down, s->inner, rows, s->b.data(), narrow);
  for (int i = 0; i < rows; ++i) {
    AddAndNorm(ffn.down.bias, s->a.data() + i * narrow, ffn.norm, e.bottleneck,
               s->b.data() + i * narrow);
  }
  std::swap(s->a, s->b);
}

// Attention, its output, the feed-forward stack and the projection back to the residual's width.
void Encoder::Finish(const Stage& stage, const Block& block, const AttentionMemory& memory,
                     Scratch* s) {
  const EncoderShape& e = weights_.shape.encoder;
  const EncoderLayer& layer = *stage.finish;
  const ptrdiff_t wide = Stride(e.hidden);
  const ptrdiff_t narrow = Stride(e.bottleneck);
  const int rows = block.rows;
  s->a.Resize(static_cast<size_t>(kBlockRows * narrow));
  s->b.Resize(static_cast<size_t>(kBlockRows * narrow));
  AttendWindow(kernels_, memory, block.window, rows, q_.data() + block.begin * narrow, narrow,
               &s->attention, s->b.data(), narrow);
  Prepare(s->b.data(), narrow, rows, e.bottleneck, FormFor(layer.output.w.type), &s->narrow);
  Apply(layer.output, s->narrow, rows, s->a.data(), narrow);
  const float* in = stage.in + block.begin * wide;
  const float* residual = e.use_bottleneck ? layer_input_.data() + block.begin * narrow : in;
  const ptrdiff_t residual_stride = e.use_bottleneck ? narrow : wide;
  for (int i = 0; i < rows; ++i) {
    AddAndNorm(layer.output.bias, residual + i * residual_stride, layer.output_norm, e.bottleneck,
               s->a.data() + i * narrow);
  }
  for (const FeedForwardWeights& ffn : layer.ffn) FeedForward(ffn, rows, s);
  float* out = stage.out + block.begin * wide;
  if (!e.use_bottleneck) {
    for (int i = 0; i < rows; ++i) {
      std::memcpy(out + i * wide, s->a.data() + i * narrow,
                  sizeof(float) * static_cast<size_t>(e.hidden));
    }
    return;
  }
  Prepare(s->a.data(), narrow, rows, e.bottleneck, FormFor(layer.bottleneck_out.w.type),
          &s->narrow);
  s->rows.Resize(static_cast<size_t>(kBlockRows * wide));
  Apply(layer.bottleneck_out, s->narrow, rows, s->rows.data(), wide);
  for (int i = 0; i < rows; ++i) {
    float* row = s->rows.data() + i * wide;
    AddAndNorm(layer.bottleneck_out.bias, in + i * wide, layer.bottleneck_out_norm, e.hidden, row);
    std::memcpy(out + i * wide, row, sizeof(float) * static_cast<size_t>(e.hidden));
  }
}

void Encoder::Keep(const float* from, const Block& block, Scratch* s, EncoderOutput* out) {
  const EncoderShape& e = weights_.shape.encoder;
  const ptrdiff_t wide = Stride(e.hidden);
  Prepare(from + block.begin * wide, wide, block.rows, e.hidden, FormFor(weights_.keep.w.type),
          &s->wide);
  float* keep = out->keep.data() + block.begin;
  Apply(weights_.keep, s->wide, block.rows, keep, 1);
  for (int i = 0; i < block.rows; ++i) keep[i] += weights_.keep.bias[0];
}

// The decision outputs of every window, from its [CLS] row.
void Encoder::Decide(int windows, EncoderOutput* out) {
  const EncoderShape& e = weights_.shape.encoder;
  Scratch& s = ThreadScratchOf();
  s.a.Resize(static_cast<size_t>(e.hidden) * static_cast<size_t>(windows));
  for (int w = 0; w < windows; ++w) {
    std::memcpy(s.a.data() + w * e.hidden,
                x_.data() + window_begin_[static_cast<size_t>(w)] * Stride(e.hidden),
                sizeof(float) * static_cast<size_t>(e.hidden));
  }
  if (weights_.pooler.w.n_out > 0) {
    Prepare(s.a.data(), e.hidden, windows, e.hidden, FormFor(weights_.pooler.w.type), &s.wide);
    Apply(weights_.pooler, s.wide, windows, s.a.data(), e.hidden);
    for (int w = 0; w < windows; ++w) {
      AddBiasTanh(weights_.pooler.bias, e.hidden, s.a.data() + w * e.hidden);
    }
  }
  Prepare(s.a.data(), e.hidden, windows, e.hidden,
          FormFor(weights_.prompt.w.type) | FormFor(weights_.model.w.type), &s.wide);
  const auto head = [&](const LinearWeights& linear, std::vector<float>* logits) {
    const int n = linear.w.n_out;
    Apply(linear, s.wide, windows, logits->data(), n);
    for (int w = 0; w < windows; ++w) AddBias(linear.bias, n, logits->data() + w * n);
  };
  head(weights_.prompt, &out->prompt);
  head(weights_.model, &out->model);
}

}  // namespace withy::engine
