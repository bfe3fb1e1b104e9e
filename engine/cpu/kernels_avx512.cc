// Kernels for AVX-512 with VNNI, with integer inner loops of their own. A strip of two tiles times
// up to six rows is twelve independent dpbusd chains; weights are the unsigned operand, activations
// the signed one. Compiled with AVX-512 flags; nothing here runs before Avx512VnniKernels() has
// checked the CPU.
#include <immintrin.h>

#define WITHY_TARGET avx512
#define WITHY_INLINE inline __attribute__((always_inline))

namespace withy::engine::avx512 {

typedef float NativeF __attribute__((vector_size(64)));
WITHY_INLINE NativeF NativeMulAdd(NativeF a, NativeF b, NativeF c) {
  return _mm512_fmadd_ps(a, b, c);
}
WITHY_INLINE NativeF NativeMax(NativeF a, NativeF b) { return _mm512_max_ps(a, b); }

}  // namespace withy::engine::avx512

// clang-format off
#include "engine/cpu/vec-inl.h"
// clang-format on
#include "engine/cpu/kernels.h"
#include "engine/cpu/strip.h"
#include "engine/cpu/targets.h"

namespace withy::engine::avx512 {

// An integer accumulator that starts at the bits of 1.5 * 2^23, read as a float, is 1.5 * 2^23 plus
// its sum (|sum| < 2^22). That saves the conversion.
inline constexpr int32_t kInitBias = 0x4b400000;
inline constexpr float kFloatBias = 12582912.0f;
inline constexpr int kFloatRows = 4;
inline constexpr int kFloatTiles = 2;
inline constexpr int kKvOffset = 128;
inline constexpr int kScoreQueries = 8;
inline constexpr int kValueQueries = 2;
inline constexpr int kLastValueQueries = 2;
inline constexpr int kValueTiles = 4;

WITHY_INLINE F16 Wrap(__m512 v) { return F16{{v}}; }
WITHY_INLINE F16 LoadHalves(const uint16_t* p) {
  return Wrap(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}
WITHY_INLINE F16 LoadBf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return Wrap(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)));
}
WITHY_INLINE I16 WidenBytes(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return I16{{(NativeI)_mm512_cvtepi8_epi32(bytes)}};
}
WITHY_INLINE void StoreBytes(I16 v, int8_t* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8((__m512i)v.part[0]));
}
// Reduces each of four vectors with `op`. First neighbouring lanes of two vectors, then of all
// four, are combined within 128 bits, where a shuffle takes one cycle; last the quarters.
template <typename V, typename Op>
WITHY_INLINE auto FoldLanes(V a, V b, V c, V d, Op op) {
  const auto pairs = [&](V x, V y) {
    return op(
        __builtin_shufflevector(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29),
        __builtin_shufflevector(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31));
  };
  const V low = pairs(a, b);
  const V high = pairs(c, d);
  V all = op(
      __builtin_shufflevector(low, high, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
      __builtin_shufflevector(low, high, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30,
                              31));
  all = op(all,
           __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  all = op(all,
           __builtin_shufflevector(all, all, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  return __builtin_shufflevector(all, all, 0, 1, 2, 3);
}
WITHY_INLINE F4 MaxLanes(const F16 (&v)[4]) {
  return FoldLanes(v[0].part[0], v[1].part[0], v[2].part[0], v[3].part[0],
                   [](NativeF a, NativeF b) { return NativeMax(a, b); });
}
WITHY_INLINE I4 SumLanes(const I16 (&v)[4]) {
  return FoldLanes(v[0].part[0], v[1].part[0], v[2].part[0], v[3].part[0],
                   [](NativeI a, NativeI b) { return a + b; });
}
// Copies the four bytes at p to every lane.
WITHY_INLINE __m512i Quad(const void* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof quad);
  return _mm512_set1_epi32(quad);
}
WITHY_INLINE I16 DotKv(I16 acc, const uint8_t* k, const int8_t* q) {
  return I16{{(NativeI)_mm512_dpbusd_epi32((__m512i)acc.part[0], _mm512_loadu_si512(k), Quad(q))}};
}
WITHY_INLINE I16 DotVp(I16 acc, const int8_t* v, const uint8_t* p) {
  return I16{{(NativeI)_mm512_dpbusd_epi32((__m512i)acc.part[0], Quad(p), _mm512_loadu_si512(v))}};
}
inline constexpr bool kNarrowSums = false;
using FieldSums = I16;
WITHY_INLINE I16 Widen(I16 sums) { return sums; }
WITHY_INLINE FieldSums DotFields(FieldSums sums, const B64& w, const void* quad) {
  return I16{{(NativeI)_mm512_dpbusd_epi32((__m512i)sums.part[0], (__m512i)w.part[0], Quad(quad))}};
}

template <WeightType kType>
inline constexpr size_t kBlockBytes = kType == WeightType::kQ8 ? 512 : 256;

// Addresses of the parts of one tile of a strip.
template <WeightType kType>
struct Tile {
  const uint16_t* scales;
  const uint16_t* mins;
  const uint8_t* quants;

  WITHY_INLINE void Set(const Strip& strip, int n) {
    const std::byte* tile = strip.tile + static_cast<size_t>(n) * strip.tile_bytes;
    const size_t meta = (static_cast<size_t>(strip.tile_blocks) * 32 + 63) / 64 * 64;
    scales = reinterpret_cast<const uint16_t*>(tile) + strip.begin * kTileRows;
    mins = reinterpret_cast<const uint16_t*>(tile + meta) + strip.begin * kTileRows;
    quants =
        reinterpret_cast<const uint8_t*>(tile + (kType == WeightType::kQ4M ? 2 * meta : meta)) +
        static_cast<size_t>(strip.begin) * kBlockBytes<kType>;
  }
};

// Cache lines to prefetch while blocks are computed. Each block fetches the next `lines` from
// `from` on; with two streams, also as many from `from` + `stride` on.
struct Fetch {
  const uint8_t* from = nullptr;
  size_t stride = 0;
  int lines = 0;
};

// The low and high halves of bytes, as kQ8 quants where they are indices of a table.
template <WeightType kType>
struct Nibbles {
  __m512i table;
  WITHY_INLINE Nibbles() {
    if constexpr (HasTable(kType)) {
      const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(TableOf(kType)));
      const __m128i offset = _mm_set1_epi8(static_cast<char>(128));
      // GCC takes the operand without a mask for uninitialised.
      table = _mm512_maskz_broadcast_i32x4(0xffff, _mm_xor_si128(values, offset));
    }
  }
  WITHY_INLINE __m512i Low(__m512i bytes) const {
    const __m512i nibbles = _mm512_and_si512(bytes, _mm512_set1_epi8(15));
    if constexpr (HasTable(kType)) return _mm512_shuffle_epi8(table, nibbles);
    return nibbles;
  }
  WITHY_INLINE __m512i High(__m512i bytes) const { return Low(_mm512_srli_epi16(bytes, 4)); }
};

// Multiplies `blocks` blocks of N tiles by T rows from row `first` on. kBytes: quants are bytes
// (kQ8, or nibbles unpacked before); otherwise they are nibbles, unpacked here.
template <WeightType kType, bool kBytes, int N, int T, int kStreams>
// One long function: GCC keeps the sums in registers in one function only.
__attribute__((noinline)) void Multiply(const Tile<kType>* tile, int blocks, int x_block,
                                        const StripRows& rows, int first, Fetch fetch) {
  constexpr int kLines = kBytes ? 8 : 4;
  const Activations& x = *rows.x;
  const int row = rows.row + first;
  const size_t a_stride = x.quant_stride();
  const size_t m_stride = x.meta_stride();
  const int8_t* a = x.quants(row) + x_block * kQuantBlock;
  const float* a_scale = x.scales(row) + x_block;
  const float* a_sum = x.sums(row) + x_block;
  const int32_t* init = (MultipliesAsQ8(kType) ? x.init8(row) : x.init4(row)) + x_block;
  const __m512 bias = _mm512_set1_ps(kFloatBias);
  const Nibbles<kType> nibbles;
  __m512 acc[N][T];
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const float* y = rows.y + (first + t) * rows.y_stride + n * kTileRows;
      acc[n][t] = rows.add ? _mm512_loadu_ps(y) : _mm512_setzero_ps();
    }
  }
  for (int b = 0; b < blocks; ++b, a += kQuantBlock) {
    for (int i = 0; i < fetch.lines; ++i, fetch.from += 64) {
      _mm_prefetch(fetch.from, _MM_HINT_T0);
      if constexpr (kStreams == 2) _mm_prefetch(fetch.from + fetch.stride, _MM_HINT_T0);
    }
    __m512i sum[N][T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const __m512i start = kType == WeightType::kQ4M
                                ? _mm512_set1_epi32(kInitBias)
                                : _mm512_set1_epi32(init[static_cast<size_t>(t) * m_stride + b]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sum[n][t] = start;
    }
#pragma GCC unroll 8
    for (int j = 0; j < kLines; ++j) {
      __m512i w[N];
      __m512i high[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        w[n] = _mm512_load_si512(tile[n].quants + (b * kLines + j) * 64);
        if constexpr (!kBytes) {
          high[n] = nibbles.High(w[n]);
          w[n] = nibbles.Low(w[n]);
        }
      }
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const int8_t* at = a + static_cast<size_t>(t) * a_stride + 4 * j;
        const __m512i quad = Quad(at);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) sum[n][t] = _mm512_dpbusd_epi32(sum[n][t], w[n], quad);
        if constexpr (!kBytes) {
          const __m512i upper = Quad(at + 16);
#pragma GCC unroll 8
          for (int n = 0; n < N; ++n) sum[n][t] = _mm512_dpbusd_epi32(sum[n][t], high[n], upper);
        }
      }
    }
    __m512 scale[N];
    __m512 offset[N];
    __m512 min[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      scale[n] = LoadHalves(tile[n].scales + b * kTileRows).part[0];
      offset[n] = _mm512_mul_ps(scale[n], bias);  // exact: 11 bits times 2
      if constexpr (kType == WeightType::kQ4M) {
        min[n] = LoadHalves(tile[n].mins + b * kTileRows).part[0];
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const __m512 xs = _mm512_set1_ps(a_scale[static_cast<size_t>(t) * m_stride + b]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        const __m512 product = _mm512_fmsub_ps(_mm512_castsi512_ps(sum[n][t]), scale[n], offset[n]);
        acc[n][t] = _mm512_fmadd_ps(product, xs, acc[n][t]);
        if constexpr (kType == WeightType::kQ4M) {
          const __m512 xsum = _mm512_set1_ps(a_sum[static_cast<size_t>(t) * m_stride + b]);
          acc[n][t] = _mm512_fmadd_ps(min[n], xsum, acc[n][t]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      _mm512_storeu_ps(rows.y + (first + t) * rows.y_stride + n * kTileRows, acc[n][t]);
    }
  }
}

// Memory needed after the current blocks: `bytes` at `from` and, with two streams, as many at
// `from` + `stride`.
struct Upcoming {
  const uint8_t* from = nullptr;
  size_t bytes = 0;
  size_t stride = 0;
};

// Multiplies a few blocks by all rows, in groups of six. Each group prefetches its share of `next`.
template <WeightType kType, bool kBytes, int N, int kStreams>
inline void MultiplyRows(const Tile<kType>* tile, int blocks, int x_block, const StripRows& rows,
                         const Upcoming& next) {
  const int groups = (rows.rows + 5) / 6;
  const int share = static_cast<int>(next.bytes / 64) / groups + 1;
  Fetch fetch{next.from, next.stride, next.from == nullptr ? 0 : (share + blocks - 1) / blocks};
  for (int r = 0; r < rows.rows; r += 6) {
    switch (rows.rows - r) {
      case 1:
        Multiply<kType, kBytes, N, 1, kStreams>(tile, blocks, x_block, rows, r, fetch);
        break;
      case 2:
        Multiply<kType, kBytes, N, 2, kStreams>(tile, blocks, x_block, rows, r, fetch);
        break;
      case 3:
        Multiply<kType, kBytes, N, 3, kStreams>(tile, blocks, x_block, rows, r, fetch);
        break;
      case 4:
        Multiply<kType, kBytes, N, 4, kStreams>(tile, blocks, x_block, rows, r, fetch);
        break;
      case 5:
        Multiply<kType, kBytes, N, 5, kStreams>(tile, blocks, x_block, rows, r, fetch);
        break;
      default:
        Multiply<kType, kBytes, N, 6, kStreams>(tile, blocks, x_block, rows, r, fetch);
        break;
    }
    if (fetch.lines > 0) fetch.from += share * 64;
  }
}

// Up to six rows read a tile once, so memory limits the speed. Memory is fastest when lines are
// requested in address order, scales included. So tiles are computed one at a time, with prefetches
// kFetchAhead bytes ahead. Tiles shorter than that are computed in pairs, which prefetch the whole
// next pair.
template <WeightType kType, int N>
inline void MultiplyFew(const Tile<kType>* tile, const Strip& strip, StripRows rows) {
  constexpr bool kBytes = kType == WeightType::kQ8;
  const int blocks = strip.end - strip.begin;
  if (strip.tile_bytes <= kFetchAhead && strip.next != nullptr) {
    const Upcoming next{reinterpret_cast<const uint8_t*>(strip.next), N * strip.tile_bytes - 64};
    return MultiplyRows<kType, kBytes, N, 1>(tile, blocks, strip.x_block, rows, next);
  }
  for (int n = 0; n < N; ++n, rows.y += kTileRows) {
    const Upcoming next{reinterpret_cast<const uint8_t*>(strip.tile) +
                            static_cast<size_t>(n) * strip.tile_bytes + kFetchAhead,
                        strip.tile_bytes - 64};
    MultiplyRows<kType, kBytes, 1, 1>(tile + n, blocks, strip.x_block, rows, next);
  }
}

inline constexpr int kUnpackRows = 12;   // from this many rows on, nibbles are unpacked first
inline constexpr int kPieceBlocks = 16;  // those of two tiles fill half a first-level cache

// Unpacks the nibbles of `blocks` blocks to bytes in the order of kQ8.
template <WeightType kType>
WITHY_INLINE void Unpack(const uint8_t* p, int blocks, uint8_t* out) {
  const Nibbles<kType> nibbles;
  for (int b = 0; b < blocks; ++b, p += 256, out += 512) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i w = _mm512_load_si512(p + 64 * j);
      _mm512_store_si512(out + 64 * j, nibbles.Low(w));
      _mm512_store_si512(out + 64 * j + 256, nibbles.High(w));
    }
  }
}

// More than six rows: takes tiles in pieces that stay in the first-level cache for all groups.
template <WeightType kType, int N>
inline void MultiplyMany(const Tile<kType>* tile, const Strip& strip, StripRows rows) {
  const bool unpack = kType != WeightType::kQ8 && rows.rows >= kUnpackRows;
  alignas(64) uint8_t buffer[kType == WeightType::kQ8 ? 1 : N]
                            [kType == WeightType::kQ8 ? 1 : kPieceBlocks * 512];
  const int blocks = strip.end - strip.begin;
  for (int at = 0; at < blocks; at += kPieceBlocks) {
    const int count = blocks - at < kPieceBlocks ? blocks - at : kPieceBlocks;
    const int after = blocks - at - count < kPieceBlocks ? blocks - at - count : kPieceBlocks;
    const size_t at_bytes = static_cast<size_t>(at) * kBlockBytes<kType>;
    Upcoming next;
    if (after > 0) {
      next = {tile[0].quants + at_bytes + static_cast<size_t>(count) * kBlockBytes<kType>,
              static_cast<size_t>(after) * kBlockBytes<kType>, strip.tile_bytes};
    } else if (strip.next != nullptr) {
      const size_t start =
          static_cast<size_t>(tile[0].quants - reinterpret_cast<const uint8_t*>(strip.tile));
      next = {reinterpret_cast<const uint8_t*>(strip.next),
              start + static_cast<size_t>(kPieceBlocks) * kBlockBytes<kType>, strip.tile_bytes};
      if (next.bytes > strip.tile_bytes) next.bytes = strip.tile_bytes;
    }
    Tile<kType> part[N];
    for (int n = 0; n < N; ++n) {
      part[n] = {tile[n].scales + at * kTileRows, tile[n].mins + at * kTileRows,
                 tile[n].quants + at_bytes};
      if (unpack) {
        Unpack<kType>(part[n].quants, count, buffer[n]);
        part[n].quants = buffer[n];
      }
    }
    if (kType == WeightType::kQ8 || unpack) {
      MultiplyRows<kType, true, N, N>(part, count, strip.x_block + at, rows, next);
    } else {
      MultiplyRows<kType, false, N, N>(part, count, strip.x_block + at, rows, next);
    }
    rows.add = true;
  }
}

template <WeightType kType, int N>
inline void StripOf(const Strip& strip, const StripRows& rows) {
  Tile<kType> tile[N];
  for (int n = 0; n < N; ++n) tile[n].Set(strip, n);
  if (rows.rows <= 6) return MultiplyFew<kType, N>(tile, strip, rows);
  MultiplyMany<kType, N>(tile, strip, rows);
}

template <WeightType kType>
inline void QuantStrip(const Strip& strip, const StripRows& rows) {
  if (strip.tiles == 2) return StripOf<kType, 2>(strip, rows);
  StripOf<kType, 1>(strip, rows);
}

inline constexpr int kPeakChains = 12;
using PeakBytes = __m512i;
WITHY_INLINE PeakBytes LoadPeak(const int32_t* p) { return _mm512_loadu_si512(p); }
WITHY_INLINE I16 PeakStep(I16 acc, PeakBytes w) {
  return I16{{(NativeI)_mm512_dpbusd_epi32((__m512i)acc.part[0], w, w)}};
}

}  // namespace withy::engine::avx512

// clang-format off
#include "engine/cpu/rotate-inl.h"
#include "engine/cpu/elementwise-inl.h"
#include "engine/cpu/matmul-inl.h"
#include "engine/cpu/attention-inl.h"
#include "engine/cpu/ceilings-inl.h"
// clang-format on

namespace withy::engine {

const Kernels* Avx512VnniKernels() {
  static constexpr Kernels kTable = {Target::kAvx512Vnni, "avx512vnni",      avx512::Prepare,
                                     avx512::MatMul,      avx512::Attention, avx512::MergeAttention,
                                     avx512::WriteKv,     avx512::RmsNorm,   avx512::Rope,
                                     avx512::SwiGlu,      avx512::GeGlu,     avx512::ClampedSwiGlu,
                                     avx512::SoftCap,     avx512::Add,       avx512::AddScaled,
                                     avx512::Dot,         avx512::CutOff,    avx512::AddLowRank,
                                     avx512::Softmax,     avx512::PeakLoop,  avx512::ReadLoop};
  static const bool kSupported =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni");
  return kSupported ? &kTable : nullptr;
}

}  // namespace withy::engine
