#include "telemetry/ring.h"

#include <cstring>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace withy::telemetry {
namespace {

// A ring in private memory. Both ends use the same addresses, so that a thread sanitizer sees
// races.
struct TestRing {
  explicit TestRing(uint32_t ring_capacity)
      : capacity(ring_capacity),
        slots(ring_capacity),
        producer(&control, &read, slots.data(), capacity) {}

  int64_t Drain(std::vector<Span>* out) {
    RingConsumer consumer(&control, &read, capacity);
    return consumer.Drain([&](size_t slot, size_t count) {
      out->insert(out->end(), slots.begin() + static_cast<ptrdiff_t>(slot),
                  slots.begin() + static_cast<ptrdiff_t>(slot + count));
      return true;
    });
  }

  uint32_t capacity;
  RingControl control{};
  ReadIndex read{};
  std::vector<Span> slots;
  RingProducer producer;
};

Span Numbered(uint64_t i) {
  Span span;
  span.call_id = i;
  span.value = ~i;
  span.started_ns = static_cast<int64_t>(i);
  span.ended_ns = static_cast<int64_t>(2 * i);
  return span;
}

TEST(RingTest, KeepsOrderAcrossWrapAround) {
  TestRing ring(64);
  uint64_t next = 0;
  std::vector<Span> out;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 41; ++i) ASSERT_TRUE(ring.producer.Push(Numbered(next++), 7));
    EXPECT_EQ(ring.Drain(&out), 41);
  }
  ASSERT_EQ(out.size(), next);
  for (uint64_t i = 0; i < next; ++i) EXPECT_EQ(out[i].call_id, i);
}

TEST(RingTest, CountsDropsWhenFullAndGoesOnAfterADrain) {
  TestRing ring(64);
  for (uint64_t i = 0; i < 64; ++i) ASSERT_TRUE(ring.producer.Push(Numbered(i), 7));
  for (uint64_t i = 64; i < 70; ++i) EXPECT_FALSE(ring.producer.Push(Numbered(i), 7));
  EXPECT_EQ(ring.control.dropped.load(), 6u);
  std::vector<Span> out;
  EXPECT_EQ(ring.Drain(&out), 64);
  EXPECT_EQ(out.back().call_id, 63u);  // the newest are dropped, not the waiting ones
  EXPECT_TRUE(ring.producer.Push(Numbered(70), 7));
}

TEST(RingTest, AnImpossibleWriteIndexCostsSpansOnly) {
  TestRing ring(64);
  ring.control.write_index.store(1u << 20);
  std::vector<Span> out;
  EXPECT_EQ(ring.Drain(&out), -1);
  EXPECT_TRUE(out.empty());
  EXPECT_EQ(ring.Drain(&out), 0);
}

TEST(RingTest, AnImpossibleReadIndexMakesTheProducerDrop) {
  TestRing ring(64);
  ring.read.value.store(1000);
  RingProducer producer(&ring.control, &ring.read, ring.slots.data(), ring.capacity);
  EXPECT_FALSE(producer.Push(Numbered(1), 7));
  EXPECT_EQ(ring.control.dropped.load(), 1u);
}

TEST(RingTest, AFailedFetchFreesNothing) {
  TestRing ring(64);
  ASSERT_TRUE(ring.producer.Push(Numbered(5), 7));
  RingConsumer consumer(&ring.control, &ring.read, ring.capacity);
  EXPECT_EQ(consumer.Drain([](size_t, size_t) { return false; }), 0);
  std::vector<Span> out;
  EXPECT_EQ(ring.Drain(&out), 1);
  EXPECT_EQ(out[0].call_id, 5u);
}

TEST(RingTest, ConcurrentProducerAndConsumerLoseNothingUncounted) {
  constexpr uint64_t kSpans = 200'000;
  TestRing ring(256);
  std::thread producer([&] {
    for (uint64_t i = 0; i < kSpans; ++i) ring.producer.Push(Numbered(i), 7);
  });
  std::vector<Span> out;
  uint64_t seen = 0;
  uint64_t last = 0;
  const auto drain = [&] {
    out.clear();
    ring.Drain(&out);
    for (const Span& span : out) {
      ASSERT_TRUE(seen == 0 || span.call_id > last);
      ASSERT_EQ(span.value, ~span.call_id);  // detects a torn span
      ASSERT_EQ(span.ended_ns, 2 * span.started_ns);
      last = span.call_id;
      ++seen;
    }
  };
  while (seen + ring.control.dropped.load() < kSpans && !HasFatalFailure()) drain();
  producer.join();
  drain();
  EXPECT_EQ(seen + ring.control.dropped.load(), kSpans);
  EXPECT_GT(seen, 0u);
}

}  // namespace
}  // namespace withy::telemetry
