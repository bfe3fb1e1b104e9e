// Copies of chunks on disk, by the chunks that have them: equal chunks of several contexts may have
// one copy. Neighbours: arena_kv.h has the chunks, disk/kv_storage.h the bytes.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "context_store/arena/chunks.h"

namespace withy::context_store {

// Not thread-safe. Always: a copy is given up when the last chunk that has it does so, and once. A
// copy whose context's index does not name it yet is lost if the process is killed.
class StoredCopies {
 public:
  // `chunk` has the copy of an equal chunk, unless it has one, or that copy lacks blocks that
  // `chunk` has (in its slot; without one, as its stored_format says).
  void Borrow(ContextChunk* chunk, const ContextChunk& equal);
  // A chunk has the copy no more.
  void GiveUp(StoredCopy copy);
  // Copies that no chunk has any more, since the last call.
  std::vector<StoredCopy> TakeGivenUp() { return std::exchange(given_up_, {}); }
  // The copy is lost; its chunks have it no more.
  void Forget(StoredCopy copy);
  // No chunk has a copy any more.
  void ForgetAll();

  // The copy was written; the index on disk is written before NowIndexed.
  void NotIndexed(StoredCopy copy) { not_indexed_.insert(copy); }
  void NowIndexed(StoredCopy copy) { not_indexed_.erase(copy); }
  // Whether the index was written since: it names the copy, unless a chunk before it has none.
  bool Indexed(StoredCopy copy) const { return copy != 0 && !not_indexed_.contains(copy); }

  // Those that several chunks have, and how many.
  const std::unordered_map<StoredCopy, uint32_t>& shared() const { return shared_; }

 private:
  std::unordered_map<StoredCopy, uint32_t> shared_;
  std::unordered_set<StoredCopy> not_indexed_;
  std::vector<StoredCopy> given_up_;
};

}  // namespace withy::context_store
