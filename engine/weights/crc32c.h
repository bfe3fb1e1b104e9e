// CRC32C (Castagnoli) of bytes, for packed files; the CPU's instruction where it has one, tables
// otherwise: same result. Neighbours: packer.cc, packed_file.cc and source_identity.cc. Not a
// defence against forgery.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace withy::engine {

// CRC32C of `crc`'s bytes followed by `bytes`; start with 0. Crc32c(0, "123456789") == 0xE3069283.
uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes);

// The table version, on any CPU; for tests.
uint32_t Crc32cPortable(uint32_t crc, std::span<const std::byte> bytes);

// Four sums over four interleaved lanes: lane i has the words of eight bytes i, i + 4, i + 8 …; the
// last bytes that make no four words are lane 0's. 128 bits, and four times as fast as one sum,
// whose every step waits for the one before.
std::array<uint32_t, 4> Crc32cLanes(std::span<const std::byte> bytes);
std::array<uint32_t, 4> Crc32cLanesPortable(std::span<const std::byte> bytes);

}  // namespace withy::engine
