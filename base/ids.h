// Unguessable names: ids of apps, contexts and calls, and secrets. All randomness comes from the
// kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace withy {

// Returns `count` bytes from getrandom(2). Ends the process if the kernel has none, which does not
// happen on Linux after boot.
std::string RandomBytes(size_t count);

// A random 64-bit number, never 0.
uint64_t RandomId64();

// "PREFIX_" and 32 hexadecimal digits (128 random bits), e.g. NewId("ctx").
std::string NewId(std::string_view prefix);

// Lower-case hexadecimal digits of `bytes`.
std::string ToHex(std::string_view bytes);

}  // namespace withy
