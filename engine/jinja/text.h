// A string that knows where each of its bytes comes from: the template itself, or data given to it
// (a message, a tool, a date). Every operation of the interpreter keeps this, so that whoever
// encodes the result can tell markup from users' text. Neighbour: value.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"

namespace withy::jinja {

// Sources of bytes. Values >= 0 are chosen by the caller, a message's index for example.
inline constexpr int32_t kFromTemplate = -1;
inline constexpr int32_t kFromData = -2;  // data without a number of its own

class Text {
 public:
  // A part with one source. `offset`: position of its first byte in that source's text; 0 for the
  // template's.
  struct Piece {
    std::string_view text;
    int32_t source = kFromTemplate;
    size_t offset = 0;
  };

  Text() = default;
  // Copies `bytes`.
  explicit Text(std::string_view bytes, int32_t source = kFromTemplate);

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // About how many bytes of memory it takes: each change of source does, too.
  size_t weight() const { return bytes_.size() + kRunWeight * runs_.size(); }

  void Append(std::string_view bytes, int32_t source = kFromTemplate);
  void Append(const Text& other) { Append(other, 0, other.size()); }
  // Bytes [begin, end) of another text.
  void Append(const Text& other, size_t begin, size_t end);
  // Other bytes in place of `from`'s byte at `at`: they have its source.
  void AppendInPlaceOf(const Text& from, size_t at, std::string_view bytes);

  Text Sub(size_t begin, size_t end) const;
  // The whole text in order; neighbouring pieces differ in source or do not continue each other.
  std::vector<Piece> Pieces() const;

 private:
  static constexpr size_t kRunWeight = 8;
  struct Run {
    size_t begin = 0;
    int32_t source = kFromTemplate;
    size_t offset = 0;
  };
  const Run& RunAt(size_t at) const;
  void Continue(int32_t source, size_t offset);

  std::string bytes_;
  absl::InlinedVector<Run, 1> runs_;  // ascending; empty only if bytes_ is
};

}  // namespace withy::jinja
