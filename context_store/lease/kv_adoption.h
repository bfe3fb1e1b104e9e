// Takes over what an earlier process of the store left: chunks in the kept arena and copies on
// disk. Neighbours: arena_keeper.h finds them, arena_kv.h has them afterwards.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "context_store/arena/arena_kv.h"

namespace withy::context_store {

// For the time between the attachment of a worker and its first lease. Not thread-safe: guarded by
// the lock of the table that owns `kv`, which is borrowed.
class KvAdoption {
 public:
  explicit KvAdoption(ArenaKv& kv) : kv_(kv) {}

  // Takes over what an app's context that has no chunks had: those in the arena, whose blocks were
  // checked, and those on disk. Chunks behind the first one that is in neither are dropped. Returns
  // the number of chunks that are in the arena now. Contexts count as used in the order of these
  // calls.
  uint32_t Adopt(std::string_view context_id, const std::vector<KeptChunk>& kept,
                 std::vector<ContextChunk> stored, std::string_view app_id = {});
  // What the arena's directory describes beyond what was adopted is forgotten.
  void End();

 private:
  bool AdoptSlot(const KvContext& context, const KeptChunk& kept, ContextChunk* chunk);

  ArenaKv& kv_;
};

}  // namespace withy::context_store
