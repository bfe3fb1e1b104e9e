// Opens leases for stateless calls before the calls come, slots included, so that no first token
// waits for a round trip to the store. Neighbours: lease_client.h opens leases; the
// scheduler sees a LeaseSource like any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "model_worker/lease.h"

namespace withy::model_worker {

struct AheadOptions {
  size_t leases = 2;
  int32_t chunks = 16;     // claimed with each
  size_t chunk_bytes = 0;  // in the arena
  // Nothing is opened ahead in an arena that this many leases would not fit into.
  size_t least_arena_leases = 16;
};

// Thread-safe.
class LeasesAhead final : public LeaseSource {
 public:
  // `source` outlives it.
  LeasesAhead(LeaseSource& source, const AheadOptions& options);
  // Aborts the leases that no call has taken.
  ~LeasesAhead() override;

  // Opens the leases that are missing, after an arena was attached; the end of a stateless call
  // does the same. Does not block.
  void Refill();

  // A stateless call gets a lease that is open already, where there is one: OnOpened then comes
  // before this returns, with as many chunks as were claimed ahead.
  absl::StatusOr<std::shared_ptr<Lease>> Open(LeaseOpen open,
                                              std::shared_ptr<LeaseEvents> events) override;

 private:
  class Spare;
  class Pool;
  const std::shared_ptr<Pool> pool_;  // shared with streams, which gRPC ends in its own time
};

}  // namespace withy::model_worker
