// CRC32C (Castagnoli). Uses the CPU's instruction if available, else tables; both give the same
// result. Does not resist forgery.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace withy {

// CRC32C of the bytes summed in `crc` followed by `bytes`; start with 0.
// Crc32c(0, "123456789") == 0xE3069283.
uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes);

// The table version on any CPU; for tests.
uint32_t Crc32cPortable(uint32_t crc, std::span<const std::byte> bytes);

// Four sums over four interleaved lanes. Lane i has the 8-byte words i, i + 4, i + 8 …; remaining
// bytes that do not fill four words go to lane 0. 128 bits in total, and four times as fast as one
// sum, where every step waits for the previous one.
std::array<uint32_t, 4> Crc32cLanes(std::span<const std::byte> bytes);
std::array<uint32_t, 4> Crc32cLanesPortable(std::span<const std::byte> bytes);

}  // namespace withy
