// Writes and checks memory as fast as it goes, to find out which ways to memory are right and how
// fast. Included by kernels-inl.cuh.
namespace withy::engine::WITHY_GPU {

inline constexpr int kMemoryAtOnce = 4;  // 128-bit loads of a thread on their way

// Writes the pattern.
WITHY_GLOBAL void WITHY_THREADS(kThreads) FillMemoryKernel(MemoryArgs args) {
  auto* const to = reinterpret_cast<Words4*>(args.memory);
  for (int64_t i = int64_t{BlockX()} * kThreads + ThreadX(); i < args.count;
       i += int64_t{args.blocks} * kThreads) {
    Words4 v;
#pragma unroll
    for (int j = 0; j < 4; ++j) v.w[j] = MemoryPattern(static_cast<uint32_t>(4 * i + j), args.seed);
    Store(to + i, v);
  }
}

// Counts the words of each block that are not the pattern's.
WITHY_GLOBAL void WITHY_THREADS(kThreads) ReadMemoryKernel(MemoryArgs args) {
  const auto* const from = reinterpret_cast<const Words4*>(args.memory);
  const int64_t stride = int64_t{args.blocks} * kThreads;
  int32_t wrong = 0;
  for (int64_t i = int64_t{BlockX()} * kThreads + ThreadX(); i < args.count;
       i += kMemoryAtOnce * stride) {
    Words4 v[kMemoryAtOnce];
#pragma unroll
    for (int n = 0; n < kMemoryAtOnce; ++n) {
      const int64_t at = i + n * stride;
      v[n] = LoadStream(from + (at < args.count ? at : i));
    }
#pragma unroll
    for (int n = 0; n < kMemoryAtOnce; ++n) {
      const int64_t at = i + n * stride;
      if (at >= args.count) break;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        wrong += v[n].w[j] != MemoryPattern(static_cast<uint32_t>(4 * at + j), args.seed) ? 1 : 0;
      }
    }
  }
  auto* const sums = reinterpret_cast<int32_t*>(SharedMemory());
  wrong = WarpSum(wrong);
  if (ThreadX() % 32 == 0) StoreShared(sums + ThreadX() / 32, wrong);
  SyncBlock();
  if (ThreadX() != 0) return;
  int32_t sum = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) sum += LoadShared(sums + warp);
  Store(args.wrong + BlockX(), sum);
}

}  // namespace withy::engine::WITHY_GPU
