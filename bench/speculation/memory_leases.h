// Leases over memory of this process instead of context_store's: for calls without a context, one
// at a time. Neighbours: serving/session/lease.h is the interface; speculation_decoder.h serves
// calls over it.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "serving/call/task_thread.h"
#include "serving/session/lease.h"

namespace withy::bench {

// Thread-safe. Chunk i of a call lies in slot i; a call that claims beyond the last one is refused.
class MemoryLeases final : public serving::LeaseSource {
 public:
  MemoryLeases(const engine::KvInfo& kv, int32_t chunks);

  absl::StatusOr<std::shared_ptr<serving::Lease>> Open(
      serving::LeaseOpen open, std::shared_ptr<serving::LeaseEvents> events) override;

 private:
  class Held;

  const engine::KvGeometry geometry_;
  const int32_t chunks_;
  const std::shared_ptr<const serving::Arena> arena_;  // shared with leases
  serving::TaskThread events_;                         // what leases are told
};

}  // namespace withy::bench
