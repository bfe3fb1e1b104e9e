// Finds the texts of special tokens inside a text: leftmost, longest first.
// Neighbours: vocab.h uses it before a text is cut into words.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace withy::engine {

struct SpecialMatch {
  int32_t id = 0;
  uint32_t begin = 0;  // bytes of the text
  uint32_t end = 0;
};

// Texts given to Add() must outlive it. Thread-safe once filled.
class SpecialMatcher {
 public:
  // `control`: only found where control tokens are wanted. `strip_after`: a match takes the white
  // space after it.
  void Add(std::string_view text, int32_t id, bool control, bool strip_after);

  // Appends the matches in text[begin, end), positions relative to `text`. Time: O(bytes ·
  // different lengths) at worst.
  void Find(std::string_view text, uint32_t begin, uint32_t end, bool with_control,
            std::vector<SpecialMatch>& out) const;

 private:
  struct Entry {
    int32_t id;
    bool control;
    bool strip_after;
  };
  const Entry* LongestAt(std::string_view rest, bool with_control, uint32_t* length) const;

  absl::flat_hash_map<absl::string_view, Entry> entries_;
  std::vector<uint32_t> lengths_[256];  // by first byte, longest first
};

}  // namespace withy::engine
