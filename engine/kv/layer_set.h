// A set of a model's layers, small enough to be part of KvGeometry. Neighbour: block.h.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace withy::engine {

// Layers [0, kMost).
class KvLayerSet {
 public:
  static constexpr int kMost = 256;

  constexpr void Add(int layer) { words_[Word(layer)] |= Bit(layer); }
  constexpr void Remove(int layer) { words_[Word(layer)] &= ~Bit(layer); }
  constexpr bool Has(int layer) const {
    return layer >= 0 && layer < kMost && (words_[Word(layer)] & Bit(layer)) != 0;
  }
  // Number of layers below `layer` that are in the set.
  constexpr int CountBelow(int layer) const {
    int count = 0;
    for (int word = 0; word < kWords && layer > 64 * word; ++word) {
      const int bits = layer - 64 * word;
      const uint64_t mask = bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
      count += std::popcount(words_[static_cast<size_t>(word)] & mask);
    }
    return count;
  }
  constexpr bool empty() const { return CountBelow(kMost) == 0; }

  bool operator==(const KvLayerSet&) const = default;

 private:
  static constexpr int kWords = kMost / 64;
  static constexpr size_t Word(int layer) { return static_cast<size_t>(layer) / 64; }
  static constexpr uint64_t Bit(int layer) { return uint64_t{1} << (layer % 64); }

  std::array<uint64_t, kWords> words_ = {};
};

}  // namespace withy::engine
