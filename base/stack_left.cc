#include "base/stack_left.h"

#include <pthread.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace withy {
namespace {

constexpr uintptr_t kAssumedBytes = 64 << 10;

// The main thread's stack grows until its rlimit, which counts the pages of arguments and
// environment above it, and the system keeps a gap below it.
constexpr uintptr_t kMargin = 4096;

// The lowest address of this thread's stack that may be used.
uintptr_t FindLowest(uintptr_t here) {
  pthread_attr_t attributes;
  void* lowest = nullptr;
  size_t bytes = 0;
  bool known = pthread_getattr_np(pthread_self(), &attributes) == 0;
  if (known) {
    known = pthread_attr_getstack(&attributes, &lowest, &bytes) == 0;
    pthread_attr_destroy(&attributes);
  }
  const auto address = reinterpret_cast<uintptr_t>(lowest);
  if (!known || address >= here) return here - std::min(here, kAssumedBytes);
  return address + kMargin;
}

}  // namespace

// The frame's address is on the thread's own stack even where a sanitizer keeps locals elsewhere.
size_t StackLeft() {
  static constinit thread_local uintptr_t lowest = 0;
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  if (lowest == 0) lowest = FindLowest(here);
  return here > lowest ? here - lowest : 0;
}

bool RunOnStack(size_t bytes, const std::function<void()>& work) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  const auto run = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  pthread_t thread;
  const bool started =
      pthread_attr_setstacksize(&attributes, bytes) == 0 &&
      pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&work)) == 0;
  pthread_attr_destroy(&attributes);
  return started && pthread_join(thread, nullptr) == 0;
}

absl::Status StackExhausted(std::string_view what) {
  return absl::ResourceExhaustedError(
      absl::StrCat(ToAbsl(what), " is nested too deep: ", StackLeft() >> 10,
                   " KiB of this thread's stack are left, and ", kStackReserveBytes >> 10,
                   " KiB must be: make it flatter"));
}

}  // namespace withy
