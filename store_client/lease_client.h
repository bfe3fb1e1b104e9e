// The worker's tie to context_store: attaches, maps the arena, opens leases, and attaches anew when
// the store was restarted. Neighbours: arena.h maps, lease_stream.h is one lease; the scheduler
// sees only lease.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "engine/session/segment.h"
#include "engine/tokenizer/tokenizer.h"
#include "serving/session/lease.h"
#include "serving/session/served_window.h"
#include "withy/v1/context_store.pb.h"

namespace withy::store_client {

struct LeaseClientOptions {
  std::string store_address;
  serving::Identity model_id{};
  engine::KvInfo kv;
  std::string model_name;  // as stored results name it
  v1::KvCosts kv_costs = {};
  std::vector<serving::Identity> public_chunks = {};  // that contexts of all apps may share
  // Limited to what the arena holds, before Callbacks::on_change.
  serving::ServedWindow window = INT32_MAX;
};

// What a context holds, as the store reports it.
struct ContextInfo {
  std::vector<engine::Segment> segments;
  int32_t kv_tokens = 0;         // whose KV need not be computed
  int32_t dropped_messages = 0;  // that the window had no room for in the last call
};

// Thread-safe. `tokenizer` must outlive it.
class LeaseClient final : public serving::LeaseSource {
 public:
  struct Callbacks {
    // The store is there (again), or gone. From the client's own thread.
    std::function<void(bool attached)> on_change;
    // After a loss, before attaching anew: must return only when no block of an older lease is read
    // or written any more.
    std::function<void(const absl::Status&)> release_blocks;
  };

  LeaseClient(LeaseClientOptions options, const engine::Tokenizer& tokenizer);
  ~LeaseClient() override;

  // Begins to attach, and goes on until Stop. `callbacks` live until Stop has returned.
  void Start(Callbacks callbacks);
  // No more attaching and no more callbacks; open leases go on.
  void Stop();

  // Errors: UNAVAILABLE while no store is attached.
  absl::StatusOr<std::shared_ptr<serving::Lease>> Open(
      serving::LeaseOpen open, std::shared_ptr<serving::LeaseEvents> events) override;

  // Blocks for a round trip. Errors: NOT_FOUND, UNAVAILABLE.
  absl::StatusOr<ContextInfo> GetContext(const v1::StoreGetContextRequest& request);

  // The context whose KV should be computed again at the full level. Blocks for a round trip.
  // Errors: NOT_FOUND (none), UNAVAILABLE.
  struct Upgrade {
    std::string app_id;
    std::string context_id;
    int32_t level_percent = 0;
  };
  absl::StatusOr<Upgrade> NextUpgrade();

  // Chunks of the working precision that the arena holds; 0 while no store is attached.
  int32_t arena_chunks() const;

  // For people: what it is attached to or waits for.
  std::string Describe() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace withy::store_client
