#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace withy {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // reflected

using Lanes = std::array<uint32_t, 4>;
constexpr size_t kLaneStride = 8 * std::tuple_size_v<Lanes>;

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) ? kPolynomial : 0u);
    tables[0][i] = crc;
  }
  for (size_t t = 1; t < 8; ++t) {
    for (size_t i = 0; i < 256; ++i) {
      const uint32_t previous = tables[t - 1][i];
      tables[t][i] = (previous >> 8) ^ tables[0][previous & 0xFFu];
    }
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

#if defined(__x86_64__)
bool HasInstruction() { return __builtin_cpu_supports("sse4.2") != 0; }

__attribute__((target("sse4.2"))) uint32_t WithInstruction(uint32_t crc, const std::byte* data,
                                                           size_t size) {
  uint64_t state = ~crc;
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    state = _mm_crc32_u64(state, word);
  }
  uint32_t tail = static_cast<uint32_t>(state);
  for (; size > 0; ++data, --size) tail = _mm_crc32_u8(tail, static_cast<uint8_t>(*data));
  return ~tail;
}

__attribute__((target("sse4.2"))) size_t LanesWithInstruction(const std::byte* data, size_t size,
                                                              Lanes& sums) {
  uint64_t a = ~sums[0], b = ~sums[1], c = ~sums[2], d = ~sums[3];
  size_t at = 0;
  for (; at + kLaneStride <= size; at += kLaneStride) {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), data + at, kLaneStride);
    a = _mm_crc32_u64(a, words[0]);
    b = _mm_crc32_u64(b, words[1]);
    c = _mm_crc32_u64(c, words[2]);
    d = _mm_crc32_u64(d, words[3]);
  }
  sums = {~static_cast<uint32_t>(a), ~static_cast<uint32_t>(b), ~static_cast<uint32_t>(c),
          ~static_cast<uint32_t>(d)};
  return at;
}
#elif defined(__aarch64__)
bool HasInstruction() { return (getauxval(AT_HWCAP) & (1UL << 7)) != 0; }  // HWCAP_CRC32

__attribute__((target("+crc"))) uint32_t WithInstruction(uint32_t crc, const std::byte* data,
                                                         size_t size) {
  uint32_t state = ~crc;
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    state = __crc32cd(state, word);
  }
  for (; size > 0; ++data, --size) state = __crc32cb(state, static_cast<uint8_t>(*data));
  return ~state;
}

__attribute__((target("+crc"))) size_t LanesWithInstruction(const std::byte* data, size_t size,
                                                            Lanes& sums) {
  uint32_t a = ~sums[0], b = ~sums[1], c = ~sums[2], d = ~sums[3];
  size_t at = 0;
  for (; at + kLaneStride <= size; at += kLaneStride) {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), data + at, kLaneStride);
    a = __crc32cd(a, words[0]);
    b = __crc32cd(b, words[1]);
    c = __crc32cd(c, words[2]);
    d = __crc32cd(d, words[3]);
  }
  sums = {~a, ~b, ~c, ~d};
  return at;
}
#else
bool HasInstruction() { return false; }
uint32_t WithInstruction(uint32_t crc, const std::byte* data, size_t size) {
  return Crc32cPortable(crc, {data, size});
}
size_t LanesWithInstruction(const std::byte* /*data*/, size_t /*size*/, Lanes& /*sums*/) {
  return 0;
}
#endif

size_t LanesByTable(std::span<const std::byte> bytes, Lanes& sums) {
  size_t at = 0;
  for (; at + kLaneStride <= bytes.size(); at += kLaneStride) {
    for (size_t lane = 0; lane < sums.size(); ++lane) {
      sums[lane] = Crc32cPortable(sums[lane], bytes.subspan(at + 8 * lane, 8));
    }
  }
  return at;
}

}  // namespace

uint32_t Crc32cPortable(uint32_t crc, std::span<const std::byte> bytes) {
  const std::byte* data = bytes.data();
  size_t size = bytes.size();
  uint32_t state = ~crc;
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t word = 0;
    for (unsigned i = 0; i < 8; ++i) word |= static_cast<uint64_t>(data[i]) << (8 * i);
    word ^= state;
    uint32_t next = 0;
    for (unsigned i = 0; i < 8; ++i) next ^= kTables[7 - i][(word >> (8 * i)) & 0xFFu];
    state = next;
  }
  for (; size > 0; ++data, --size) {
    state = (state >> 8) ^ kTables[0][(state ^ static_cast<uint32_t>(*data)) & 0xFFu];
  }
  return ~state;
}

std::array<uint32_t, 4> Crc32cLanesPortable(std::span<const std::byte> bytes) {
  Lanes sums{};
  const size_t done = LanesByTable(bytes, sums);
  sums[0] = Crc32cPortable(sums[0], bytes.subspan(done));
  return sums;
}

std::array<uint32_t, 4> Crc32cLanes(std::span<const std::byte> bytes) {
  static const bool has_instruction = HasInstruction();
  if (!has_instruction) return Crc32cLanesPortable(bytes);
  Lanes sums{};
  const size_t done = LanesWithInstruction(bytes.data(), bytes.size(), sums);
  sums[0] = Crc32c(sums[0], bytes.subspan(done));
  return sums;
}

uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes) {
  static const bool has_instruction = HasInstruction();
  return has_instruction ? WithInstruction(crc, bytes.data(), bytes.size())
                         : Crc32cPortable(crc, bytes);
}

}  // namespace withy
