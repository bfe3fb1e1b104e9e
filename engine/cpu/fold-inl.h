// Reduces four vectors at once to their largest lanes or their sums: lane i of the result belongs
// to vector i. Included by kernels_*.cc after vec-inl.h; AVX-512 has its own version.
namespace withy::engine::WITHY_TARGET {

template <typename V4, typename Fold>
WITHY_INLINE V4 FoldLanes(const V4 (&quarters)[4][4], Fold fold) {
  V4 rows[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const V4* q = quarters[i];
    rows[i] = fold(fold(q[0], q[2]), fold(q[1], q[3]));
  }
  const V4 low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const V4 high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const V4 low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const V4 high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  const V4 even = fold(__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                       __builtin_shufflevector(high01, high23, 0, 1, 4, 5));
  const V4 odd = fold(__builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                      __builtin_shufflevector(high01, high23, 2, 3, 6, 7));
  return fold(even, odd);
}
WITHY_INLINE F4 MaxLanes(const F16 (&v)[4]) {
  F4 quarters[4][4];
  std::memcpy(quarters, v, sizeof quarters);
  return FoldLanes(quarters, [](F4 a, F4 b) { return a > b ? a : b; });
}
WITHY_INLINE I4 SumLanes(const I16 (&v)[4]) {
  I4 quarters[4][4];
  std::memcpy(quarters, v, sizeof quarters);
  return FoldLanes(quarters, [](I4 a, I4 b) { return a + b; });
}

}  // namespace withy::engine::WITHY_TARGET
