// Destroys values that hold each other to any depth by a loop: a destructor that reaches the next
// level by a recursion needs a stack as deep as the value. Neighbour: stack_left.h, for functions
// that may refuse.
#pragma once

#include <utility>
#include <vector>

namespace withy {

// For the destructor of a type that holds others of its kind: destroys `parts`, moved out of it,
// before the outermost of such calls on this thread returns. Destructors of Parts may call it.
template <typename Parts>
void DestroyFlat(Parts parts) {
  static constinit thread_local std::vector<Parts>* pending = nullptr;
  if (pending != nullptr) {
    pending->push_back(std::move(parts));
    return;
  }
  std::vector<Parts> all;
  pending = &all;
  all.push_back(std::move(parts));
  while (!all.empty()) {
    const Parts destroyed = std::move(all.back());  // adds what it holds to `all`
    all.pop_back();
  }
  pending = nullptr;
}

}  // namespace withy
