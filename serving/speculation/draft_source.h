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

// Tokens that grew while steps waited since the last draft of a call, and those of them that are in
// its tree.
struct WindowTokens {
  int32_t drafted = 0;
  int32_t kept = 0;
};

// One of several calls that are drafted together.
struct DraftJob {
  DraftRequest request;
  policy::ConfidenceFn confidence;  // how likely a drafted token is
  policy::DraftTree tree;           // that the drafted tokens are added to
  WindowTokens window = {};         // result
};

struct DraftResult {
  bool came = false;        // for some call; else the trees are as they were
  double caught_up_ms = 0;  // that computing KV of the calls' tokens took
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
  // Adds the tokens that are expected behind those of the calls, whose steps share a pass. Nothing
  // comes where the draft is late; what it has computed by then is there for the next request.
  virtual DraftResult Draft(std::span<DraftJob> jobs) = 0;
  // Whether its trees may go on growing while a step of the target waits for a disk. It then begins
  // growing with the step, and computes between Lend and TakeBack alone; what has grown comes with
  // the next Draft.
  virtual bool grows_in_windows() const { return false; }
  virtual void BeginGrowing(std::span<const DraftRequest> /*calls*/) {}
  virtual void Lend() {}
  virtual void TakeBack() {}
  virtual void EndGrowing() {}
  // The call is over.
  virtual void Forget(uint64_t call_id) = 0;
};

}  // namespace withy::serving
