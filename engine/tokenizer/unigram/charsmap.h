// A precompiled_charsmap: the rules by which SentencePiece changes text before it looks for tokens,
// such as full-width letters to plain ones. Neighbours: unigram.cc applies it. The bytes are u32 N,
// then a double array (Darts) of N bytes, little endian, then replacements that end with NUL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace withy::engine {

// Immutable and thread-safe.
class Charsmap {
 public:
  static constexpr size_t kMaxBytes = size_t{4} << 20;  // published ones have a quarter MiB

  // Changes nothing.
  Charsmap() = default;

  // Visits every rule, so that Find() needs no checks. Errors: INVALID_ARGUMENT, without the name
  // of the file: what is wrong, and where.
  static absl::StatusOr<Charsmap> Parse(std::vector<uint8_t> bytes);

  struct Rule {
    size_t bytes = 0;  // of the text that is replaced; 0: no rule is for it
    std::string_view replacement;
  };
  // The rule for the longest beginning of `text`.
  Rule Find(std::string_view text) const;

 private:
  absl::Status Check() const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace withy::engine
