// Hashes checksums into identities of files and models. Neighbours: packer.cc (model_id) and
// source_identity.cc. Does not resist forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace withy::engine {

// FNV-1a with a final mix. Different seeds give different values for the same bytes.
class Hasher {
 public:
  explicit Hasher(uint64_t seed) : state_(0xcbf29ce484222325u ^ (seed * 0x9e3779b97f4a7c15u)) {}
  void Add(std::span<const std::byte> bytes) {
    for (std::byte b : bytes) state_ = (state_ ^ static_cast<uint64_t>(b)) * 0x100000001b3u;
  }
  uint64_t Finish() const {
    uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

 private:
  uint64_t state_;
};

}  // namespace withy::engine
