// CRC32C (Castagnoli) of bytes, for packed files; the CPU's instruction where it has one, tables
// otherwise: same result. Neighbours: packed_writer.cc and packed_file.cc. Not a defence against
// forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace withy::engine {

// CRC32C of `crc`'s bytes followed by `bytes`; start with 0. Crc32c(0, "123456789") == 0xE3069283.
uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes);

// The table version, on any CPU; for tests.
uint32_t Crc32cPortable(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace withy::engine
