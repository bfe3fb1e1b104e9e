#include "engine/weights/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace withy::engine {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // reflected

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
#else
bool HasInstruction() { return false; }
uint32_t WithInstruction(uint32_t crc, const std::byte* data, size_t size) {
  return Crc32cPortable(crc, {data, size});
}
#endif

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

uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes) {
  static const bool has_instruction = HasInstruction();
  return has_instruction ? WithInstruction(crc, bytes.data(), bytes.size())
                         : Crc32cPortable(crc, bytes);
}

}  // namespace withy::engine
