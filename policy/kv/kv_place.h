// Where the KV of a chunk is, and how an eviction moves it. A chunk is 16 tokens of a context, all
// layers. Pure. Neighbours: kv_precision.h and kv_eviction.h decide; context_store carries it out.
//
// Source: LLMS section 3.1 (Reclaim). Ours adds the copy that a resident chunk may have on disk: a
// chunk with a copy leaves the arena without a write.
#pragma once

#include <cstdint>
#include <optional>

namespace withy::policy {

// How the KV of a chunk is coded: an index into the formats of the model, which are ordered from
// the most bytes to the fewest. 0 is the working format, in which KV is computed.
using KvFormatIndex = uint8_t;

// In the arena, where attention reads it.
struct KvResident {
  KvFormatIndex format = 0;
  // Format of the copy on disk, which may have more or fewer bits. None: there is no copy.
  std::optional<KvFormatIndex> copy = std::nullopt;
};

struct KvAction {
  enum class Kind {
    kWrite,  // store a copy of the resident chunk, in its format, in place of an older copy
    kDrop,   // free the chunk's place in the arena
  };
  Kind kind = Kind::kDrop;
};

}  // namespace withy::policy
