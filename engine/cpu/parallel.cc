#include "engine/cpu/parallel.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "engine/cpu/aligned.h"

namespace withy::engine {
namespace {

constexpr int kManyRows = 32;  // with this many rows, arithmetic limits a product
// Weight bytes that a piece reads. Few rows: long enough to stream, short enough to balance. Many
// rows: what stays in the cache beside their inputs.
constexpr size_t kPieceBytes = 384 << 10;
constexpr size_t kManyPieceBytes = 320 << 10;
constexpr int kMaxTiles = 16;  // tiles of a piece; the cache must hold their sums of many rows
// Weight bytes times rows of a step that one thread finishes before a worker wakes.
constexpr size_t kSingleThreadBytes = 48 << 10;

int RowExtent(const MatMulArgs& args, int row) {
  return args.n_out_extent != nullptr ? args.n_out_extent[row] : args.w.n_out;
}

// Tiles that any row computes, in whole 32-column blocks. The first row has the largest extent.
int TilesOf(const MatMulArgs& args) {
  const int blocks = (RowExtent(args, 0) + 2 * kTileRows - 1) / (2 * kTileRows);
  return std::min(2 * blocks, args.w.tiles());
}

// Tiles per piece of a product with `tiles` tiles: whole 32-column blocks, at most what fits the
// cache. With few rows, two tiles take less time than handing them to another thread, so the
// minimum is up to six.
PieceSize PieceTiles(const PackedMatrix& w, int rows, int tiles, int threads) {
  const size_t tile =
      std::max<size_t>(TileBytes(w.type, std::min(w.panel_inputs, w.padded_inputs())), 1);
  const size_t bytes = rows < kManyRows ? kPieceBytes : kManyPieceBytes;
  const int least = rows < kManyRows ? std::clamp(tiles / (3 * threads) / 2 * 2, 2, 6) : 2;
  return {least, std::min(static_cast<int>(bytes / tile), kMaxTiles)};
}

constexpr PieceSize kPieceRows{2, 16};
constexpr int kMergeItems = 4;  // each takes a microsecond

// Adds columns [begin, end) of `bias` to the rows of a product.
void AddBias(const Kernels& kernels, const MatMulArgs& product, const float* bias, int begin,
             int end) {
  for (int row = 0; row < product.rows; ++row) {
    kernels.add(bias + begin, end - begin, product.y + row * product.y_stride + begin);
  }
}

// x[n] = gelu(x), as that of a gate beside which all is 1.
void Gelu(const Kernels& kernels, float* x, int n) {
  constexpr int kOnes = 256;
  static constexpr auto kAllOnes = [] {
    std::array<float, kOnes> ones{};
    for (float& one : ones) one = 1.0f;
    return ones;
  }();
  for (int i = 0; i < n; i += kOnes) {
    kernels.geglu(x + i, kAllOnes.data(), std::min(kOnes, n - i), x + i);
  }
}

// out[n] = x - mean(x)
void SubtractMean(const float* x, int n, float* out) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(x[i]);
  const auto mean = static_cast<float>(sum / n);
  for (int i = 0; i < n; ++i) out[i] = x[i] - mean;
}

float* RowScratch(int n) {
  thread_local AlignedArray<float> scratch;
  scratch.Resize(static_cast<size_t>(n) + 16);
  return scratch.data();
}

// Products that share a step: up to three by value, more by reference.
struct Products {
  std::array<MatMulArgs, 3> args;
  int count = 0;
  const Kernels* kernels = nullptr;
  std::span<const MatMulArgs> more;
  const float* bias = nullptr;  // of the first product

  int all() const { return count + static_cast<int>(more.size()); }
  const MatMulArgs& at(int i) const {
    return i < count ? args[static_cast<size_t>(i)] : more[static_cast<size_t>(i - count)];
  }

  const std::byte* FirstRead(int begin) const {
    int first = 0;
    for (int i = 0; i < all(); ++i) {
      const MatMulArgs& p = at(i);
      const int tiles = TilesOf(p);
      if (begin < first + tiles) return p.w.data + TileOffset(p.w, 0, begin - first);
      first += tiles;
    }
    return nullptr;
  }

  // Computes tiles [begin, end), numbered across all products.
  void operator()(int begin, int end) const {
    int first = 0;
    for (int i = 0; i < all(); ++i) {
      const MatMulArgs& p = at(i);
      const int from = std::max(begin - first, 0);
      const int tiles = TilesOf(p);
      const int to = std::min(end - first, tiles);
      if (from < to) kernels->matmul(p, from, to);
      if (from < to && i == 0 && bias != nullptr) {
        AddBias(*kernels, p, bias, from * kTileRows, std::min(to * kTileRows, p.w.n_out));
      }
      first += tiles;
    }
  }
};

// The gate and up products, their LoRA, the activation, and the conversion of the result for down.
struct GateUpProducts {
  const Kernels* kernels;
  GateUpFunction function;
  MatMulArgs gate;
  MatMulArgs up;
  Activations* h;
  std::span<const GateUpLowRank> low_rank;

  const std::byte* FirstRead(int begin) const { return gate.w.data + TileOffset(gate.w, 0, begin); }

  // Computes tiles [begin, end) of both products.
  void operator()(int begin, int end) const {
    GateUpTiles(*kernels, gate, up, begin, end, h, low_rank, function);
  }
};

// The up product of an MLP without a gate, its bias, GELU, and the conversion of the result for
// down.
struct UpProduct {
  const Kernels* kernels;
  MatMulArgs up;
  const float* bias;
  Activations* h;

  const std::byte* FirstRead(int begin) const { return up.w.data + TileOffset(up.w, 0, begin); }

  // Computes tiles [begin, end).
  void operator()(int begin, int end) const {
    kernels->matmul(up, begin, end);
    const int col = begin * kTileRows;
    const int end_col = std::min(end * kTileRows, up.w.n_out);
    if (end_col <= col) return;
    if (bias != nullptr) AddBias(*kernels, up, bias, col, end_col);
    for (int row = 0; row < up.rows; ++row) {
      float* y = up.y + row * up.y_stride + col;
      Gelu(*kernels, y, end_col - col);
      kernels->prepare(y, up.y_stride, row, row + 1, col, end_col, h);
    }
  }
};

}  // namespace

void AddPrepareRows(StepList& steps, const Kernels& kernels, const float* x, ptrdiff_t stride,
                    int rows, Activations* out, const int* extent) {
  steps.Add(rows, kPieceRows, [&kernels, x, stride, out, extent](int begin, int end) {
    const int width = extent != nullptr ? extent[begin] : out->n_in();
    kernels.prepare(x + begin * stride, stride, begin, end, 0, width, out);
  });
}

void AddNormAndPrepareRows(StepList& steps, const Kernels& kernels, const float* x,
                           ptrdiff_t stride, int rows, const NormArgs& norm, Activations* out) {
  steps.Add(rows, kPieceRows, [&kernels, x, stride, norm, out](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      NormAndPrepareRow(kernels, x + row * stride, norm, row, out);
    }
  });
}

void NormRow(const Kernels& kernels, const float* x, const NormArgs& norm, int n_in, float* out) {
  if (norm.bias != nullptr) {  // LayerNorm is the RMS norm of what is left without the mean
    SubtractMean(x, n_in, out);
    x = out;
  }
  kernels.rms_norm(x, norm.weight, norm.epsilon, n_in, out);
  if (norm.bias != nullptr) kernels.add(norm.bias, n_in, out);
}

void NormAndPrepareRow(const Kernels& kernels, const float* x, const NormArgs& norm, int row,
                       Activations* out) {
  const int n_in = out->n_in();
  float* scratch = RowScratch(n_in);
  NormRow(kernels, x, norm, n_in, scratch);
  kernels.prepare(scratch, n_in, row, row + 1, 0, n_in, out);
}

void AddMatMuls(StepList& steps, const Kernels& kernels, std::span<const MatMulArgs> products,
                std::span<const MatMulArgs> more, const float* bias) {
  Products step;
  step.kernels = &kernels;
  step.more = more;
  step.bias = bias;
  for (const MatMulArgs& p : products) step.args[static_cast<size_t>(step.count++)] = p;
  int tiles = 0;
  size_t work = 0;
  for (int i = 0; i < step.all(); ++i) {
    const MatMulArgs& p = step.at(i);
    tiles += TilesOf(p);
    work += PrefixBytes(p.w, RowExtent(p, 0), p.w.n_in) * static_cast<size_t>(p.rows);
  }
  const MatMulArgs& last = products.back();
  steps.Add(
      tiles,
      work <= kSingleThreadBytes ? tiles : PieceTiles(last.w, last.rows, tiles, steps.threads()),
      step);
}

void AddGateUp(StepList& steps, const Kernels& kernels, const MatMulArgs& gate,
               const MatMulArgs& up, Activations* h, std::span<const GateUpLowRank> low_rank,
               const GateUpFunction& function) {
  const int tiles = TilesOf(gate);
  steps.Add(tiles, PieceTiles(gate.w, gate.rows, tiles, steps.threads()),
            GateUpProducts{&kernels, function, gate, up, h, low_rank});
}

void GateUpTiles(const Kernels& kernels, const MatMulArgs& gate, const MatMulArgs& up,
                 int tile_begin, int tile_end, Activations* h,
                 std::span<const GateUpLowRank> low_rank, const GateUpFunction& function) {
  kernels.matmul(gate, tile_begin, tile_end);
  kernels.matmul(up, tile_begin, tile_end);
  const int col = tile_begin * kTileRows;
  const int end_col = std::min(tile_end * kTileRows, gate.w.n_out);
  for (const GateUpLowRank& more : low_rank) {
    const int to = std::min(RowExtent(gate, more.begin), end_col);
    if (to <= col) continue;
    const auto add = [&](const LowRankOutputs& b, const float* a, const MatMulArgs& args) {
      kernels.add_low_rank(b,
                           {more.end - more.begin, a, more.a_stride,
                            args.y + more.begin * args.y_stride + col, args.y_stride},
                           col, to);
    };
    add(*more.gate, more.a, gate);
    add(*more.up, more.a + more.gate->rank, up);
  }
  if (function.gate_bias != nullptr) AddBias(kernels, gate, function.gate_bias, col, end_col);
  if (function.up_bias != nullptr) AddBias(kernels, up, function.up_bias, col, end_col);
  const auto of = function.of != nullptr ? function.of : kernels.swiglu;
  for (int row = 0; row < gate.rows; ++row) {
    const int width = std::min(RowExtent(gate, row), end_col) - col;
    if (width <= 0) break;
    float* g = gate.y + row * gate.y_stride + col;
    const float* u = up.y + row * up.y_stride + col;
    of(g, u, width, g);
    const int to = gate.x_row + row;
    kernels.prepare(g, gate.y_stride, to, to + 1, col, col + width, h);
  }
}

void AddUp(StepList& steps, const Kernels& kernels, const MatMulArgs& up, const float* bias,
           Activations* h) {
  const int tiles = TilesOf(up);
  steps.Add(tiles, PieceTiles(up.w, up.rows, tiles, steps.threads()),
            UpProduct{&kernels, up, bias, h});
}

void AddAttend(StepList& steps, const Kernels& kernels, const AttentionArgs& args) {
  steps.Add(AttentionItems(args), 1,
            [&kernels, args](int begin, int end) { kernels.attention(args, begin, end); });
  if (args.key_items == 1) return;
  steps.Add(AttentionMergeItems(args), kMergeItems,
            [&kernels, args](int begin, int end) { kernels.merge_attention(args, begin, end); });
}

void PrepareRows(ThreadPool& pool, const Kernels& kernels, const float* x, ptrdiff_t stride,
                 int rows, int n_in, unsigned forms, Activations* out) {
  out->Reset(rows, n_in, forms);
  AddPrepareRows(pool.list(), kernels, x, stride, rows, out);
  pool.Run(pool.list());
}

void MatMuls(ThreadPool& pool, const Kernels& kernels, std::span<const MatMulArgs> products) {
  AddMatMuls(pool.list(), kernels, products);
  pool.Run(pool.list());
}

void GateUp(ThreadPool& pool, const Kernels& kernels, const MatMulArgs& gate, const MatMulArgs& up,
            unsigned forms, Activations* h) {
  h->Reset(gate.rows, gate.w.n_out, forms);
  AddGateUp(pool.list(), kernels, gate, up, h);
  pool.Run(pool.list());
}

void Attend(ThreadPool& pool, const Kernels& kernels, const AttentionArgs& args) {
  AttentionArgs divided = args;
  divided.key_items = AttentionKeyItems(args, pool.threads());
  AlignedArray<float> parts;
  if (divided.key_items > 1) parts.Resize(AttentionPartFloats(args));
  divided.parts = parts.data();
  AddAttend(pool.list(), kernels, divided);
  pool.Run(pool.list());
}

}  // namespace withy::engine
