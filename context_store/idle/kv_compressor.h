// Stores chunks of idle contexts in fewer bits: which ones is decided in policy/kv/kv_demotion.h.
// Or, which loses nothing, without the blocks that windows hide (policy/kv/kv_window.h).
// Each step holds the lock only to begin and to end, and is dropped if a call has come meanwhile.
// Neighbour: idle_keeper.h asks for it, when an exact measure makes no room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "context_store/disk/kv_cost_book.h"
#include "context_store/lease/lease_book.h"
#include "policy/kv/kv_precision.h"

namespace withy::context_store {

struct CompressionRules {
  // Least bytes that a context's KV may be brought to, as a share of its bytes at 8 bits.
  double ratio = 0.5;
  std::optional<policy::PrecisionPolicy> precision = policy::PrecisionPolicy::kDensity;
};

// Thread-safe. What the constructor is given is borrowed.
class KvCompressor {
 public:
  KvCompressor(LeaseBook& book, const KvCostBook& costs, StoreMetrics& metrics,
               const CompressionRules& rules)
      : book_(book), costs_(costs), metrics_(metrics), rules_(rules) {}

  // As many chunks of one context as the ratio allows.
  void Compress(const std::string& context_id);
  // Chunks of idle contexts that have no exact copy on disk, until `bytes` are freed.
  void CompressFor(uint64_t bytes);
  // Blocks of idle contexts that are hidden leave the arena, until `bytes` are freed.
  void DropHidden(uint64_t bytes);

 private:
  struct Candidates;  // what may be stored in fewer bits
  Candidates Find(std::vector<std::string> context_ids, bool spares_copies) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(book_.mutex());
  void Carry(const Candidates& of, uint64_t bytes);
  // Returns the bytes that become free; 0: the chunk stays as it is.
  uint64_t Store(const Geometry& geometry, const std::string& context_id, uint32_t chunk,
                 KvFormat to);

  LeaseBook& book_;
  const KvCostBook& costs_;
  StoreMetrics& metrics_;
  const CompressionRules rules_;
};

}  // namespace withy::context_store
