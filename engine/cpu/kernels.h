// The CPU kernels: one table of functions per instruction set, chosen at run time. Neighbours:
// parallel.h runs them on the thread pool; matmul.h, attention.h, activations.h and low_rank.h have
// the argument types. The functions are pure, allocate at most per-thread scratch, and may be
// called from any thread on disjoint outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/cpu/activations.h"
#include "engine/cpu/attention.h"
#include "engine/cpu/low_rank.h"
#include "engine/cpu/matmul.h"
#include "engine/kv/block.h"

namespace withy::engine {

enum class Target : uint8_t {
  kPortable = 0,
  kAvx2 = 1,
  kAvx512Vnni = 2,
  kNeonDot = 3,
  kNeonI8mm = 4
};

struct Kernels {
  Target target;
  const char* name;  // "portable", "avx2", "avx512vnni", "neon-dotprod", "neon-i8mm"

  // Converts rows [row_begin, row_end), columns [col_begin, col_end), into the forms of `out`,
  // which was Reset() with the shape. x points at (row_begin, col_begin), stride floats between
  // rows. col_begin is a multiple of 32. Where col_end is not, zeros follow to the next multiple of
  // 32.
  void (*prepare)(const float* x, ptrdiff_t stride, int row_begin, int row_end, int col_begin,
                  int col_end, Activations* out);

  // Computes tiles [tile_begin, tile_end) of w (16 outputs each).
  void (*matmul)(const MatMulArgs& args, int tile_begin, int tile_end);

  // Computes items [item_begin, item_end) of AttentionItems(args).
  void (*attention)(const AttentionArgs& args, int item_begin, int item_end);
  // If args.key_items > 1, after all items: items [item_begin, item_end) of
  // AttentionMergeItems(args).
  void (*merge_attention)(const AttentionArgs& args, int item_begin, int item_end);

  // Rotates K and V of one token, k and v [kv_heads * head_dim], and writes them into `slot` of the
  // block, in `format`: kQ8 or kF16. Leaves the header unchanged.
  void (*write_kv)(const KvGeometry& g, const float* k, const float* v, KvFormat format,
                   std::byte* block, int slot);

  // out[n] = x / sqrt(mean(x^2) + eps) * weight. out may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, int n, float* out);

  // Rotates `heads` heads of head_dim floats in place. angles: [2 * rope_dims], from RopeAngles()
  // with the same `interleaved`. Dimensions beyond rope_dims are not changed.
  void (*rope)(float* x, int heads, int head_dim, const float* angles, int rope_dims,
               bool interleaved);

  // out[n] = silu(gate) * up. out may be either input.
  void (*swiglu)(const float* gate, const float* up, int n, float* out);
  // out[n] = gelu(gate) * up, with GELU's approximation by tanh. out may be either input.
  void (*geglu)(const float* gate, const float* up, int n, float* out);
  // out[n] = gate * sigmoid(1.702 * gate) * (up + 1), of min(gate, 7) and of `up` within -7 and 7.
  // out may be either input.
  void (*clamped_swiglu)(const float* gate, const float* up, int n, float* out);
  // x[n] = cap * tanh(x / cap)
  void (*soft_cap)(float* x, int n, float cap);

  // y[n] += x[n]
  void (*add)(const float* x, int n, float* y);
  // y[n] += factor * x[n]
  void (*add_scaled)(const float* x, float factor, int n, float* y);
  // Sum of x[i] * y[i], i < n.
  float (*dot)(const float* x, const float* y, int n);
  // x[n] = max(0, x - (mean + cut * deviation)), of the mean and the standard deviation of x[n].
  void (*cut_off)(float* x, int n, float cut);

  // Adds outputs [begin, end) of B * a to all rows. Their y starts at output `begin`, a multiple of
  // 32. The bits of an output do not depend on how range and rows are split.
  void (*add_low_rank)(const LowRankOutputs& b, const LowRankRows& rows, int begin, int end);

  // out[n] = exp(x * inv_temperature - max) / sum. out may be x.
  void (*softmax)(const float* x, int n, float inv_temperature, float* out);

  // For ceilings.h. peak_loop computes `rounds` rounds of 8-bit dot products from registers and
  // returns the number of operations; sink[32] is scratch. read_loop reads `bytes` (a multiple of
  // 512) at the 64-byte aligned p and requests each line `ahead` bytes before it is read (0: not).
  double (*peak_loop)(int rounds, int32_t* sink);
  int32_t (*read_loop)(const std::byte* p, size_t bytes, size_t ahead);
};

// Targets that this build contains and this CPU can run, best last.
std::vector<Target> SupportedTargets();
// The target that the environment variable WITHY_CPU_TARGET names, if it is supported; else the
// best supported one.
Target BestTarget();
// The kernels of `target`; nullptr if it is not supported.
const Kernels* KernelsFor(Target target);
// The kernels of BestTarget().
const Kernels& DefaultKernels();
// Finds the supported target whose Kernels::name is `name`; false if there is none.
bool ParseTarget(std::string_view name, Target* target);

// Rotation frequencies base^(-2i / rope_dims), i < rope_dims / 2, divided by linear_factor and by
// factors[i], unless `factors` is null (llama3 scaling, from a file's rope_freqs tensor).
std::vector<float> RopeFrequencies(int rope_dims, double base, double linear_factor,
                                   const float* factors);
// Factors for rope(). angles[0 .. rope_dims): scale * cos(position * frequency[i]), which
// multiplies the dimension itself. The next rope_dims floats multiply the dimension that it is
// paired with: -scale * sin for the first of a pair, scale * sin for the second. interleaved: pairs
// (2i, 2i + 1), else (i, i + rope_dims / 2).
void RopeAngles(const std::vector<float>& frequencies, float scale, int position, bool interleaved,
                float* angles);

}  // namespace withy::engine
