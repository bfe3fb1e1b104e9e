#include "offline/train/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/round_up.h"

namespace withy::train::kernels {
namespace {

// A tile of a product that fits the registers: kTileRows × kTileCols.
#ifdef __AVX512F__
constexpr int64_t kLanes = 16;
constexpr int64_t kTileRows = 8;
#else
constexpr int64_t kLanes = 8;
constexpr int64_t kTileRows = 4;
#endif
constexpr int64_t kTileCols = 2 * kLanes;
constexpr int64_t kBlockRows = 64;  // query rows

using Lanes [[gnu::vector_size(kLanes * sizeof(float))]] = float;

Lanes Load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

// A matrix in memory; element (r, c) at data[r * row + c * col].
struct Matrix {
  const float* data;
  int64_t row;
  int64_t col = 1;
  const float* At(int64_t r, int64_t c) const { return data + r * row + c * col; }
};

// c (+)= a · b over `depth` for one tile; columns of b and c are contiguous.
template <bool kAdd>
void Tile(const Matrix& a, const float* b, int64_t b_row, int64_t depth, float* c, int64_t c_row) {
  Lanes sums[kTileRows][2] = {};
  if constexpr (kAdd) {
    for (int64_t r = 0; r < kTileRows; ++r) {
      sums[r][0] = Load(c + r * c_row);
      sums[r][1] = Load(c + r * c_row + kLanes);
    }
  }
  for (int64_t d = 0; d < depth; ++d) {
    const Lanes left = Load(b + d * b_row);
    const Lanes right = Load(b + d * b_row + kLanes);
    for (int64_t r = 0; r < kTileRows; ++r) {
      const float x = *a.At(r, d);
      sums[r][0] += x * left;
      sums[r][1] += x * right;
    }
  }
  for (int64_t r = 0; r < kTileRows; ++r) {
    std::memcpy(c + r * c_row, &sums[r][0], sizeof(Lanes));
    std::memcpy(c + r * c_row + kLanes, &sums[r][1], sizeof(Lanes));
  }
}

// One sequence's heads that share a KV head, row-major, zero-padded to whole blocks of rows.
class Group {
 public:
  Group(const AttentionShape& shape, const float* k, const float* v, int64_t kv_head)
      : shape_(shape),
        dim_(shape.head_dim),
        padded_(RoundUp(shape.length, kBlockRows)),
        k_(Pack(k + kv_head * dim_, shape.k_stride)),
        v_(Pack(v + kv_head * dim_, shape.v_stride)),
        k_turned_(Turn(k_)),
        scale_(1.0f / std::sqrt(static_cast<float>(dim_))),
        rows_(static_cast<size_t>(kBlockRows * dim_)),
        scores_(static_cast<size_t>(kBlockRows * padded_)) {}

  void Forward(const float* q, int64_t head, float* out, float* log_sums) {
    for (int64_t begin = 0; begin < shape_.length; begin += kBlockRows) {
      const int64_t rows = std::min(kBlockRows, shape_.length - begin);
      PackRows(q + head * dim_, shape_.q_stride, begin, rows, scale_, rows_);
      Scores(rows_, k_turned_, begin, rows, scores_);
      for (int64_t r = 0; r < rows; ++r) {
        float* score = scores_.data() + r * padded_;
        const int64_t seen = begin + r + 1;
        float most = score[0];
        for (int64_t i = 1; i < seen; ++i) most = std::max(most, score[i]);
        float sum = 0;
        for (int64_t i = 0; i < seen; ++i) {
          score[i] = std::exp(score[i] - most);
          sum += score[i];
        }
        const float share = 1.0f / sum;
        for (int64_t i = 0; i < seen; ++i) score[i] *= share;
        Hide(seen, begin, rows, score);
        log_sums[begin + r] = most + std::log(sum);
      }
      Mix(scores_, v_, begin, rows, 1.0f, out + head * dim_);
    }
  }

  // Additional data of Backward; gradients of the group's heads are summed into dk and dv [padded,
  // head_dim].
  void PrepareBackward() {
    v_turned_ = Turn(v_);
    dk_.assign(k_.size(), 0.0f);
    dv_.assign(v_.size(), 0.0f);
    drows_.resize(rows_.size());
    dscores_.resize(scores_.size());
  }

  void Backward(const float* q, int64_t head, const float* out, const float* log_sums,
                const float* dout, float* dq) {
    const int64_t width = shape_.heads * dim_;
    for (int64_t begin = 0; begin < shape_.length; begin += kBlockRows) {
      const int64_t rows = std::min(kBlockRows, shape_.length - begin);
      PackRows(q + head * dim_, shape_.q_stride, begin, rows, scale_, rows_);
      PackRows(dout + head * dim_, width, begin, rows, 1.0f, drows_);
      Scores(rows_, k_turned_, begin, rows, scores_);
      Scores(drows_, v_turned_, begin, rows, dscores_);
      for (int64_t r = 0; r < RoundUp(rows, kTileRows); ++r) {
        float* score = scores_.data() + r * padded_;
        float* dscore = dscores_.data() + r * padded_;
        const int64_t seen = r < rows ? begin + r + 1 : 0;
        if (seen > 0) {
          const float* said = out + (begin + r) * width + head * dim_;
          const float* dsaid = drows_.data() + r * dim_;
          float dot = 0;
          for (int64_t d = 0; d < dim_; ++d) dot += said[d] * dsaid[d];
          const float log_sum = log_sums[begin + r];
          for (int64_t i = 0; i < seen; ++i) {
            score[i] = std::exp(score[i] - log_sum);
            dscore[i] = score[i] * (dscore[i] - dot);
          }
        }
        Hide(seen, begin, rows, score);
        Hide(seen, begin, rows, dscore);
      }
      Mix(dscores_, k_, begin, rows, scale_, dq + head * dim_);
      Spread(scores_, drows_, begin, rows, dv_);
      Spread(dscores_, rows_, begin, rows, dk_);
    }
  }

  void Store(int64_t kv_head, float* dk, float* dv) const {
    const int64_t width = shape_.kv_heads * dim_;
    for (int64_t i = 0; i < shape_.length; ++i) {
      std::copy_n(dk_.data() + i * dim_, dim_, dk + i * width + kv_head * dim_);
      std::copy_n(dv_.data() + i * dim_, dim_, dv + i * width + kv_head * dim_);
    }
  }

 private:
  using Values = std::vector<float>;

  Values Pack(const float* from, int64_t stride) const {
    Values to(static_cast<size_t>(padded_ * dim_));
    for (int64_t i = 0; i < shape_.length; ++i)
      std::copy_n(from + i * stride, dim_, to.data() + i * dim_);
    return to;
  }

  // Transposes [padded, head_dim] to [head_dim, padded].
  Values Turn(const Values& from) const {
    Values to(from.size());
    for (int64_t i = 0; i < padded_; ++i) {
      for (int64_t d = 0; d < dim_; ++d)
        to[static_cast<size_t>(d * padded_ + i)] = from[static_cast<size_t>(i * dim_ + d)];
    }
    return to;
  }

  void PackRows(const float* from, int64_t stride, int64_t begin, int64_t rows, float scale,
                Values& to) const {
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = from + (begin + r) * stride;
      for (int64_t d = 0; d < dim_; ++d) to[static_cast<size_t>(r * dim_ + d)] = row[d] * scale;
    }
    std::fill(to.begin() + rows * dim_, to.end(), 0.0f);
  }

  // Number of columns that products read of a block's rows.
  int64_t Width(int64_t begin, int64_t rows) const {
    return RoundUp(begin + RoundUp(rows, kTileRows), kTileCols);
  }

  // Scores of the block's rows for all keys that at least one row of a tile sees.
  void Scores(const Values& rows_of, const Values& turned, int64_t begin, int64_t rows,
              Values& to) const {
    for (int64_t c = 0; c < Width(begin, rows); c += kTileCols) {
      for (int64_t r = 0; r < rows; r += kTileRows) {
        if (c >= begin + r + kTileRows) continue;
        Tile<false>({rows_of.data() + r * dim_, dim_}, turned.data() + c, padded_, dim_,
                    to.data() + r * padded_ + c, padded_);
      }
    }
  }

  // Clears the entries that the row does not see.
  void Hide(int64_t seen, int64_t begin, int64_t rows, float* row) const {
    std::fill(row + seen, row + Width(begin, rows), 0.0f);
  }

  // The block's rows of weights · values, added to `to` [length, heads, head_dim].
  void Mix(const Values& weights, const Values& values, int64_t begin, int64_t rows, float scale,
           float* to) const {
    const int64_t width = shape_.heads * dim_;
    float tile[kTileRows * kTileCols];
    for (int64_t c = 0; c < dim_; c += kTileCols) {
      for (int64_t r = 0; r < rows; r += kTileRows) {
        Tile<false>({weights.data() + r * padded_, padded_}, values.data() + c, dim_,
                    std::min(padded_, begin + r + kTileRows), tile, kTileCols);
        for (int64_t i = 0; i < std::min(kTileRows, rows - r); ++i) {
          float* row = to + (begin + r + i) * width + c;
          for (int64_t d = 0; d < kTileCols; ++d) row[d] = tile[i * kTileCols + d] * scale;
        }
      }
    }
  }

  // to += weightsᵀ · rows of the block.
  void Spread(const Values& weights, const Values& rows_of, int64_t begin, int64_t rows,
              Values& to) const {
    const int64_t depth = RoundUp(rows, kTileRows);
    for (int64_t c = 0; c < dim_; c += kTileCols) {
      for (int64_t i = 0; i < begin + rows; i += kTileRows) {
        const int64_t first = std::max<int64_t>(0, i - begin);  // earlier rows do not see i
        Tile<true>({weights.data() + first * padded_ + i, 1, padded_},
                   rows_of.data() + first * dim_ + c, dim_, depth - first, to.data() + i * dim_ + c,
                   dim_);
      }
    }
  }

  const AttentionShape& shape_;
  const int64_t dim_;
  const int64_t padded_;
  const Values k_, v_, k_turned_;
  const float scale_;
  Values v_turned_, dk_, dv_;
  Values rows_, drows_;      // [block rows, head_dim]: queries, scaled, and gradients of the output
  Values scores_, dscores_;  // [block rows, padded]
};

}  // namespace

bool FitsAttention(int64_t head_dim) { return head_dim % kTileCols == 0; }

void CausalAttention(const AttentionShape& shape, const float* q, const float* k, const float* v,
                     int64_t kv_head, float* out, float* log_sums) {
  Group group(shape, k, v, kv_head);
  const int64_t share = shape.heads / shape.kv_heads;
  for (int64_t head = kv_head * share; head < (kv_head + 1) * share; ++head)
    group.Forward(q, head, out, log_sums + head * shape.length);
}

void CausalAttentionBackward(const AttentionShape& shape, const float* q, const float* k,
                             const float* v, int64_t kv_head, const float* out,
                             const float* log_sums, const float* dout, float* dq, float* dk,
                             float* dv) {
  Group group(shape, k, v, kv_head);
  group.PrepareBackward();
  const int64_t share = shape.heads / shape.kv_heads;
  for (int64_t head = kv_head * share; head < (kv_head + 1) * share; ++head)
    group.Backward(q, head, out, log_sums + head * shape.length, dout, dq);
  group.Store(kv_head, dk, dv);
}

}  // namespace withy::train::kernels
