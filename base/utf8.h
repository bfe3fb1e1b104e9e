// Makes text from files and paths valid UTF-8. Protobuf strings and JSON must be UTF-8; an invalid
// one makes the whole message fail.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace withy {

// Maximum bytes of a displayed name; longer names are cut.
inline constexpr size_t kMaxShownBytes = 256;

// `text` with every byte that is not part of a valid character (stray, overlong, surrogate,
// incomplete, above U+10FFFF) replaced by U+FFFD. Characters that would exceed `max_bytes` of the
// result are dropped.
std::string ValidUtf8(std::string_view text, size_t max_bytes = std::string_view::npos);

}  // namespace withy
