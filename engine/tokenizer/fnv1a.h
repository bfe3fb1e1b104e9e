// A hash for fingerprints that processes compare: FNV-1a over 64 bits. Not a defence against
// anybody. Neighbours: vocab.cc hashes vocabularies, session/conversation.cc what they make of
// text.
#pragma once

#include <cstdint>
#include <string_view>

namespace withy::engine {

class Fnv1a {
 public:
  void Add(std::string_view bytes) {
    for (const char c : bytes) Mix(static_cast<uint8_t>(c));
    Mix(0xFF);  // so that ("a", "b") and ("ab", "") differ
  }
  void Add(int32_t value) {
    for (int shift = 0; shift < 32; shift += 8) Mix(static_cast<uint8_t>(value >> shift));
  }
  uint64_t value() const { return value_; }

 private:
  void Mix(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001B3; }
  uint64_t value_ = 0xCBF29CE484222325;
};

}  // namespace withy::engine
