// Text from a file or a path on its way into a message: protobuf's strings and JSON are UTF-8, and
// one that is not fails the whole message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace withy {

// Bytes of a name that is shown; longer ones are cut.
inline constexpr size_t kMaxShownBytes = 256;

// `text` with every byte that belongs to no valid character (stray, overlong, surrogate,
// unfinished, above U+10FFFF) as U+FFFD; characters behind the first `max_bytes` of the result are
// left out.
std::string ValidUtf8(std::string_view text, size_t max_bytes = std::string_view::npos);

}  // namespace withy
