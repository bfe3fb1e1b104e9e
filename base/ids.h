// Names that nobody can guess: ids of apps, contexts and calls, and secrets, all from the kernel's
// generator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace withy {

// `count` bytes from getrandom(2). Ends the process when the kernel has none to give, which Linux
// never does after boot.
std::string RandomBytes(size_t count);

// A random 64-bit number other than 0.
uint64_t RandomId64();

// "PREFIX_" and 32 hexadecimal digits (128 random bits), e.g. NewId("ctx").
std::string NewId(std::string_view prefix);

// Lower-case hexadecimal digits of `bytes`.
std::string ToHex(std::string_view bytes);

}  // namespace withy
