// A lock-free queue of spans between one producer thread and one consumer, over memory owned by the
// caller: the recorder uses its file, the reader its own mapping of the same file.
//
// Neither side trusts the other's index: slots are taken modulo the capacity, so a wrong index
// loses spans but never touches memory outside the ring.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "telemetry/layout.h"

namespace withy::telemetry {

// The producer side. One thread at a time.
class RingProducer {
 public:
  RingProducer() = default;
  // `capacity` is a power of two; `slots` has `capacity` elements.
  RingProducer(RingControl* control, const ReadIndex* read, Span* slots, uint32_t capacity)
      : control_(control),
        read_(read),
        slots_(slots),
        capacity_(capacity),
        write_(control->write_index.load(std::memory_order_acquire)),
        known_read_(read->value.load(std::memory_order_acquire)) {}

  // Appends `span` with this thread. If the ring is full, counts a drop and returns false.
  bool Push(const Span& span, uint32_t thread) {
    if (write_ - known_read_ >= capacity_ && !MakeRoom()) return false;
    Span& slot = slots_[write_ & (capacity_ - 1)];
    slot = span;
    slot.thread = thread;
    control_->write_index.store(++write_, std::memory_order_release);
    return true;
  }

 private:
  bool MakeRoom() {
    known_read_ = read_->value.load(std::memory_order_acquire);
    if (write_ - known_read_ < capacity_) return true;
    control_->dropped.store(control_->dropped.load(std::memory_order_relaxed) + 1,
                            std::memory_order_relaxed);
    return false;
  }

  RingControl* control_ = nullptr;
  const ReadIndex* read_ = nullptr;
  Span* slots_ = nullptr;
  uint64_t capacity_ = 0;
  uint64_t write_ = 0;
  uint64_t known_read_ = 0;
};

// The consumer side. One thread at a time. The caller decides how spans are copied: by memcpy from
// a mapping or by reading the file.
class RingConsumer {
 public:
  RingConsumer() = default;
  // `capacity` is a power of two.
  RingConsumer(const RingControl* control, ReadIndex* read, uint32_t capacity)
      : control_(control), read_(read), capacity_(capacity) {}

  // Copies the unread spans out, oldest first, then frees their slots. `fetch(slot, count)` copies
  // `count` adjacent slots from `slot` on. It is called at most twice, and not again after it has
  // returned false (then no slot is freed). Returns the number of spans taken; 0 if a fetch failed;
  // -1 if the indices are invalid (more unread spans than slots), after skipping to the producer.
  template <typename Fetch>
  int64_t Drain(Fetch&& fetch) {
    const uint64_t write = control_->write_index.load(std::memory_order_acquire);
    const uint64_t read = read_->value.load(std::memory_order_relaxed);
    const uint64_t count = write - read;
    if (count == 0) return 0;
    if (count > capacity_) {
      read_->value.store(write, std::memory_order_release);
      return -1;
    }
    const uint64_t slot = read & (capacity_ - 1);
    const uint64_t first = std::min(count, capacity_ - slot);
    if (!fetch(static_cast<size_t>(slot), static_cast<size_t>(first))) return 0;
    if (first < count && !fetch(size_t{0}, static_cast<size_t>(count - first))) return 0;
    read_->value.store(write, std::memory_order_release);
    return static_cast<int64_t>(count);
  }

 private:
  const RingControl* control_ = nullptr;
  ReadIndex* read_ = nullptr;
  uint64_t capacity_ = 0;
};

}  // namespace withy::telemetry
