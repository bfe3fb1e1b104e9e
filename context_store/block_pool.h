// Who owns which block of the arena: a pure allocator over block numbers. It knows no bytes, no
// contexts and no files; a block has exactly one owner at any time. Neighbours: lease_table.h moves
// blocks between leases and contexts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace withy::context_store {

using BlockIds = std::vector<uint32_t>;

// Not thread-safe: its owner's lock guards it. Moves that the states below do not allow are bugs of
// the caller and end the process.
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

  // Forgets everything; all `blocks` are free.
  void Reset(uint32_t blocks);

  // Appends `count` free blocks to `*claimed` for `owner` (a lease). False, and nothing claimed,
  // when fewer are free.
  [[nodiscard]] bool Claim(uint32_t count, uint64_t owner, BlockIds* claimed);
  // A lease's blocks become a context's.
  void Keep(std::span<const uint32_t> blocks);
  // A context's blocks become those of `owner` (a lease).
  void Take(std::span<const uint32_t> blocks, uint64_t owner);
  void Free(std::span<const uint32_t> blocks);
  // Nobody gets these blocks until `writer` (a worker) can be writing to them no more.
  void Quarantine(std::span<const uint32_t> blocks, uint64_t writer);
  // Frees what was quarantined for `writer`; returns how many.
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
  BlockIds free_;  // a stack: the block freed last is warm
  Counts counts_;
};

}  // namespace withy::context_store
