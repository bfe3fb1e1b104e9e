// FNV-1a over 64 bits, for fingerprints that processes and files compare. It does not resist
// deliberate collisions. Neighbours: files.cc hashes files, engine/tokenizer/vocab.cc vocabularies,
// engine/session/conversation.cc tokenizer and template.
#pragma once

#include <cstdint>
#include <string_view>

namespace withy {

class Fnv1a {
 public:
  void Add(std::string_view bytes) {
    AddBytes(bytes);
    Mix(0xFF);  // so that ("a", "b") and ("ab", "") differ
  }
  void Add(int32_t value) {
    for (int shift = 0; shift < 32; shift += 8) Mix(static_cast<uint8_t>(value >> shift));
  }
  // Continues the last string: AddBytes("a"), AddBytes("b") equals AddBytes("ab").
  void AddBytes(std::string_view bytes) {
    for (const char c : bytes) Mix(static_cast<uint8_t>(c));
  }
  uint64_t value() const { return value_; }

 private:
  void Mix(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001B3; }
  uint64_t value_ = 0xCBF29CE484222325;
};

}  // namespace withy
