#include "engine/encoder/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/round_up.h"
#include "engine/cpu/matmul.h"
#include "engine/cpu/types.h"

namespace withy::engine {
static_assert(AttentionMemory::kRowUnit == kTileRows);

size_t AttentionMemory::HeadKeyFloats(int rows) const {
  return static_cast<size_t>(RoundUp(rows, kTileRows)) *
         static_cast<size_t>(RoundUp(head_dim_, kQuantBlock));
}

size_t AttentionMemory::HeadValueFloats(int rows) const {
  return static_cast<size_t>(RoundUp(rows, kQuantBlock)) *
         static_cast<size_t>(RoundUp(head_dim_, kTileRows));
}

void AttentionMemory::Reset(const int* window_rows, int windows, int heads, int head_dim) {
  heads_ = heads;
  head_dim_ = head_dim;
  windows_.resize(static_cast<size_t>(windows));
  size_t at = 0;
  for (int i = 0; i < windows; ++i) {
    Window& window = windows_[static_cast<size_t>(i)];
    window.rows = window_rows[i];
    window.keys = at;
    at += HeadKeyFloats(window.rows) * static_cast<size_t>(heads);
    window.values = at;
    at += HeadValueFloats(window.rows) * static_cast<size_t>(heads);
  }
  floats_.Resize(at);
}

void AttentionMemory::Pack(int window, int first, int rows, const float* k, const float* v,
                           ptrdiff_t stride) {
  const Window& w = windows_[static_cast<size_t>(window)];
  const int inputs = RoundUp(head_dim_, kQuantBlock);
  const int padded_keys = RoundUp(w.rows, kQuantBlock);
  const bool last = first + rows == w.rows;
  for (int head = 0; head < heads_; ++head, k += head_dim_, v += head_dim_) {
    float* keys = floats_.data() + w.keys + HeadKeyFloats(w.rows) * static_cast<size_t>(head);
    for (int tile = 0; tile < rows; tile += kTileRows) {
      float* to = keys + static_cast<ptrdiff_t>(first + tile) * inputs;
      const int live = std::min(kTileRows, rows - tile);
      if (live < kTileRows || head_dim_ < inputs) {
        std::memset(to, 0, sizeof(float) * static_cast<size_t>(kTileRows * inputs));
      }
      for (int lane = 0; lane < live; ++lane) {
        const float* from = k + (tile + lane) * stride;
        for (int d = 0; d < head_dim_; ++d) to[d * kTileRows + lane] = from[d];
      }
    }
    float* values = floats_.data() + w.values + HeadValueFloats(w.rows) * static_cast<size_t>(head);
    for (int d = 0; d < head_dim_; d += kTileRows, values += padded_keys * kTileRows) {
      const int live = std::min(kTileRows, head_dim_ - d);
      const int end = last ? padded_keys : first + rows;
      if (live < kTileRows) {
        std::memset(values + first * kTileRows, 0,
                    sizeof(float) * static_cast<size_t>((end - first) * kTileRows));
      }
      for (int row = 0; row < rows; ++row) {
        std::memcpy(values + (first + row) * kTileRows, v + row * stride + d,
                    sizeof(float) * static_cast<size_t>(live));
      }
      std::memset(values + (first + rows) * kTileRows, 0,
                  sizeof(float) * static_cast<size_t>((end - first - rows) * kTileRows));
    }
  }
}

PackedMatrix AttentionMemory::Keys(int window, int head) const {
  const Window& w = windows_[static_cast<size_t>(window)];
  const float* data = floats_.data() + w.keys + HeadKeyFloats(w.rows) * static_cast<size_t>(head);
  return {.type = WeightType::kF32,
          .n_out = RoundUp(w.rows, kTileRows),
          .n_in = head_dim_,
          .panel_inputs = RoundUp(head_dim_, kQuantBlock),
          .data = reinterpret_cast<const std::byte*>(data)};
}

PackedMatrix AttentionMemory::Values(int window, int head) const {
  const Window& w = windows_[static_cast<size_t>(window)];
  const float* data =
      floats_.data() + w.values + HeadValueFloats(w.rows) * static_cast<size_t>(head);
  return {.type = WeightType::kF32,
          .n_out = head_dim_,
          .n_in = w.rows,
          .panel_inputs = RoundUp(w.rows, kQuantBlock),
          .data = reinterpret_cast<const std::byte*>(data)};
}

void AttendWindow(const Kernels& kernels, const AttentionMemory& memory, int window, int rows,
                  const float* q, ptrdiff_t q_stride, AttentionScratch* scratch, float* out,
                  ptrdiff_t out_stride) {
  const int keys = memory.rows(window);
  const int head_dim = memory.head_dim();
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  scratch->queries.Reset(rows, head_dim, kActF32);
  scratch->scores.Reset(rows, keys, kActF32);
  const auto stride = static_cast<ptrdiff_t>(scratch->scores.float_stride());
  const int padded = scratch->scores.blocks() * kQuantBlock;
  for (int head = 0; head < memory.heads(); ++head) {
    kernels.prepare(q + head * head_dim, q_stride, 0, rows, 0, head_dim, &scratch->queries);
    // Writes the scores where the second product reads its inputs.
    const MatMulArgs score = {.w = memory.Keys(window, head),
                              .x = &scratch->queries,
                              .rows = rows,
                              .y = scratch->scores.floats(0),
                              .y_stride = stride};
    kernels.matmul(score, 0, score.w.tiles());
    for (int row = 0; row < rows; ++row) {
      float* p = scratch->scores.floats(row);
      kernels.softmax(p, keys, scale, p);
      std::fill(p + keys, p + padded, 0.0f);
    }
    const MatMulArgs value = {.w = memory.Values(window, head),
                              .x = &scratch->scores,
                              .rows = rows,
                              .y = out + head * head_dim,
                              .y_stride = out_stride};
    kernels.matmul(value, 0, value.w.tiles());
  }
}

}  // namespace withy::engine
