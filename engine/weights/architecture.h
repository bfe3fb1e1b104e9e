// What differs between architectures, as data: one entry for each that withy computes. The names
// and defaults are those of llama.cpp's GGUF files. Neighbours: shape.h joins an entry with the
// metadata of a file; nothing else asks for an architecture by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace withy::engine {

// Pairs of elements of a head that RoPE rotates, of n elements that it turns.
enum class RopePairing : uint8_t {
  kAdjacent,  // (2i, 2i+1); converters permute the rows of Q and K accordingly
  kHalves,    // (i, i + n/2)
};

// RMS norms of Q and K before RoPE.
enum class QkNorm : uint8_t {
  kNone,
  kHeads,  // of each head, with weights [head_dim]
  kWhole,  // of all heads together, with weights [q_rows] and [kv_rows]
};

struct Architecture {
  std::string_view name;
  RopePairing rope_pairing = RopePairing::kHalves;
  bool needs_qkv_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
};

// nullptr if withy does not compute it.
const Architecture* FindArchitecture(std::string_view name);

// "llama, qwen2, ..."
std::string SupportedArchitectures();

}  // namespace withy::engine
