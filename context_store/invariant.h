// What must hold if our own code is right. Anything that a user, a disk or a network can cause is a
// Status instead.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace withy::context_store {

// Ends the process, saying `what`, unless `holds`.
inline void Invariant(bool holds, const char* what) {
  if (holds) [[likely]]
    return;
  std::fprintf(stderr, "context_store: broken invariant: %s\n", what);
  std::abort();
}

}  // namespace withy::context_store
