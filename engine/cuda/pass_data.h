// What the kernels of one pass read besides weights and activations: rows, block tables, extents,
// descriptions of products. Collected on the host and copied to the device at once. Neighbours:
// pass_inputs.cc fills it.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "engine/cuda/gpu/gpu.h"

namespace withy::engine::cuda {

// For one thread at a time.
class PassData {
 public:
  explicit PassData(Gpu& gpu) : gpu_(gpu), device_(gpu) {}

  // Forgets what it has and makes room for `bytes`, as the sum of Room() of what will be put.
  absl::Status Begin(size_t bytes) {
    host_.clear();
    host_.reserve(bytes);
    return device_.Reserve(bytes);
  }
  template <typename T>
  static constexpr size_t Room(size_t count) {
    return count * sizeof(T) + kAlignment;
  }
  // Room for `count` values, which Fill() gives later: for lists that contain addresses.
  template <typename T>
  T* Place(size_t count) {
    return const_cast<T*>(Put(std::vector<T>(count)));
  }
  template <typename T>
  void Fill(const T* place, const std::vector<T>& values) {
    const auto at = reinterpret_cast<const std::byte*>(place) - device_.as<std::byte>();
    std::memcpy(host_.data() + at, values.data(), values.size() * sizeof(T));
  }
  // Returns the address on the device at which a copy of `values` will be.
  template <typename T>
  const T* Put(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    host_.resize((host_.size() + kAlignment - 1) / kAlignment * kAlignment);
    const size_t at = host_.size();
    host_.resize(at + values.size_bytes());
    if (host_.size() > device_.bytes()) std::abort();  // Begin was given too little
    if (!values.empty()) std::memcpy(host_.data() + at, values.data(), values.size_bytes());
    return reinterpret_cast<const T*>(device_.as<std::byte>() + at);
  }
  template <typename T>
  const T* Put(const std::vector<T>& values) {
    return Put(std::span<const T>(values));
  }
  // Queues the copy.
  absl::Status Send() { return gpu_.Upload(device_.as<std::byte>(), host_.data(), host_.size()); }

 private:
  static constexpr size_t kAlignment = 16;

  Gpu& gpu_;
  std::vector<std::byte> host_;
  Buffer device_;
};

}  // namespace withy::engine::cuda
