// All kernels and their launches, for one body of device-inl.cuh. Included by kernels.cu (nvcc) and
// on_cpu/kernels_on_cpu.cc (g++), which define Launch(name, kernel, grid, threads, shared bytes,
// stream, arguments) before it.
// clang-format off
#include "engine/cuda/elementwise-inl.cuh"
#include "engine/cuda/product-inl.cuh"
#include "engine/cuda/store_kv-inl.cuh"
#include "engine/cuda/attention-inl.cuh"
#include "engine/cuda/attention_tile-inl.cuh"
#include "engine/cuda/attention_tile_values-inl.cuh"
#include "engine/cuda/merge-inl.cuh"
// clang-format on
#include "engine/cuda/kernels.h"

namespace withy::engine::WITHY_GPU {

inline void Repack(void* stream, const PackedArgs& args) {
  const int warps = kThreads / 32;
  Launch("repack", RepackKernel, {(args.blocks + warps - 1) / warps, args.tiles, 1}, kThreads, 0,
         stream, args);
}

inline void Embed(void* stream, const EmbedArgs& args, int rows) {
  Launch("embed", EmbedKernel, {rows, 1, 1}, kThreads, 0, stream, args);
}

inline void Norm(void* stream, const NormArgs& args, int rows) {
  Launch("norm", NormKernel, {rows, 1, 1}, kThreads, 0, stream, args);
}

template <int R, bool kMma, bool kFused>
inline void LaunchProducts(void* stream, const ProductArgs& args) {
  const char* const name = kFused ? "gate_up" : "product";
  Launch(name, ProductKernel<R, kMma, kFused>, {(args.rows + R - 1) / R, args.strips, 1}, kThreads,
         sizeof(float) * ProductSharedFloats(R, kFused), stream, args);
}

inline void Products(void* stream, const ProductArgs& args, ProductPath path, bool fused) {
  if (path == ProductPath::kMma && args.rows > 8) {
    return fused ? LaunchProducts<16, true, true>(stream, args)
                 : LaunchProducts<16, true, false>(stream, args);
  }
  if (path == ProductPath::kMma) {
    return fused ? LaunchProducts<8, true, true>(stream, args)
                 : LaunchProducts<8, true, false>(stream, args);
  }
  if (args.rows == 1) {
    return fused ? LaunchProducts<1, false, true>(stream, args)
                 : LaunchProducts<1, false, false>(stream, args);
  }
  return fused ? LaunchProducts<4, false, true>(stream, args)
               : LaunchProducts<4, false, false>(stream, args);
}

inline void StoreKv(void* stream, const StoreKvArgs& args) {
  const int heads = 2 * args.shape.kv_heads + (args.queries > 0 ? args.shape.heads : 0);
  Launch("store_kv", StoreKvKernel, {(heads + kHeadWarps - 1) / kHeadWarps, args.rows, 1},
         kHeadWarps * 32, sizeof(float) * kHeadWarps * kMaxHeadDim, stream, args);
}

inline void Gather(void* stream, const GatherArgs& args) {
  Launch("gather", GatherKernel, {args.shape.kv_heads, args.count, 1}, 64, 0, stream, args);
}

inline void Keep(void* stream, const KeepArgs& args) {
  Launch("keep", KeepKernel, {(args.width + kThreads - 1) / kThreads, 1, 1}, kThreads, 0, stream,
         args);
}

inline void Attend(void* stream, const AttendArgs& args) {
  Launch("attend", AttendKernel, {args.tile_runs, args.shape.kv_heads, args.tile_count}, kThreads,
         sizeof(AttendShared), stream, args);
}

inline void AttendTiles(void* stream, const AttendArgs& args) {
  const Shape& s = args.shape;
  const size_t shared = TileSharedBytes(s.head_dim, args.tile_rows * (s.heads / s.kv_heads),
                                        args.bias.pairs != nullptr);
  Launch("attend_tiles", s.head_dim <= 128 ? AttendTilesKernel<4> : AttendTilesKernel<8>,
         {args.tile_runs, s.kv_heads, args.tile_count}, kThreads, shared, stream, args);
}

template <int kShares>
inline void LaunchMerge(void* stream, const AttendArgs& args) {
  constexpr int kHeads = kHeadWarps / kShares;  // of a thread block
  Launch("merge", MergeKernel<kShares>, {(args.shape.heads + kHeads - 1) / kHeads, args.rows, 1},
         kHeadWarps * 32, kShares > 1 ? sizeof(float) * kHeads * kMaxHeadDim : 0, stream, args);
}

inline void Merge(void* stream, const AttendArgs& args) {
  constexpr int kManyHeads = 1024;  // that keep a card busy by a warp each
  return args.rows * args.shape.heads < kManyHeads ? LaunchMerge<kHeadWarps>(stream, args)
                                                   : LaunchMerge<1>(stream, args);
}

inline constexpr Kernels kKernels = {Repack, Embed, Norm,   Products,    StoreKv,
                                     Gather, Keep,  Attend, AttendTiles, Merge};

}  // namespace withy::engine::WITHY_GPU
