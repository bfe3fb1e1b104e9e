#include "engine/kernels/parallel.h"

#include <algorithm>
#include <cstddef>

#include "engine/kernels/aligned.h"

namespace withy::engine {
namespace {

constexpr int kManyRows = 32;  // from here on a product is bound by arithmetic
// Weights a piece reads: for few rows long enough to stream and short enough to balance; for many
// what stays in the cache beside their inputs.
constexpr size_t kPieceBytes = 96 << 10;
constexpr size_t kManyPieceBytes = 320 << 10;
constexpr int kMaxTiles = 16;  // what many rows hold of their sums in the cache
constexpr int kRowsPerPiece = 4;
constexpr size_t kAloneBytes = 48 << 10;  // weights times rows that are done before a worker wakes

// Tiles a piece takes: an even number, so that pieces are whole 32-column blocks; enough of one
// panel to stream through, but at least four pieces a thread while there are tiles for them.
int TileGrain(const PackedMatrix& w, int rows, int threads) {
  const size_t tile =
      std::max<size_t>(TileBytes(w.type, std::min(w.panel_inputs, w.padded_inputs())), 1);
  const int by_bytes = static_cast<int>((rows < kManyRows ? kPieceBytes : kManyPieceBytes) / tile);
  const int by_threads = w.tiles() / (4 * threads);
  return std::max(std::min(std::min(by_bytes, by_threads), kMaxTiles) / 2 * 2, 2);
}

float* RowScratch(int n) {
  thread_local AlignedArray<float> scratch;
  scratch.Resize(static_cast<size_t>(n) + 16);
  return scratch.data();
}

int RowExtent(const MatMulArgs& args, int row) {
  return args.n_out_extent != nullptr ? args.n_out_extent[row] : args.w.n_out;
}

}  // namespace

void PrepareRows(ThreadPool& pool, const Kernels& kernels, const float* x, ptrdiff_t stride,
                 int rows, int n_in, unsigned forms, Activations* out) {
  out->Reset(rows, n_in, forms);
  pool.ParallelFor(rows, kRowsPerPiece, [&](int begin, int end) {
    kernels.prepare(x + begin * stride, stride, begin, end, 0, n_in, out);
  });
}

void NormAndPrepareRows(ThreadPool& pool, const Kernels& kernels, const float* x, ptrdiff_t stride,
                        int rows, int n_in, const float* weight, float eps, unsigned forms,
                        Activations* out) {
  out->Reset(rows, n_in, forms);
  pool.ParallelFor(rows, kRowsPerPiece, [&](int begin, int end) {
    float* scratch = RowScratch(n_in);
    for (int row = begin; row < end; ++row) {
      kernels.rms_norm(x + row * stride, weight, eps, n_in, scratch);
      kernels.prepare(scratch, n_in, row, row + 1, 0, n_in, out);
    }
  });
}

void MatMuls(ThreadPool& pool, const Kernels& kernels, std::span<const MatMulArgs> products) {
  int tiles = 0;
  int grain = 1 << 20;
  size_t work = 0;
  for (const MatMulArgs& p : products) {
    tiles += p.w.tiles();
    grain = std::min(grain, TileGrain(p.w, p.rows, pool.threads()));
    work += PackedBytes(p.w) * static_cast<size_t>(p.rows);
  }
  if (work <= kAloneBytes) grain = tiles;
  pool.ParallelFor(tiles, grain, [&](int begin, int end) {
    int first = 0;
    for (const MatMulArgs& p : products) {
      const int from = std::max(begin - first, 0);
      const int to = std::min(end - first, p.w.tiles());
      if (from < to) kernels.matmul(p, from, to);
      first += p.w.tiles();
    }
  });
}

void GateUp(ThreadPool& pool, const Kernels& kernels, const MatMulArgs& gate, const MatMulArgs& up,
            unsigned forms, Activations* h) {
  const int n = gate.w.n_out;
  h->Reset(gate.rows, n, forms);
  const int grain = TileGrain(gate.w, gate.rows, pool.threads());
  pool.ParallelFor(gate.w.tiles(), grain, [&](int begin, int end) {
    kernels.matmul(gate, begin, end);
    kernels.matmul(up, begin, end);
    const int col = begin * kTileRows;
    for (int row = 0; row < gate.rows; ++row) {
      const int width = std::min(RowExtent(gate, row), std::min(end * kTileRows, n)) - col;
      if (width <= 0) break;
      float* g = gate.y + row * gate.y_stride + col;
      kernels.swiglu(g, up.y + row * up.y_stride + col, width, g);
      kernels.prepare(g, gate.y_stride, row, row + 1, col, col + width, h);
    }
  });
}

void Attend(ThreadPool& pool, const Kernels& kernels, const AttentionArgs& args) {
  pool.ParallelFor(AttentionItems(args), 1,
                   [&](int begin, int end) { kernels.attention(args, begin, end); });
}

}  // namespace withy::engine
