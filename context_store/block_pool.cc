#include "context_store/block_pool.h"

#include "context_store/invariant.h"

namespace withy::context_store {

void BlockPool::Reset(uint32_t blocks) {
  blocks_.assign(blocks, Block{});
  free_.clear();
  for (uint32_t i = blocks; i-- > 0;) free_.push_back(i);
  counts_ = Counts{.total = blocks, .free = blocks};
}

uint32_t& BlockPool::CountOf(State state) {
  switch (state) {
    case State::kClaimed:
      return counts_.claimed;
    case State::kResident:
      return counts_.resident;
    case State::kQuarantined:
      return counts_.quarantined;
    case State::kFree:
      break;
  }
  return counts_.free;
}

void BlockPool::Move(uint32_t block, State to, uint64_t owner) {
  Block& b = blocks_[block];
  --CountOf(b.state);
  ++CountOf(to);
  b = {to, owner};
  if (to == State::kFree) free_.push_back(block);
}

bool BlockPool::Claim(uint32_t count, uint64_t owner, BlockIds* claimed) {
  if (free_.size() < count) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t block = free_.back();
    free_.pop_back();
    Invariant(state(block) == State::kFree, "a block on the free list is free");
    Move(block, State::kClaimed, owner);
    claimed->push_back(block);
  }
  return true;
}

void BlockPool::Keep(std::span<const uint32_t> blocks) {
  for (uint32_t block : blocks) {
    Invariant(state(block) == State::kClaimed, "a kept block was claimed");
    Move(block, State::kResident, 0);
  }
}

void BlockPool::Take(std::span<const uint32_t> blocks, uint64_t owner) {
  for (uint32_t block : blocks) {
    Invariant(state(block) == State::kResident, "a taken block was resident");
    Move(block, State::kClaimed, owner);
  }
}

void BlockPool::Free(std::span<const uint32_t> blocks) {
  for (uint32_t block : blocks) {
    Invariant(state(block) == State::kClaimed || state(block) == State::kResident,
              "a freed block had an owner and was not quarantined");
    Move(block, State::kFree, 0);
  }
}

void BlockPool::Quarantine(std::span<const uint32_t> blocks, uint64_t writer) {
  for (uint32_t block : blocks) {
    Invariant(state(block) == State::kClaimed || state(block) == State::kResident,
              "a quarantined block had an owner");
    Move(block, State::kQuarantined, writer);
  }
}

uint32_t BlockPool::Release(uint64_t writer) {
  uint32_t released = 0;
  for (uint32_t block = 0; block < blocks_.size() && counts_.quarantined > 0; ++block) {
    if (state(block) != State::kQuarantined || owner(block) != writer) continue;
    Move(block, State::kFree, 0);
    ++released;
  }
  return released;
}

}  // namespace withy::context_store
