// Shared libraries that are loaded when they are first wanted: nothing is linked with them, and no
// header of theirs is needed to build.
#pragma once

#include <functional>

namespace withy::engine::cuda {

// How a shared library is found; tests replace it.
struct LibraryLoader {
  std::function<void*(const char* name)> open;                   // null: there is none
  std::function<void*(void* library, const char* name)> symbol;  // null: it lacks this one
  std::function<void(void* library)> close;
};
LibraryLoader DynamicLoader();

}  // namespace withy::engine::cuda
