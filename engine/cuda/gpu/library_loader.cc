#include "engine/cuda/gpu/library_loader.h"

#include <dlfcn.h>

namespace withy::engine::cuda {

LibraryLoader DynamicLoader() {
  return {.open = [](const char* name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); },
          .symbol = [](void* library, const char* name) { return dlsym(library, name); },
          .close = [](void* library) { dlclose(library); }};
}

}  // namespace withy::engine::cuda
