// Runs kernels on the thread pool. Splits work into pieces, fuses operations on the same rows, and
// keeps the number of barriers small. Functions named Add… append steps to a list that runs later;
// a forward pass is such a list. The others run at once. Neighbours: kernels.h (the work),
// thread_pool.h (the threads). Results do not depend on the number of threads or pieces.
#pragma once

#include <span>

#include "engine/cpu/attention.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/thread_pool.h"

namespace withy::engine {

// Converts x [rows, n_in], `stride` floats between rows, into `out`, which was Reset() for them.
// extent[row]: inputs of the row to convert, never more than of the row before; nullptr: all.
void AddPrepareRows(StepList& steps, const Kernels& kernels, const float* x, ptrdiff_t stride,
                    int rows, Activations* out, const int* extent = nullptr);

// A norm of rows of n_in floats.
struct NormArgs {
  const float* weight = nullptr;  // [n_in]
  float epsilon = 0.0f;
  const float* bias = nullptr;  // [n_in], of LayerNorm; nullptr: an RMS norm
};

// Writes the norm of one row of n_in floats to `out`.
void NormRow(const Kernels& kernels, const float* x, const NormArgs& norm, int n_in, float* out);

// Converts the norm of each row of x.
void AddNormAndPrepareRows(StepList& steps, const Kernels& kernels, const float* x,
                           ptrdiff_t stride, int rows, const NormArgs& norm, Activations* out);

// Converts the norm of one row on the calling thread.
void NormAndPrepareRow(const Kernels& kernels, const float* x, const NormArgs& norm, int row,
                       Activations* out);

// Computes up to three products in one step (fused Q/K/V), and with them any number of smaller
// ones, `more`, which must stay valid until the list has run. Outputs are disjoint. `bias` [n_out]:
// of the first product, whose rows then compute all outputs; nullptr: it has none.
void AddMatMuls(StepList& steps, const Kernels& kernels, std::span<const MatMulArgs> products,
                std::span<const MatMulArgs> more = {}, const float* bias = nullptr);

// LoRA of gate and up: adds B * a to rows [begin, end), which have the same extent.
struct GateUpLowRank {
  int begin = 0;
  int end = 0;
  const LowRankOutputs* gate = nullptr;
  const LowRankOutputs* up = nullptr;
  const float* a = nullptr;  // [rows, 2 * rank], gate's rank first; a_stride floats between rows
  ptrdiff_t a_stride = 0;
};

// What becomes of gate and up: biases that are added first, and one of the table's functions of
// gate and up.
struct GateUpFunction {
  void (*of)(const float* gate, const float* up, int n, float* out) = nullptr;  // null: swiglu
  const float* gate_bias = nullptr;  // [n_out]; nullptr: none
  const float* up_bias = nullptr;
};

// Computes h = silu(gate x) * (up x), or what `function` says, in the form that the down product
// reads. gate and up have equal shapes, rows and extents; their y are scratch [rows, n_out]. `h`
// was Reset() to at least [gate.rows, n_out]. Each row of `h` is zero from its output extent to the
// next multiple of 32, and not written beyond. `low_rank`: LoRA of disjoint rows; must stay valid
// until the list has run.
void AddGateUp(StepList& steps, const Kernels& kernels, const MatMulArgs& gate,
               const MatMulArgs& up, Activations* h, std::span<const GateUpLowRank> low_rank = {},
               const GateUpFunction& function = {});

// Computes tiles [tile_begin, tile_end) of the same on the calling thread. Row r of the product
// becomes row gate.x_row + r of `h`.
void GateUpTiles(const Kernels& kernels, const MatMulArgs& gate, const MatMulArgs& up,
                 int tile_begin, int tile_end, Activations* h,
                 std::span<const GateUpLowRank> low_rank = {}, const GateUpFunction& function = {});

// Computes h = gelu(up x + bias), an MLP's neurons without a gate, as AddGateUp. `bias` [n_out];
// nullptr: none. All rows compute all outputs.
void AddUp(StepList& steps, const Kernels& kernels, const MatMulArgs& up, const float* bias,
           Activations* h);

// Computes attention of all rows. One step, or two if args.key_items > 1.
void AddAttend(StepList& steps, const Kernels& kernels, const AttentionArgs& args);

// The same, run at once. `out` and `h` are Reset() here with `forms` (ActivationForms).
void PrepareRows(ThreadPool& pool, const Kernels& kernels, const float* x, ptrdiff_t stride,
                 int rows, int n_in, unsigned forms, Activations* out);
void MatMuls(ThreadPool& pool, const Kernels& kernels, std::span<const MatMulArgs> products);
void GateUp(ThreadPool& pool, const Kernels& kernels, const MatMulArgs& gate, const MatMulArgs& up,
            unsigned forms, Activations* h);
void Attend(ThreadPool& pool, const Kernels& kernels, const AttentionArgs& args);

}  // namespace withy::engine
