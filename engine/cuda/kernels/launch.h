// One kernel launch, and who takes it. Neighbours: kernels-inl.cuh makes launches, launch_queue.h
// plays lists of them again. Included by nvcc, too: plain C++ only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace withy::engine::cuda {

struct Grid {
  int x = 1;
  int y = 1;
  int z = 1;
  bool operator==(const Grid&) const = default;
};

struct LaunchShape {
  const char* name = "";
  const void* kernel = nullptr;
  void (*call)(const void* kernel, const void* args) = nullptr;  // of one thread, on the runner
  Grid grid;
  int threads = 0;  // of a block
  uint32_t shared_bytes = 0;
  // The kernel waits for the kernel before it by itself (WaitForPrior of device-inl.cuh), and may
  // start before that one has ended.
  bool early = false;
  bool operator==(const LaunchShape&) const = default;
};

// Takes the launches of one stream. For one thread at a time.
class LaunchSink {
 public:
  virtual ~LaunchSink() = default;

  template <typename Args>
  void Take(const LaunchShape& shape, const Args& args) {
    static_assert(std::is_trivially_copyable_v<Args> && alignof(Args) <= 16);
    Args copy = args;
#if defined(__GNUC__) && !defined(__clang__)
    __builtin_clear_padding(&copy);  // equal arguments have equal bytes
#endif
    TakeBytes(shape, &copy, sizeof copy);
  }

 private:
  // `args` is copied before it returns.
  virtual void TakeBytes(const LaunchShape& shape, const void* args, size_t bytes) = 0;
};

}  // namespace withy::engine::cuda
