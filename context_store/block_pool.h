// Ownership of the arena's blocks: a pure allocator over block numbers. It knows no bytes, contexts
// or files. Every block has exactly one owner. Neighbour: lease_table.h moves blocks between leases
// and contexts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace withy::context_store {

using BlockIds = std::vector<uint32_t>;

// Not thread-safe: guarded by its owner's lock. A transition that is not listed below is a bug of
// the caller and ends the process.
class BlockPool {
 public:
  //  kFree --Claim--> kClaimed --Keep--> kResident --Take--> kClaimed
  //  kClaimed, kResident --Free--> kFree;  kClaimed, kResident --Quarantine--> kQuarantined
  //  kQuarantined --Release--> kFree
  enum class State : uint8_t { kFree, kClaimed, kResident, kQuarantined };

  struct Counts {
    uint32_t total = 0;
    uint32_t free = 0;
    uint32_t claimed = 0;
    uint32_t resident = 0;
    uint32_t quarantined = 0;
  };

  // Resets the pool to `blocks` free blocks.
  void Reset(uint32_t blocks);

  // Appends `count` free blocks to `*claimed` for `owner` (a lease). If fewer are free, claims
  // nothing and returns false.
  [[nodiscard]] bool Claim(uint32_t count, uint64_t owner, BlockIds* claimed);
  // Moves a lease's blocks to its context.
  void Keep(std::span<const uint32_t> blocks);
  // Moves a context's blocks to `owner` (a lease).
  void Take(std::span<const uint32_t> blocks, uint64_t owner);
  void Free(std::span<const uint32_t> blocks);
  // Withholds these blocks until `writer` (a worker) can no longer write to them.
  void Quarantine(std::span<const uint32_t> blocks, uint64_t writer);
  // Frees all blocks quarantined for `writer`; returns their number.
  uint32_t Release(uint64_t writer);

  const Counts& counts() const { return counts_; }
  State state(uint32_t block) const { return blocks_[block].state; }
  // The lease or worker of a claimed or quarantined block.
  uint64_t owner(uint32_t block) const { return blocks_[block].owner; }

 private:
  struct Block {
    State state = State::kFree;
    uint64_t owner = 0;
  };
  uint32_t& CountOf(State state);
  void Move(uint32_t block, State to, uint64_t owner);

  std::vector<Block> blocks_;
  BlockIds free_;  // a stack: the block freed last is still in the cache
  Counts counts_;
};

}  // namespace withy::context_store
