// Where calls are served: opens leases, brings their contexts back, gives and shares chunks, and
// ends them. Neighbours: lease/lease_book.h keeps the table and its lock, lease/context_load.h
// reads, idle/idle_keeper.h makes room before a claim and writes KV after a commit, lease_reactor.h
// speaks gRPC over this.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "context_store/idle/idle_keeper.h"
#include "context_store/lease/context_load.h"
#include "context_store/lease/lease_book.h"
#include "context_store/records/records.h"
#include "telemetry/recorder.h"

namespace withy::context_store {

struct LoadedContext {
  std::vector<std::string> segments;
  uint32_t left_out = 0;  // segments of the record that the call replaces
  ResidentChunks resident;
};

struct LeaseOutcome {
  std::vector<std::string> segments;  // appended
  std::vector<ChunkIdentity> chunks;  // the context's chunks after the call, from the first on
  uint32_t tokens = 0;
  std::optional<NewResult> result;
  std::optional<RequestKey> unfinished = {};
  uint32_t dropped = 0;       // as RecordCommit
  uint32_t added_tokens = 0;  // as RecordCommit
};

// What leases are served with. Borrowed; `disk` is null without KV on disk.
struct LeaseDeskParts {
  LeaseBook& book;
  Records& records;
  IdleKeeper& idle;
  KvStorage* disk;
  KvCostBook& costs;
  StoreMetrics& metrics;
  const Clock& clock;
  telemetry::Recorder& recorder;
  policy::LoadPolicy load_policy = policy::LoadPolicy::kPrefix;
};

// Thread-safe. Methods documented to block use the disk and must not run in a gRPC callback.
//
// All but Open, Abort and Break are for the holder of the lease, one call at a time. Abort and
// Break may be called at any time; they ignore a lease that is over or being committed. Errors: see
// LeaseTable; NOT_FOUND and DATA_LOSS of the context.
class LeaseDesk {
 public:
  explicit LeaseDesk(const LeaseDeskParts& parts);

  absl::StatusOr<LeaseOpening> Open(const LeaseSpec& spec, std::shared_ptr<LeaseListener> listener);
  // The call of a lease that was opened ahead has arrived. Errors: ABORTED (the lease is over),
  // INVALID_ARGUMENT (it already has an app). `need_tokens`: as LeaseSpec.
  absl::Status Begin(LeaseId lease, std::string app_id, uint64_t call_id, uint32_t need_tokens = 0);
  // Reads the record, and begins to bring the context's KV into the arena. Blocks on the record.
  absl::StatusOr<LoadedContext> Load(LeaseId lease);
  // As LeaseTable::Claim; LeaseListener::OnClaimed answers a claim that waits. Makes room if need
  // be, see MakesRoom; blocks then.
  absl::StatusOr<ClaimAnswer> Claim(LeaseId lease, uint32_t first, uint32_t count,
                                    bool may_wait = true);
  // Whether a claim of `chunks` chunks would have to wait for room: chunks are written to disk or
  // stored in fewer bits.
  bool MakesRoom(uint32_t chunks) const;
  // As LeaseChunks::Share.
  absl::StatusOr<ResidentChunks> Share(LeaseId lease, uint32_t first,
                                       const std::vector<LeaseChunks::Identities>& wanted);
  absl::Status Fault(LeaseId lease, uint32_t chunk, std::string_view reason);
  // Yields chunks that are being read to the worker, which computes them instead: at most `most`.
  // It has computed those below `computed_before` that it was to compute. LeaseListener::OnLoad
  // follows, perhaps before the return.
  void Yield(LeaseId lease, uint32_t computed_before, uint32_t most);
  // On return the commit is durable and the lease is over; the lease is also over if the disk
  // failed (the record is then unchanged). Returns the context's revision. Blocks. Errors: those of
  // LeaseTable::BeginCommit (the lease continues: break it) and of ContextRecords::Commit (the
  // lease is over).
  absl::StatusOr<uint64_t> Commit(LeaseId lease, LeaseOutcome outcome);
  void Abort(LeaseId lease);
  void Break(LeaseId lease);

  // The process begins to stop: ends the leases that no call waits for (opened ahead, or to rebuild
  // KV), and refuses new ones.
  void BeginStop();

 private:
  void EndLease(LeaseId lease, bool broken);
  // Before anything is read from disk.
  void CountOpening(const LeaseSpec& spec);
  // Of the chunks of a lease's context that are on disk only, in the arena.
  uint64_t BytesToLoad(const std::string& context_id) const;
  // Begins to bring the lease's context into the arena, as the plan says; returns the chunks that
  // have slots.
  ResidentChunks BringBack(LeaseId lease, const LeaseSpec& spec);
  // The chunks to commit are checked, and the table holds the lease until FinishCommit.
  absl::Status BeginCommit(LeaseId lease, const std::string& context_id,
                           std::vector<ChunkIdentity> chunks);

  const LeaseDeskParts parts_;
  LeaseBook& book_;
  ContextRecords& contexts_;
  StoreMetrics& metrics_;
  const telemetry::NameId claim_span_;
  bool stopping_ ABSL_GUARDED_BY(book_.mutex()) = false;
};

}  // namespace withy::context_store
