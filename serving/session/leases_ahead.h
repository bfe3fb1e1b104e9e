// Opens leases for stateless calls before the calls come, slots included, so that no first token
// waits for a round trip to the store. Neighbours: lease_client.h opens leases; the
// scheduler sees a LeaseSource like any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "serving/session/lease.h"

namespace withy::serving {

// Thread-safe.
class LeasesAhead final : public LeaseSource {
 public:
  // `source` outlives it.
  LeasesAhead(LeaseSource& source, size_t leases);
  // Aborts the leases that no call has taken.
  ~LeasesAhead() override;

  // Opens the leases that are missing, after an arena was attached, with so many `chunks` from now
  // on; 0: none. The end of a stateless call opens them, too. Does not block.
  void Refill(int32_t chunks);

  // A stateless call gets a lease that is open already, where there is one: OnOpened then comes
  // before this returns, with as many chunks as were claimed ahead.
  absl::StatusOr<std::shared_ptr<Lease>> Open(LeaseOpen open,
                                              std::shared_ptr<LeaseEvents> events) override;

 private:
  class Spare;
  class Pool;
  const std::shared_ptr<Pool> pool_;  // shared with streams, which gRPC ends in its own time
};

}  // namespace withy::serving
