// How the KV of a chunk in the arena is coded. A chunk is 16 tokens of a context, all layers.
// Neighbours: kv_precision.h, kv_eviction.h and kv_disk.h decide what becomes of it.
//
// Source: LLMS section 3.1. Ours adds the copy that a resident chunk may have on disk: a chunk with
// a copy leaves the arena without a write.
#pragma once

#include <cstdint>
#include <optional>

namespace withy::policy {

// An index into the formats of the model, which are ordered from the most bytes to the fewest. 0 is
// the working format, in which KV is computed.
using KvFormatIndex = uint8_t;

// In the arena, where attention reads it.
struct KvResident {
  KvFormatIndex format = 0;
  // Format of the copy on disk, which may have more or fewer bits. None: there is no copy.
  std::optional<KvFormatIndex> copy = std::nullopt;
};

}  // namespace withy::policy
