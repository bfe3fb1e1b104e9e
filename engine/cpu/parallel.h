// Kernels run over the pool: what the model calls. Splits into pieces, fuses what shares rows,
// keeps the number of barriers small. Add… appends to a list of steps, as which a forward pass is
// written down first and then run; the plain names do it at once. Neighbours: kernels.h (the work),
// thread_pool.h (the threads). Results do not depend on the number of threads or pieces.
#pragma once

#include <span>

#include "engine/cpu/attention.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/thread_pool.h"

namespace withy::engine {

// Rows [rows, n_in] of x (stride floats) into `out`, which was Reset() for them. `extent`: how many
// inputs of each row are wanted, never more than of the row before; nullptr: all.
void AddPrepareRows(StepList& steps, const Kernels& kernels, const float* x, ptrdiff_t stride,
                    int rows, Activations* out, const int* extent = nullptr);

// The same of rms_norm(x): normalises each row with `weight` on the way.
void AddNormAndPrepareRows(StepList& steps, const Kernels& kernels, const float* x,
                           ptrdiff_t stride, int rows, const float* weight, float eps,
                           Activations* out);

// One such row, on the calling thread.
void NormAndPrepareRow(const Kernels& kernels, const float* x, const float* weight, float eps,
                       int row, Activations* out);

// Several products, at most three, in one pass over the pool (fused Q/K/V). Outputs are disjoint.
// `more` are any number besides, smaller ones, which must stay until the list has been run.
void AddMatMuls(StepList& steps, const Kernels& kernels, std::span<const MatMulArgs> products,
                std::span<const MatMulArgs> more = {});

// What LoRA adds to gate and up of rows [begin, end), which have one extent: B * a.
struct GateUpLowRank {
  int begin = 0;
  int end = 0;
  const LowRankOutputs* gate = nullptr;
  const LowRankOutputs* up = nullptr;
  const float* a = nullptr;  // [rows, 2 * rank], gate's first; a_stride floats between rows
  ptrdiff_t a_stride = 0;
};

// h = silu(gate x) * (up x) prepared for the down product. gate and up have equal shapes, rows and
// extents; their y are scratch [rows, n_out]. `h` was Reset() to at least [gate.rows, n_out];
// beyond a row's output extent it is undefined up to the next multiple of 32, zero there, and
// untouched further on. `low_rank`: of disjoint rows.
void AddGateUp(StepList& steps, const Kernels& kernels, const MatMulArgs& gate,
               const MatMulArgs& up, Activations* h, std::span<const GateUpLowRank> low_rank = {});

// Attention of all rows.
void AddAttend(StepList& steps, const Kernels& kernels, const AttentionArgs& args);

// The same at once. `out` and `h` are Reset() here, in the wanted forms (ActivationForms).
void PrepareRows(ThreadPool& pool, const Kernels& kernels, const float* x, ptrdiff_t stride,
                 int rows, int n_in, unsigned forms, Activations* out);
void NormAndPrepareRows(ThreadPool& pool, const Kernels& kernels, const float* x, ptrdiff_t stride,
                        int rows, int n_in, const float* weight, float eps, unsigned forms,
                        Activations* out);
void MatMuls(ThreadPool& pool, const Kernels& kernels, std::span<const MatMulArgs> products);
void GateUp(ThreadPool& pool, const Kernels& kernels, const MatMulArgs& gate, const MatMulArgs& up,
            unsigned forms, Activations* h);
void Attend(ThreadPool& pool, const Kernels& kernels, const AttentionArgs& args);

}  // namespace withy::engine
