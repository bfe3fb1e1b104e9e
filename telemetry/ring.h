// The lock-free queue of spans between one producer thread and one consumer: the algorithm, over
// memory that somebody else owns. The recorder lays it over its file, the reader over its own
// mapping of the same file.
//
// Neither side trusts the other's index: slots are taken modulo the capacity, so a wrong index
// costs spans and never touches memory outside the ring.
#pragma once

#include <cstddef>
#include <cstdint>

#include "telemetry/layout.h"

namespace withy::telemetry {

// The producer's end. One thread at a time.
class RingProducer {
 public:
  RingProducer() = default;
  // `capacity` is a power of two; `slots` has that many.
  RingProducer(RingControl* control, const ReadIndex* read, Span* slots, uint32_t capacity)
      : control_(control),
        read_(read),
        slots_(slots),
        capacity_(capacity),
        write_(control->write_index.load(std::memory_order_acquire)),
        known_read_(read->value.load(std::memory_order_acquire)) {}

  // Appends `span`; false and one drop counted when the ring is full.
  bool Push(const Span& span) {
    if (write_ - known_read_ >= capacity_) {
      known_read_ = read_->value.load(std::memory_order_acquire);
      if (write_ - known_read_ >= capacity_) {
        control_->dropped.store(control_->dropped.load(std::memory_order_relaxed) + 1,
                                std::memory_order_relaxed);
        return false;
      }
    }
    slots_[write_ & (capacity_ - 1)] = span;
    control_->write_index.store(++write_, std::memory_order_release);
    return true;
  }

 private:
  RingControl* control_ = nullptr;
  const ReadIndex* read_ = nullptr;
  Span* slots_ = nullptr;
  uint64_t capacity_ = 0;
  uint64_t write_ = 0;
  uint64_t known_read_ = 0;
};

// The consumer's end. One thread at a time.
class RingConsumer {
 public:
  RingConsumer(const RingControl* control, ReadIndex* read, const Span* slots, uint32_t capacity)
      : control_(control), read_(read), slots_(slots), capacity_(capacity) {}

  // Calls `take(span)` for each new span, oldest first, then frees their slots. Returns how many;
  // when the indices cannot be right (more unread spans than slots) takes none, catches up with the
  // producer and returns -1.
  template <typename Take>
  int64_t Drain(Take&& take) {
    const uint64_t write = control_->write_index.load(std::memory_order_acquire);
    const uint64_t read = read_->value.load(std::memory_order_relaxed);
    const uint64_t count = write - read;
    if (count > capacity_) {
      read_->value.store(write, std::memory_order_release);
      return -1;
    }
    for (uint64_t i = read; i != write; ++i) {
      const Span copy = slots_[i & (capacity_ - 1)];
      take(copy);
    }
    if (count > 0) read_->value.store(write, std::memory_order_release);
    return static_cast<int64_t>(count);
  }

 private:
  const RingControl* control_;
  ReadIndex* read_;
  const Span* slots_;
  uint64_t capacity_;
};

}  // namespace withy::telemetry
