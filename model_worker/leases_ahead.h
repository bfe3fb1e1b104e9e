// Leases of stateless calls that are opened before their calls come, blocks included: a round trip
// to the store that no first token waits for. Neighbours: lease_client.h opens leases; the
// scheduler sees a LeaseSource like any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "model_worker/lease.h"

namespace withy::model_worker {

struct AheadOptions {
  size_t leases = 2;
  int32_t chunks = 16;  // claimed with each
  int32_t layers = 1;   // blocks a chunk
  // Of an arena that so many would not fit into nothing is held ahead.
  int32_t least_arena_leases = 16;
};

// Thread-safe.
class LeasesAhead final : public LeaseSource {
 public:
  // `source` outlives it.
  LeasesAhead(LeaseSource& source, const AheadOptions& options);
  // Gives back what no call has taken.
  ~LeasesAhead() override;

  // Opens what is missing, for an arena that was just attached; it does so itself whenever a
  // stateless call has ended. Does not block.
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
