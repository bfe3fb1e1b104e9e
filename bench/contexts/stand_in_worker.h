// Plays the model worker for context_store: attaches, maps the arena, opens leases, claims slots,
// writes KV into them and commits, as a call does, but computes nothing: the KV is random numbers.
// So the store does all that it does in service, in a fraction of a call's time. What it recomputes
// while the store reads takes as much processor time as the worker would need. Neighbours:
// contexts_run.h replays traces through it, cpu_work.h uses the time.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/contexts/contexts_figures.h"
#include "bench/contexts/cpu_work.h"
#include "engine/kv/slot.h"
#include "store_client/arena.h"
#include "withy/v1/context_store.grpc.pb.h"

namespace withy::bench {

// A context as its calls have left it.
struct StandInContext {
  std::string id;
  std::vector<v1::ChunkIdentity> chunks = {};

  uint32_t tokens() const;
};

// What one call took, seen from the worker.
struct StandInCall {
  uint32_t context_tokens = 0;  // before the call
  // Of them, when loading had ended, from the first on; the rest is computed behind them.
  uint32_t resident_tokens = 0;
  // Chunks among the resident ones that were left to the worker and computed while others were
  // read.
  uint32_t recomputed_chunks = 0;
  double load_ms = 0;  // from the lease's opening until all of them are there
  double claim_ms =
      0;  // for the slots of what is computed; 0: it was asked for while KV was loaded
  // From the lease's opening until the first piece of the prompt is computed; 0: it was not
  // computed while KV was loaded, since nothing was loaded or the call was not to.
  double piece_ms = 0;
};

// How a call computes what it adds to its context.
enum class StandInPrompt {
  kNot,           // it does not
  kBehindLayers,  // its first piece goes through a layer when that layer's KV is there
};

// One lease at a time. Errors of the methods are the store's.
class StandInWorker {
 public:
  // Waits for the store at `address` (unix:PATH), binds an app and attaches with `geometry` at 8
  // bits. `costs`: what the store is told of recomputing; `recompute`: what it takes.
  static absl::StatusOr<std::unique_ptr<StandInWorker>> Connect(const std::string& address,
                                                                const engine::KvGeometry& geometry,
                                                                const v1::KvCosts& costs,
                                                                const RecomputeCost& recompute,
                                                                uint64_t seed);

  // The store was restarted: attaches again. Contexts stay what they are.
  absl::Status Reattach();
  // What the store is told when the worker attaches next.
  void set_costs(v1::KvCosts costs) { costs_ = std::move(costs); }
  // Milliseconds that recomputing the first `tokens` tokens of a context takes, while nothing is
  // read.
  double TimeRecompute(uint32_t tokens);
  // That computing the first piece of a prompt of `prompt_tokens` behind `tokens` takes, while
  // nothing is read.
  double TimePiece(uint32_t tokens, uint32_t prompt_tokens);

  absl::StatusOr<StandInContext> CreateContext();
  // A call that keeps the context's first `keep_tokens` tokens (at most those that it has; a
  // multiple of 16, or all) and adds `delta_tokens`. RESOURCE_EXHAUSTED: the arena has no room for
  // the context; nothing has changed.
  absl::StatusOr<StandInCall> Call(StandInContext* context, uint32_t keep_tokens,
                                   uint32_t delta_tokens,
                                   StandInPrompt prompt = StandInPrompt::kNot);
  // Opens a lease, waits until the KV is in the arena, and gives it up.
  absl::StatusOr<StandInCall> Load(const StandInContext& context);
  // Milliseconds of a call that asks for a few numbers.
  absl::StatusOr<double> TimeEmptyCall();
  // Waits until the store has compressed and written what calls have left.
  absl::Status AwaitIdle();

 private:
  class Lease;
  class Progress;
  // What a call computes itself while KV is loaded.
  struct Piece {
    uint32_t keep_tokens = 0;    // of the context
    uint32_t prompt_tokens = 0;  // all of them; 0: nothing is computed
    double layer_ms = 0;
  };
  // What came of a load.
  struct Arrival {
    int64_t there_ns = 0;            // clock when the last layer was there
    uint32_t recomputed_chunks = 0;  // among those that are there
    bool computed_piece = false;
    v1::LeaseEvent claimed = {};  // for the piece's chunks, if it was computed
  };

  StandInWorker(const engine::KvGeometry& geometry, v1::KvCosts costs,
                const RecomputeCost& recompute, uint64_t seed);
  template <typename Request, typename Response>
  absl::Status Ask(grpc::Status (v1::ContextStore::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Response*),
                   const Request& request, Response* response) const;
  absl::Status BindApp();
  absl::StatusOr<v1::GetStoreInfoResponse> GetInfo();
  // Opens a lease and waits for the context's KV; its chunks in the arena are added to `resident`.
  absl::StatusOr<StandInCall> Open(const StandInContext& context, const Piece& piece, Lease* lease,
                                   std::vector<v1::ChunkIdentity>* resident);
  Piece PieceOf(uint32_t tokens, uint32_t prompt_tokens) const;
  // Claims chunks and writes KV into them.
  absl::Status Claim(uint32_t first, uint32_t count, Lease* lease, double* claim_ms);
  absl::Status TakeClaimed(const v1::LeaseEvent& claimed);
  void MakeTemplate();
  void WriteChunk(uint32_t units, uint32_t tokens);
  v1::ChunkIdentity NewIdentity(uint32_t tokens);

  // Until all that is read has come, and all that is left to the worker is computed; where anything
  // is read the piece, too, whose chunks are claimed meanwhile. What cannot be read, and what
  // follows it, is taken out.
  absl::StatusOr<Arrival> AwaitArrival(const Piece& piece, Lease* lease,
                                       std::vector<v1::ResidentChunk>* resident);

  const engine::KvGeometry geometry_;
  v1::KvCosts costs_;
  const RecomputeCost recompute_;
  CpuWork work_;
  std::mt19937_64 random_;
  std::unique_ptr<v1::ContextStore::Stub> stub_;
  std::string app_id_;
  uint64_t instance_ = 0;
  uint64_t epoch_ = 0;
  uint64_t last_call_ = 0;
  store_client::ArenaConnection connection_;  // open: this worker lives
  std::vector<std::byte> template_;           // a block without header
};

}  // namespace withy::bench
