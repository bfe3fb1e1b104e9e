// Arrays aligned to a cache line that only grow: scratch of kernels and their callers.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace withy::engine {

inline constexpr size_t kAlignment = 64;

// Owns an array of trivially copyable T, 64-byte aligned. Newly allocated contents are zero. Not
// thread-safe.
template <typename T>
class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(size_t count) { Resize(count); }

  // Sets the size. Loses the contents if `count` exceeds every earlier size.
  void Resize(size_t count) {
    if (count > capacity_) {
      data_.reset();
      data_.reset(new (std::align_val_t(kAlignment)) T[count]());
      capacity_ = count;
    }
    size_ = count;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }

 private:
  struct Deleter {
    void operator()(T* p) const { ::operator delete[](p, std::align_val_t(kAlignment)); }
  };
  std::unique_ptr<T[], Deleter> data_;
  size_t capacity_ = 0;
  size_t size_ = 0;
};

}  // namespace withy::engine
