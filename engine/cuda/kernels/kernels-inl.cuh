// All kernels and their launches, for one body of device-inl.cuh. Included by kernels.cu (nvcc) and
// on_cpu/kernels_on_cpu.cc (g++).
// clang-format off
#include "engine/cuda/kernels/elementwise-inl.cuh"
#include "engine/cuda/kernels/product-inl.cuh"
#include "engine/cuda/kernels/store_kv-inl.cuh"
#include "engine/cuda/kernels/attention-inl.cuh"
#include "engine/cuda/kernels/attention_tile-inl.cuh"
#include "engine/cuda/kernels/attention_tile_values-inl.cuh"
#include "engine/cuda/kernels/merge-inl.cuh"
#include "engine/cuda/kernels/dense-inl.cuh"
#include "engine/cuda/kernels/memory-inl.cuh"
#include "engine/cuda/kernels/stamp-inl.cuh"
// clang-format on
#include "engine/cuda/kernels/kernels.h"

namespace withy::engine::WITHY_GPU {

constexpr bool kEarly = true;  // LaunchShape::early: the kernel calls WaitForPrior

template <typename Args>
void Launch(const char* name, void (*kernel)(Args), Grid grid, int threads, size_t shared_bytes,
            LaunchSink& to, const Args& args, bool early = false) {
  to.Take({name, reinterpret_cast<const void*>(kernel), CallOf<Args>(), grid, threads,
           static_cast<uint32_t>(shared_bytes), early},
          args);
}

inline void Repack(LaunchSink& to, const PackedArgs& args) {
  const int warps = kThreads / 32;
  Launch("repack", RepackKernel, {(args.blocks + warps - 1) / warps, args.tiles, 1}, kThreads, 0,
         to, args);
}

inline void Embed(LaunchSink& to, const EmbedArgs& args, int rows) {
  Launch("embed", EmbedKernel, {rows, 1, 1}, kThreads, 0, to, args, kEarly);
}

inline void Norm(LaunchSink& to, const NormArgs& args, int rows) {
  Launch("norm", NormKernel, {rows, 1, 1}, kThreads, 0, to, args, kEarly);
}

template <int R, bool kMma, bool kFused>
inline void LaunchProducts(LaunchSink& to, const ProductArgs& args) {
  const char* const name = kFused ? "gate_up" : "product";
  Launch(name, ProductKernel<R, kMma, kFused>, {(args.rows + R - 1) / R, args.strips, 1}, kThreads,
         sizeof(float) * ProductSharedFloats(R, kFused), to, args, kEarly);
}

inline void Products(LaunchSink& to, const ProductArgs& args, ProductPath path, bool fused) {
  if (path == ProductPath::kMma && args.rows > 8) {
    return fused ? LaunchProducts<16, true, true>(to, args)
                 : LaunchProducts<16, true, false>(to, args);
  }
  if (path == ProductPath::kMma) {
    return fused ? LaunchProducts<8, true, true>(to, args)
                 : LaunchProducts<8, true, false>(to, args);
  }
  if (args.rows == 1) {
    return fused ? LaunchProducts<1, false, true>(to, args)
                 : LaunchProducts<1, false, false>(to, args);
  }
  return fused ? LaunchProducts<4, false, true>(to, args)
               : LaunchProducts<4, false, false>(to, args);
}

inline void StoreKv(LaunchSink& to, const StoreKvArgs& args) {
  const int heads = 2 * args.shape.kv_heads + (args.queries > 0 ? args.shape.heads : 0);
  Launch("store_kv", StoreKvKernel, {(heads + kHeadWarps - 1) / kHeadWarps, args.rows, 1},
         kHeadWarps * 32, sizeof(float) * kHeadWarps * kMaxHeadDim, to, args, kEarly);
}

inline void Gather(LaunchSink& to, const GatherArgs& args) {
  Launch("gather", GatherKernel, {args.shape.kv_heads, args.count, 1}, 64, 0, to, args, kEarly);
}

inline void CopyKv(LaunchSink& to, const KvCopyArgs& args) {
  Launch("copy_kv", CopyKvKernel, {args.count, 1, 1}, kThreads, 0, to, args);
}

inline void Keep(LaunchSink& to, const KeepArgs& args) {
  Launch("keep", KeepKernel, {(args.width + kThreads - 1) / kThreads, 1, 1}, kThreads, 0, to, args,
         kEarly);
}

inline void Attend(LaunchSink& to, const AttendArgs& args) {
  Launch("attend", AttendKernel, {args.tile_runs, args.shape.kv_heads, args.tile_count}, kThreads,
         sizeof(AttendShared), to, args, kEarly);
}

inline void AttendTiles(LaunchSink& to, const AttendArgs& args) {
  const Shape& s = args.shape;
  const size_t shared = TileSharedBytes(s.head_dim, args.tile_rows * (s.heads / s.kv_heads),
                                        args.bias.pairs != nullptr);
  Launch("attend_tiles", s.head_dim <= 128 ? AttendTilesKernel<4> : AttendTilesKernel<8>,
         {args.tile_runs, s.kv_heads, args.tile_count}, kThreads, shared, to, args, kEarly);
}

template <int kShares>
inline void LaunchMerge(LaunchSink& to, const AttendArgs& args) {
  constexpr int kHeads = kHeadWarps / kShares;  // of a thread block
  Launch("merge", MergeKernel<kShares>, {(args.shape.heads + kHeads - 1) / kHeads, args.rows, 1},
         kHeadWarps * 32, kShares > 1 ? sizeof(float) * kHeads * kMaxHeadDim : 0, to, args, kEarly);
}

inline void Merge(LaunchSink& to, const AttendArgs& args) {
  constexpr int kManyHeads = 1024;  // that keep a card busy by a warp each
  return args.rows * args.shape.heads < kManyHeads ? LaunchMerge<kHeadWarps>(to, args)
                                                   : LaunchMerge<1>(to, args);
}

inline void Stamp(LaunchSink& to, const StampArgs& args) {
  Launch("stamp", StampKernel, {1, 1, 1}, kStampThreads, 0, to, args, kEarly);
}

inline void FillMemory(LaunchSink& to, const MemoryArgs& args) {
  Launch("fill_memory", FillMemoryKernel, {args.blocks, 1, 1}, kThreads, 0, to, args);
}

inline void ReadMemory(LaunchSink& to, const MemoryArgs& args) {
  Launch("read_memory", ReadMemoryKernel, {args.blocks, 1, 1}, kThreads,
         kThreads / 32 * sizeof(int32_t), to, args);
}

inline void DenseWeights(LaunchSink& to, const DenseArgs& args) {
  Launch("dense_weights", DenseWeightsKernel,
         {args.strips * kStripTiles * (args.fused ? 2 : 1), kDenseSplits, 1}, kThreads,
         sizeof(float) * kDenseSharedFloats, to, args);
}

inline void DenseInputs(LaunchSink& to, const DenseArgs& args) {
  Launch("dense_inputs", DenseInputsKernel, {args.rows, 1, 1}, kThreads,
         sizeof(float) * kDenseSharedFloats, to, args);
}

inline void DenseFinish(LaunchSink& to, const DenseArgs& args) {
  constexpr int kRows = kThreads / 32;
  Launch("dense_finish", args.fused ? DenseFinishKernel<true> : DenseFinishKernel<false>,
         {(args.rows + kRows - 1) / kRows, (args.strips + kDenseStrips - 1) / kDenseStrips, 1},
         kThreads, 0, to, args);
}

inline constexpr Kernels kKernels = {Repack,      Embed,      Norm,       Products,   StoreKv,
                                     Gather,      CopyKv,     Keep,       Attend,     AttendTiles,
                                     Merge,       Stamp,      FillMemory, ReadMemory, DenseWeights,
                                     DenseInputs, DenseFinish};

}  // namespace withy::engine::WITHY_GPU
