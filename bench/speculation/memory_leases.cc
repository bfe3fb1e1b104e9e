#include "bench/speculation/memory_leases.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/cpu/aligned.h"

namespace withy::bench {
namespace {

constexpr size_t kMostEvents = 64;

class OwnArena final : public serving::Arena {
 public:
  explicit OwnArena(size_t bytes) : bytes_(bytes) {}
  uint64_t epoch() const override { return 1; }
  engine::KvMemory memory() const override { return {bytes_.data(), bytes_.size()}; }

 private:
  mutable engine::AlignedArray<std::byte> bytes_;
};

}  // namespace

class MemoryLeases::Held final : public serving::Lease {
 public:
  Held(MemoryLeases& leases, std::shared_ptr<serving::LeaseEvents> events)
      : leases_(leases), events_(std::move(events)) {}

  void Begin(std::string /*app_id*/, uint64_t /*call_id*/, int32_t /*need_tokens*/) override {}
  void Share(serving::WantedChunks /*wanted*/) override {
    Tell([](serving::LeaseEvents& events) { events.OnShared({}); });
  }
  void Claim(int32_t first_chunk, int32_t chunks) override {
    std::vector<serving::ChunkSlot> slots = SlotsOf(first_chunk, chunks);
    std::string refused = slots.empty() ? "no free slots" : "";
    Tell([slots = std::move(slots), refused = std::move(refused)](serving::LeaseEvents& events) {
      events.OnClaimed(slots, refused);
    });
  }
  void Fault(int32_t /*chunk*/, std::string /*reason*/) override {}
  // Nothing is read, so that nobody asks.
  void Yield(int32_t /*computed_before*/, int32_t /*most*/) override {}
  void Commit(serving::LeaseCommit /*commit*/) override {
    Tell([](serving::LeaseEvents& events) { events.OnCommitted(); });
  }
  void Abort() override {}

  // None: there are too few.
  std::vector<serving::ChunkSlot> SlotsOf(int32_t first_chunk, int32_t chunks) const {
    if (first_chunk + chunks > leases_.chunks_) return {};
    const size_t bytes = leases_.geometry_.ChunkBytes(engine::KvFormat::kQ8);
    std::vector<serving::ChunkSlot> slots;
    for (int32_t chunk = first_chunk; chunk < first_chunk + chunks; ++chunk) {
      const size_t offset = static_cast<size_t>(chunk) * bytes;
      slots.push_back({.chunk = chunk,
                       .slot = {static_cast<uint32_t>(offset / engine::KvBlockName::kUnitBytes)}});
    }
    return slots;
  }

 private:
  template <typename Event>
  void Tell(Event event) {
    (void)leases_.events_.Post(
        [events = events_, event = std::move(event)]() mutable { event(*events); });
  }

  MemoryLeases& leases_;
  const std::shared_ptr<serving::LeaseEvents> events_;  // shared with what is still to be told
};

MemoryLeases::MemoryLeases(const engine::KvInfo& kv, int32_t chunks)
    : geometry_{.layers = kv.layers, .kv_heads = kv.kv_heads, .head_dim = kv.head_dim},
      chunks_(chunks),
      arena_(std::make_shared<OwnArena>(static_cast<size_t>(chunks) *
                                        geometry_.ChunkBytes(engine::KvFormat::kQ8))),
      events_(kMostEvents) {}

absl::StatusOr<std::shared_ptr<serving::Lease>> MemoryLeases::Open(
    serving::LeaseOpen open, std::shared_ptr<serving::LeaseEvents> events) {
  auto lease = std::make_shared<Held>(*this, events);
  serving::OpenedLease opened{.segments = {},
                              .resident = {},
                              // All that there are: no step's tree waits for a claim.
                              .claimed = lease->SlotsOf(0, std::max(open.claim_chunks, chunks_)),
                              .arena = arena_};
  if (!events_.Post([events, lease, opened = std::move(opened)]() mutable {
        events->OnOpened(lease, std::move(opened));
      })) {
    return absl::ResourceExhaustedError("too many events of leases wait");
  }
  return std::shared_ptr<serving::Lease>(std::move(lease));
}

}  // namespace withy::bench
