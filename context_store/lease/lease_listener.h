// What a lease is opened with, and whom the store tells about it. Neighbours: lease_book.h keeps
// both, lease_reactor.h is the listener of a stream.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "context_store/arena/chunks.h"
#include "context_store/records/context_records.h"
#include "policy/kv/kv_load.h"

namespace withy::context_store {

// What the worker is told of a load. `slots`: of the chunks that are yielded, claimed for its
// lease.
struct LoadEvent {
  policy::KvLoadEvent what;
  std::vector<ChunkSlot> slots = {};
};

// Receives notices about a lease on other threads, never under a lock of the store, and none after
// OnEnded. Neither call may block.
class LeaseListener {
 public:
  virtual ~LeaseListener() = default;
  // The lease had to wait and now holds its context: call LeaseDesk::Load.
  virtual void OnGranted() = 0;
  // How far the chunks being read are, while Load runs and after it; also answers Yield.
  virtual void OnLoad(LoadEvent event) = 0;
  // Answers a claim that waited for room: its slots; or none, and why not.
  virtual void OnClaimed(std::vector<ChunkSlot> chunks, std::string refused) = 0;
  // The store ended the lease (its epoch is over, or its worker is dead).
  virtual void OnEnded(const absl::Status& status) = 0;
};

struct LeaseSpec {
  uint64_t epoch = 0;
  std::string app_id;      // empty: opened ahead for a stateless call that has not arrived
  std::string context_id;  // empty = stateless
  uint64_t call_id = 0;
  bool rebuild = false;  // see LeaseTable::Open
  RequestKey request = {};
  uint32_t level_percent = 0;  // that the call computes at; 0: not known
  uint32_t prompt_tokens = 0;  // that the call adds; 0: not known
  uint32_t need_tokens = 0;    // that the context may come to have; 0: not known

  // Whether the lease is opened ahead of its call.
  bool ahead() const { return app_id.empty() && context_id.empty(); }
};

}  // namespace withy::context_store
