// The body of cuda/device-inl.cuh that runs in on_cpu/runner.h. Collectives of a warp take all 32
// lanes.
#pragma once

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/ticks.h"
#include "engine/cpu/types.h"
#include "engine/cuda/on_cpu/runner.h"

#define WITHY_GPU gpu_on_cpu
#define WITHY_DEVICE [[maybe_unused]] inline
#define WITHY_GLOBAL [[maybe_unused]] inline
#define WITHY_THREADS(n)
#define WITHY_BLOCKS(n, blocks)

namespace withy::engine::gpu_on_cpu {

using on_cpu::Site;

struct alignas(16) Words4 {
  uint32_t w[4];
};
struct alignas(8) Words2 {
  uint32_t w[2];
};

WITHY_DEVICE int ThreadX() { return on_cpu::current->index; }
WITHY_DEVICE int BlockX() { return on_cpu::current->runner->block().x; }
WITHY_DEVICE int BlockY() { return on_cpu::current->runner->block().y; }
WITHY_DEVICE int BlockZ() { return on_cpu::current->runner->block().z; }

WITHY_DEVICE uint64_t GlobalTimer() { return static_cast<uint64_t>(SteadyNowNs()); }

// Null while nothing is watched.
WITHY_DEVICE on_cpu::Watch* Watching() { return on_cpu::watching; }
WITHY_DEVICE void Tell(on_cpu::Instruction kind) {
  if (Watching() != nullptr && on_cpu::current->lane == 0) Watching()->OnInstruction(kind);
}

WITHY_DEVICE void LetNextStart() {}
WITHY_DEVICE void WaitForPrior() {}

WITHY_DEVICE void SyncBlock(const Site& site = Site::Here()) {
  Tell(on_cpu::Instruction::kBarrier);
  on_cpu::current->StopAt(on_cpu::Stop::kBlock, site);
}
WITHY_DEVICE void SyncWarp(const Site& site = Site::Here()) {
  on_cpu::current->StopAt(on_cpu::Stop::kWarp, site);
}

WITHY_DEVICE uint8_t* SharedMemory() {
  return reinterpret_cast<uint8_t*>(on_cpu::current->runner->shared());
}
template <typename T>
WITHY_DEVICE T Read(const T* p, const Site& site) {
  if (Watching() != nullptr &&
      !Watching()->OnAccess(on_cpu::current->index, p, sizeof(T), alignof(T), false, site)) {
    return T{};
  }
  return *p;
}
template <typename T>
WITHY_DEVICE void Write(T* p, T v, const Site& site) {
  if (Watching() != nullptr &&
      !Watching()->OnAccess(on_cpu::current->index, p, sizeof(T), alignof(T), true, site)) {
    return;
  }
  *p = v;
}
template <typename T>
WITHY_DEVICE T LoadShared(const T* p, const Site& site = Site::Here()) {
  return Read(p, site);
}
template <typename T>
WITHY_DEVICE void StoreShared(T* p, T v, const Site& site = Site::Here()) {
  Write(p, v, site);
}
template <typename T>
WITHY_DEVICE T Load(const T* p, const Site& site = Site::Here()) {
  return Read(p, site);
}
template <typename T>
WITHY_DEVICE T LoadConst(const T* p, const Site& site = Site::Here()) {
  return Read(p, site);
}
WITHY_DEVICE Words4 LoadStream(const Words4* p, const Site& site = Site::Here()) {
  return Read(p, site);
}
template <typename T>
WITHY_DEVICE void Store(T* p, T v, const Site& site = Site::Here()) {
  Write(p, v, site);
}

// The value that each lane of the warp gives, in `lane`.
template <typename T>
WITHY_DEVICE T Shuffle(T v, int lane, const Site& site = Site::Here()) {
  static_assert(sizeof(T) == 4);
  Tell(on_cpu::Instruction::kShuffle);
  on_cpu::Thread& thread = *on_cpu::current;
  auto& slots = thread.NextSlots();
  slots[static_cast<size_t>(thread.lane)].words[0] = std::bit_cast<uint32_t>(v);
  thread.StopAt(on_cpu::Stop::kWarp, site);
  return std::bit_cast<T>(slots[static_cast<size_t>(lane % on_cpu::kWarpLanes)].words[0]);
}
template <typename T>
WITHY_DEVICE T ShuffleXor(T v, int distance, const Site& site = Site::Here()) {
  return Shuffle(v, on_cpu::current->lane ^ distance, site);
}
WITHY_DEVICE uint32_t Ballot(bool v, const Site& site = Site::Here()) {
  Tell(on_cpu::Instruction::kShuffle);
  on_cpu::Thread& thread = *on_cpu::current;
  auto& slots = thread.NextSlots();
  slots[static_cast<size_t>(thread.lane)].words[0] = v ? 1 : 0;
  thread.StopAt(on_cpu::Stop::kWarp, site);
  uint32_t bits = 0;
  for (size_t i = 0; i < slots.size(); ++i) bits |= slots[i].words[0] << i;
  return bits;
}

WITHY_DEVICE int32_t Dot4(uint32_t a, uint32_t b) {
  return static_cast<int8_t>(a) * static_cast<int8_t>(b) +
         static_cast<int8_t>(a >> 8) * static_cast<int8_t>(b >> 8) +
         static_cast<int8_t>(a >> 16) * static_cast<int8_t>(b >> 16) +
         static_cast<int8_t>(a >> 24) * static_cast<int8_t>(b >> 24);
}
WITHY_DEVICE int32_t Dp4a(uint32_t a, uint32_t b, int32_t c) {
  Tell(on_cpu::Instruction::kDp4a);
  return static_cast<int32_t>(static_cast<uint32_t>(c) + static_cast<uint32_t>(Dot4(a, b)));
}

// Fragments as PTX has them (mma.m16n8k32, .s8): lane 4g + t has of A the rows g (a[0], a[2]) and
// g + 8 (a[1], a[3]), columns 4t (a[0], a[1]) and 16 + 4t (a[2], a[3]); of B column g, rows 4t
// (b[0]) and 16 + 4t (b[1]); of C the rows g (c[0], c[1]) and g + 8 (c[2], c[3]), columns 2t and
// 2t + 1.
WITHY_DEVICE void MmaS8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                        const Site& site = Site::Here()) {
  Tell(on_cpu::Instruction::kMma);
  on_cpu::Thread& thread = *on_cpu::current;
  auto& slots = thread.NextSlots();
  uint32_t* mine = slots[static_cast<size_t>(thread.lane)].words;
  std::memcpy(mine, a, sizeof a);
  std::memcpy(mine + 4, b, sizeof b);
  thread.StopAt(on_cpu::Stop::kWarp, site);
  const auto row = static_cast<size_t>(thread.lane / 4);
  const auto column = static_cast<size_t>(thread.lane % 4 * 2);
  for (size_t t = 0; t < 4; ++t) {
    const uint32_t* of_row = slots[row * 4 + t].words;
    for (size_t n = 0; n < 2; ++n) {
      const uint32_t* of_column = slots[(column + n) * 4 + t].words + 4;
      c[n] += Dot4(of_row[0], of_column[0]) + Dot4(of_row[2], of_column[1]);
      c[n + 2] += Dot4(of_row[1], of_column[0]) + Dot4(of_row[3], of_column[1]);
    }
  }
}

// Combines the values of all lanes, lanes 16 apart first. One collective takes the place of five
// shuffles and gives their bits.
template <typename T, typename Op>
WITHY_DEVICE T WarpCombine(T v, Op op, const Site& site) {
  for (int i = 0; i < 5; ++i) Tell(on_cpu::Instruction::kShuffle);
  on_cpu::Thread& thread = *on_cpu::current;
  on_cpu::Warp& warp = *thread.warp;
  auto& slots = thread.NextSlots();
  const uint32_t turn = thread.turn;
  slots[static_cast<size_t>(thread.lane)].words[0] = std::bit_cast<uint32_t>(v);
  thread.StopAt(on_cpu::Stop::kWarp, site);
  if (warp.combined_turn != turn) {
    T values[on_cpu::kWarpLanes];
    for (size_t i = 0; i < slots.size(); ++i) values[i] = std::bit_cast<T>(slots[i].words[0]);
    for (size_t d = 16; d > 0; d /= 2) {
      for (size_t i = 0; i < d; ++i) values[i] = op(values[i], values[i + d]);
    }
    warp.combined = std::bit_cast<uint32_t>(values[0]);
    warp.combined_turn = turn;
  }
  return std::bit_cast<T>(warp.combined);
}
WITHY_DEVICE float WarpSum(float v, const Site& site = Site::Here()) {
  return WarpCombine(
      v, [](float a, float b) { return a + b; }, site);
}
WITHY_DEVICE int32_t WarpSum(int32_t v, const Site& site = Site::Here()) {
  return WarpCombine(
      v, [](int32_t a, int32_t b) { return a + b; }, site);
}
WITHY_DEVICE float WarpMax(float v, const Site& site = Site::Here()) {
  return WarpCombine(
      v, [](float a, float b) { return a > b ? a : b; }, site);
}

WITHY_DEVICE float Fma(float a, float b, float c) { return std::fma(a, b, c); }
WITHY_DEVICE float Divide(float a, float b) { return a / b; }
WITHY_DEVICE float SquareRoot(float a) { return std::sqrt(a); }
WITHY_DEVICE float Max(float a, float b) { return a > b ? a : b; }
WITHY_DEVICE float Abs(float a) { return std::fabs(a); }
WITHY_DEVICE int32_t FloatBits(float v) { return std::bit_cast<int32_t>(v); }
WITHY_DEVICE float BitsFloat(int32_t v) { return std::bit_cast<float>(v); }
#if defined(__F16C__)
WITHY_DEVICE float HalfFloat(uint16_t v) { return _cvtsh_ss(v); }
#else
WITHY_DEVICE float HalfFloat(uint16_t v) { return F16ToF32(v); }
#endif
WITHY_DEVICE uint16_t FloatHalf(float v) { return F32ToF16(v); }
WITHY_DEVICE uint32_t HalfPair(float low, float high) {
  return FloatHalf(low) | static_cast<uint32_t>(FloatHalf(high)) << 16;
}

}  // namespace withy::engine::gpu_on_cpu
