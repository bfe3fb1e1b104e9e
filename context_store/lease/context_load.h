// One load: brings the KV of a lease's context into the arena while the lease goes on. Which chunks
// are read and which are left to the worker is decided in policy/kv/kv_load_progress.h while both
// go on; chunks arrive in groups, a group layer by layer, on the reader's thread. Neighbour:
// lease_desk.h begins a load and passes on what the worker asks for.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
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
#include "policy/kv/kv_load_progress.h"

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
  // `loads` as LeaseChunks::BeginLoad returned them, not empty; `left`: chunks that the worker
  // recomputes from the start on; `planned`: the costs of that plan.
  ContextLoad(const LoadTools& tools, LeaseId lease, const LeaseSpec& spec,
              std::vector<ChunkLoad> loads, const std::vector<uint32_t>& left,
              const policy::LoadCosts& planned) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tools.book.mutex());

  // Reads the next groups and tells the listener what there is to tell.
  void Advance();
  // As LeaseDesk::Yield.
  void Yield(uint32_t computed_before, uint32_t most);
  // Whether nothing is read any more, and nothing will be.
  bool ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(tools_.book.mutex()) { return ended_; }

 private:
  using Range = policy::KvLoadProgress::Group;
  struct Group {
    Range range;
    KvReadId read = 0;
    uint32_t layers = 0;  // in place
  };

  double NowMs() const { return static_cast<double>(tools_.clock.SteadyNanos()) / 1e6; }
  std::vector<ChunkLoad> LoadsOf(size_t begin, size_t end) const;
  std::optional<Range> BeginGroup(std::vector<ChunkLoad>* loads);
  void Read(const Range& range, const std::vector<ChunkLoad>& loads);
  // On the reader's thread.
  void OnLayer(uint32_t number, uint32_t layer);
  void OnFailed(const Range& range, std::span<const size_t> loads);
  void OnDone(uint32_t number);

  void EndGroup(uint32_t number, bool complete) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tools_.book.mutex());
  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tools_.book.mutex());
  // Notes an event for the layers that are in place of all that is read.
  void TellLayers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(tools_.book.mutex());
  void NoteYield(const policy::KvLoadProgress::Yield& more)
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
  size_t dealt_ = 0;                 // chunks before the loads that the worker had from the start
  std::vector<uint32_t> positions_;  // of the chunks that progress_ knows
  std::unique_ptr<policy::KvLoadProgress> progress_;

  std::map<uint32_t, Group> groups_;  // being read, by number
  std::vector<bool> failed_;          // by load
  uint32_t told_layers_ = 0;
  uint64_t arrived_blocks_ = 0;
  bool advancing_ = false, again_ = false;  // a thread is in Advance; it has to look once more
  bool yielding_ = false;                   // a yield has begun and not been noted
  bool ended_ = false;
  std::deque<std::function<void(LeaseListener&)>> events_;
  bool delivering_ = false;
};

}  // namespace withy::context_store
