// The fixture of the tests of LeaseTable and IdleKv: a table with room for ten chunks of 8 bits,
// and a worker that has attached.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "context_store/lease/lease_audit_testing.h"
#include "context_store/lease/lease_table.h"

namespace withy::context_store {

inline constexpr uint32_t kLayers = 3;

inline Geometry LeaseGeometry(char model = 'm') {
  Geometry geometry{std::string(32, model), kLayers, 1, 16, 0};
  geometry.block_bytes = static_cast<uint32_t>(geometry.kv().BlockBytes(KvFormat::kQ8));
  return geometry;
}
inline const uint64_t kSlotBytes = LeaseGeometry().ChunkBytes(KvFormat::kQ8);
inline LeaseLimits MakeLimits(uint32_t chunks) {
  return {.arena_bytes = chunks * kSlotBytes, .open = 100, .waiting = 3};
}
inline std::vector<ChunkIdentity> Chunks(uint32_t full, uint32_t tail_tokens = 0, char id = 'i') {
  std::vector<ChunkIdentity> chunks(full, {std::string(32, id), kChunkTokens, 100});
  if (tail_tokens > 0) chunks.push_back({std::string(32, id), tail_tokens, 100});
  return chunks;
}
inline bool AnyStamp(KvSlot, uint64_t) { return true; }

class LeaseTableTest : public ::testing::Test {
 protected:
  LeaseTableTest() { epoch_ = table_.Attach(kWorker, LeaseGeometry())->epoch; }
  ~LeaseTableTest() override { EXPECT_EQ(AuditLeases(table_.state()), ""); }

  LeaseId Open(std::string_view context) {
    const auto opening = table_.Open({.epoch = epoch_, .context_id = context});
    EXPECT_TRUE(opening.ok()) << opening.status();
    return opening->id;
  }
  // A claim that would have to wait is refused.
  absl::StatusOr<std::vector<ChunkSlot>> Claim(LeaseId lease, uint32_t first, uint32_t count) {
    auto answer = table_.Claim(lease, first, count, &evicted_, /*may_wait=*/false);
    if (!answer.ok()) return answer.status();
    return std::move(answer->chunks);
  }
  Effects Commit(LeaseId lease, std::vector<ChunkIdentity> chunks) {
    const auto begun = table_.BeginCommit(lease, std::move(chunks), AnyStamp);
    EXPECT_TRUE(begun.ok()) << begun.status();
    return table_.FinishCommit(lease, true);
  }
  // Creates a context with the given chunks.
  void Fill(std::string_view context, uint32_t full, uint32_t tail = 0) {
    const LeaseId lease = Open(context);
    ASSERT_TRUE(Claim(lease, 0, full + (tail > 0 ? 1 : 0)).ok());
    Commit(lease, Chunks(full, tail));
  }
  size_t ResidentChunks(std::string_view context) {
    return table_.kv().KvOf(context).resident_bytes / kSlotBytes;
  }
  uint64_t FreeChunks() const { return table_.kv().pool.counts().free / kSlotBytes; }
  uint64_t QuarantinedChunks() const { return table_.kv().pool.counts().quarantined / kSlotBytes; }
  bool AllFree() const { return table_.kv().pool.counts().free == table_.kv().pool.counts().total; }

  static constexpr WorkerInstance kWorker = 11;
  static constexpr WorkerInstance kOther = 22;
  LeaseTable table_{MakeLimits(10), 1000};
  uint64_t epoch_ = 0;
  uint64_t evicted_ = 0;
};

}  // namespace withy::context_store
