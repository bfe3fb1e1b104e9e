// Asks draft_worker what it expects behind a call's tokens. Neighbours: drafter.h is what the core
// sees, draft_worker answers (draft_worker.proto). Where it is away, slow or of another
// vocabulary, there are no drafts for a while.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/compute_baton.h"
#include "serving/speculation/drafter.h"
#include "withy/v1/draft_worker.grpc.pb.h"

namespace withy::model_worker {

// For the engine thread, which Grow keeps waiting: for a few tokens' time at most.
class DraftClient final : public serving::Drafter {
 public:
  // `address` of draft_worker; `vocabulary`: fingerprint of the target's tokenizer; `baton`: null
  // if nothing is to grow in windows.
  DraftClient(const std::string& address, uint64_t vocabulary, Clock& clock,
              std::optional<ComputeBaton> baton = std::nullopt);
  ~DraftClient() override;

  policy::DraftOffer Follow(const serving::DraftTask& task) override;
  // Nothing comes where the draft is late; what it has computed by then is there for the next
  // request.
  serving::DraftResult Grow(std::span<const serving::DraftTask> tasks,
                            const serving::DraftTime& time) override;
  // draft_worker computes while the windows are open, and what has grown comes with the next Grow.
  std::unique_ptr<serving::StepWindows> GrowMeanwhile(
      std::span<const serving::DraftTask> tasks) override;
  void Forget(uint64_t call_id) override { calls_.erase(call_id); }
  // Whether draft_worker was asked what its passes take, and no Follow has taken the answer yet.
  bool asks_costs() const { return costs_ != nullptr; }

 private:
  class Windows;
  // Calls that draft_worker keeps the KV of (draft_worker.proto).
  static constexpr size_t kMostTogether = 8;

  // What the draft has of a call.
  struct Known {
    uint32_t tokens = 0;  // with KV
    double ms = 0;        // spent on the KV of later ones, by requests that ran out of time
  };
  // A request that gRPC's thread ends, which shares it.
  template <typename Request, typename Response>
  struct Asked;
  using Growth = Asked<v1::GrowRequest, v1::GrowResponse>;  // lasts as long as a step
  using Costs = Asked<v1::GetWorkerInfoRequest, v1::GetWorkerInfoResponse>;

  // Nothing is drafted before draft_worker has told what that costs.
  bool ready() const { return pass_ms_ > 0 && clock_.SteadyNanos() >= retry_ns_; }
  void AskCosts();
  double CatchUpMs(uint64_t call_id, size_t tokens) const;
  v1::DraftCall ToWire(const serving::DraftTask& task);
  // Adds what came for a call to its tree; false: nothing, or no tree.
  bool Take(const v1::CallDraft& response, const serving::DraftTask& task,
            serving::DraftResult* result);
  void EndGrowing();
  void OnDrafted(double ms, uint32_t passes, uint32_t tokens, double catch_up_ms);
  void LearnCatchUp(uint32_t tokens, double ms);
  void OnFailure(const grpc::Status& status);

  const uint64_t vocabulary_;
  Clock& clock_;
  const std::unique_ptr<v1::DraftWorker::Stub> stub_;
  std::optional<ComputeBaton> baton_;
  std::shared_ptr<Growth> growth_;  // null: none is under way
  std::shared_ptr<Costs> costs_;    // likewise
  std::map<uint64_t, Known> calls_;
  // As draft_worker measured them, then as requests show. 0: not known yet.
  double pass_ms_ = 0;         // the way there and back included
  double token_ms_ = 0;        // of the KV of one of many tokens
  int64_t retry_ns_ = 0;       // not asked before
  int64_t grow_retry_ns_ = 0;  // likewise, to let trees grow
  bool refused_ = false;       // the last failure was told
};

}  // namespace withy::model_worker
