// A draft model outside this process. Neighbours: speculator.h asks between two decode steps;
// draft_client.h asks draft_worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/sampling/sampler.h"
#include "policy/draft/draft_tree.h"
#include "policy/draft/tree_growth.h"

namespace withy::serving {

struct DraftRequest {
  uint64_t call_id = 0;
  std::span<const int32_t> tokens;  // the prompt and the answer so far
  engine::SamplingParams sampling;  // that the target draws with
  policy::GrowthLimits limits;
  double patience_ms = 0;  // how long it may keep the step waiting; 0: as long as it takes
};

// One of several calls that are drafted together.
struct DraftJob {
  DraftRequest request;
  policy::ConfidenceFn confidence;
  policy::DraftTree tree;  // that the drafted tokens are added to
};

// Tokens that grew while steps waited since the last draft of a call, and those of them that are in
// its tree.
struct WindowTokens {
  int32_t drafted = 0;
  int32_t kept = 0;
};

// Called on the engine thread, which waits for Draft.
class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // Whether Draft can give anything now.
  virtual bool ready() const = 0;
  // What a draft of one pass takes, in milliseconds, as far as is known.
  virtual double pass_ms() const = 0;
  // What the draft's KV of the call's first `tokens` tokens still takes, which comes before its
  // first pass; 0: it is there, or takes no time. `pass_ms`: of a pass, by which a token is guessed
  // until that is known.
  virtual double CatchUpMs(uint64_t call_id, size_t tokens, double pass_ms) const = 0;
  // What that took in the last Draft or DraftTogether.
  virtual double caught_up_ms() const = 0;
  // Adds the tokens that are expected behind those of the request; `confidence` says how likely
  // each is. Returns false, with the tree as it is, when nothing comes in time; what the draft has
  // computed by then is there for the next request.
  virtual bool Draft(const DraftRequest& request, const policy::ConfidenceFn& confidence,
                     policy::DraftTree* tree) = 0;
  // The same for several calls whose steps share a pass. Returns whether anything came. A source
  // that cannot share passes drafts them one after the other.
  virtual bool DraftTogether(std::span<DraftJob> jobs) {
    bool any = false;
    for (DraftJob& job : jobs) any = Draft(job.request, job.confidence, &job.tree) || any;
    return any;
  }
  // Whether its trees may go on growing while a step of the target waits for a disk. It then begins
  // growing with the step, and computes between Lend and TakeBack alone; what has grown comes with
  // the next Draft.
  virtual bool grows_in_windows() const { return false; }
  virtual void BeginGrowing(std::span<const DraftRequest> /*calls*/) {}
  virtual void Lend() {}
  virtual void TakeBack() {}
  virtual void EndGrowing() {}
  // Of the trees that the last Draft or DraftTogether gave.
  virtual WindowTokens window_tokens(uint64_t /*call_id*/) const { return {}; }
  // The call is over.
  virtual void Forget(uint64_t call_id) = 0;
};

}  // namespace withy::serving
