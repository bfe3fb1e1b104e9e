// Says what a file is that is not a GGUF file, by its first bytes, and what to do. Neighbour:
// parser.cc, which refuses such files.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace withy::engine {

// For people: "it is a safetensors file: convert …". `bytes`: the whole file. Reads only its
// beginning.
std::string DescribeForeignFile(std::span<const uint8_t> bytes);

}  // namespace withy::engine
