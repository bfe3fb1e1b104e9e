// Arguments of the matrix product y = W x, which computes rows of different extents in one pass
// over the weights (nested batching). Neighbours: packed_matrix.h (W), activations.h (x),
// Kernels::matmul computes a range of tiles, parallel.h splits it over the pool.
#pragma once

#include <cstddef>

#include "engine/cpu/activations.h"
#include "engine/cpu/packed_matrix.h"

namespace withy::engine {

// y[r, o] (+)= sum over i of W[o, i] * x[r, i], in f32, for o < n_out_extent[r] and i <
// n_in_extent[r]. The bits of a row's result depend neither on the other rows and their number nor
// on the split into tile ranges.
struct MatMulArgs {
  PackedMatrix w;
  // Rows of w.n_in inputs in FormFor(w.type), valid up to the row's extent.
  const Activations* x = nullptr;
  int x_row = 0;  // row of x that row 0 multiplies
  int rows = 0;
  float* y = nullptr;  // [rows, w.n_out], y_stride floats between rows; distinct from x
  ptrdiff_t y_stride = 0;
  bool accumulate = false;  // add to what y holds (the residual) instead of overwriting it
  // Extents of rows of lower levels; nullptr: full. Neither grows from row to row. An output extent
  // is any number <= n_out; whole tiles are computed, but y outside the extent is not written. An
  // input extent is a multiple of panel_inputs, or n_in.
  const int* n_out_extent = nullptr;
  const int* n_in_extent = nullptr;
};

}  // namespace withy::engine
