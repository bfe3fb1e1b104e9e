// Checks invariants of our own code. Errors that a user, disk or network can cause are Statuses.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace withy::context_store {

// Ends the process with message `what` unless `holds`.
inline void Invariant(bool holds, const char* what) {
  if (holds) [[likely]]
    return;
  std::fprintf(stderr, "context_store: broken invariant: %s\n", what);
  std::abort();
}

}  // namespace withy::context_store
