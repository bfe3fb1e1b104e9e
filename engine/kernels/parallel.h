// Kernels run over the pool: what the model calls. Splits into pieces, fuses what shares rows,
// keeps the number of barriers small. Neighbours: kernels.h (the work), thread_pool.h (the
// threads). Results do not depend on the number of threads or pieces.
#pragma once

#include <span>

#include "engine/kernels/attention.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/thread_pool.h"

namespace withy::engine {

// Rows [rows, n_in] of x (stride floats) into `out` in the wanted forms (ActivationForms).
void PrepareRows(ThreadPool& pool, const Kernels& kernels, const float* x, ptrdiff_t stride,
                 int rows, int n_in, unsigned forms, Activations* out);

// The same of rms_norm(x): normalises each row with `weight` on the way.
void NormAndPrepareRows(ThreadPool& pool, const Kernels& kernels, const float* x, ptrdiff_t stride,
                        int rows, int n_in, const float* weight, float eps, unsigned forms,
                        Activations* out);

// Several products in one pass over the pool (fused Q/K/V). Outputs are disjoint.
void MatMuls(ThreadPool& pool, const Kernels& kernels, std::span<const MatMulArgs> products);

// h = silu(gate x) * (up x) prepared for the down product in `forms`. gate and up have equal
// shapes, rows and extents; their y are scratch [rows, n_out]. `h` is Reset() here to [gate.rows,
// n_out]; beyond a row's output extent it is undefined up to the next multiple of 32, zero there,
// and untouched further on.
void GateUp(ThreadPool& pool, const Kernels& kernels, const MatMulArgs& gate, const MatMulArgs& up,
            unsigned forms, Activations* h);

// Attention of all rows.
void Attend(ThreadPool& pool, const Kernels& kernels, const AttentionArgs& args);

}  // namespace withy::engine
