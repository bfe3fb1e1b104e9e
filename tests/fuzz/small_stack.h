// Fuzz targets run on a stack as small as those of a server's threads, so that a recursion over the
// input without a bound is a finding. Sanitizers make frames wider, for which base/stack_left.h
// keeps a larger reserve: less of the stack is left to use then, and it ends earlier.
#pragma once

#include <cstdlib>
#include <functional>

#include "base/stack_left.h"

namespace withy {

inline void OnSmallStack(const std::function<void()>& work) {
  if (!RunOnStack(kSmallStackBytes, work)) std::abort();
}

}  // namespace withy
