// Sizes in whole units: pages, blocks, rows of a tile.
#pragma once

#include <type_traits>

namespace withy {

// The smallest multiple of `unit` (> 0) that is at least `n` (>= 0).
template <class T>
constexpr T RoundUp(T n, std::type_identity_t<T> unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace withy
