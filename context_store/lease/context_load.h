// One load: brings the KV of a lease's context into the arena while the lease goes on. How far it
// is and what comes next is in policy/kv/kv_load_source.h; chunks arrive in groups, a group layer
// by layer, on the reader's thread. Neighbour: lease_desk.h begins a load and passes on what the
// worker asks for.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/clock.h"
#include "context_store/disk/kv_cost_book.h"
#include "context_store/disk/kv_storage.h"
#include "context_store/lease/lease_book.h"
#include "policy/kv/kv_load_source.h"

namespace withy::context_store {

// What loads use; all of it outlives them.
struct LoadTools {
  LeaseBook& book;
  KvStorage& disk;
  KvCostBook& costs;
  StoreMetrics& metrics;
  const Clock& clock;
  policy::LoadPolicy policy = policy::LoadPolicy::kPrefix;
};

// Every member is guarded by the book's lock, and methods take it, if not said otherwise. Shared by
// the open lease and the reader's functions, which may end after it. Counts as one that writes to
// slots (LeaseBook::BeginWriting) until it has ended.
class ContextLoad : public std::enable_shared_from_this<ContextLoad> {
 public:
  // `loads` as LeaseChunks::BeginLoad returned them, not empty; `resident`: what the context has
  // since then; `planned`: the costs of that plan.
  ContextLoad(const LoadTools& tools, LeaseId lease, const LeaseSpec& spec,
              std::vector<ChunkLoad> loads, const ResidentChunks& resident,
              const policy::LoadCosts& planned) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tools.book.mutex());

  // Reads the next groups and tells the listener what there is to tell.
  void Advance();
  // As LeaseDesk::Yield.
  void Yield(uint32_t computed_before, uint32_t most);
  // The worker does without the context's chunks from this one on.
  void GiveUp(uint32_t chunk);
  // What is not being read yet will not be: the lease is over.
  void EndWithLease() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tools_.book.mutex());

 private:
  using Group = policy::KvLoadSource::Group;

  double NowMs() const { return static_cast<double>(tools_.clock.SteadyNanos()) / 1e6; }
  std::vector<ChunkLoad> LoadsOf(size_t begin, size_t end) const;
  std::optional<Group> BeginGroup() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tools_.book.mutex());
  void Read(const Group& group);
  // On the reader's thread.
  void OnLayer(uint32_t number, uint32_t layer);
  void OnFailed(const Group& group, std::span<const size_t> loads);
  void OnDone(uint32_t number);

  void EndGroup(const Group& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tools_.book.mutex());
  // Notes what layers are in place; ends the load if it is done.
  void NoteLayers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tools_.book.mutex());
  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tools_.book.mutex());
  void NoteYield(const policy::KvLoadSource::Yield& yield)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tools_.book.mutex());
  // Calls the listener with what was noted, in order, from one thread at a time.
  void Deliver();

  const LoadTools tools_;
  const LeaseId lease_;
  const std::string context_id_;
  const uint64_t epoch_;
  const Geometry geometry_;
  const std::vector<ChunkLoad> loads_;
  const policy::LoadCosts planned_;
  policy::KvLoadSource source_;

  std::map<uint32_t, KvReadId> reads_;      // by number of their group
  bool advancing_ = false, again_ = false;  // a thread is in Advance; it has to look once more
  bool ended_ = false;
  std::deque<LoadEvent> events_;  // to be told
  bool delivering_ = false;
};

}  // namespace withy::context_store
