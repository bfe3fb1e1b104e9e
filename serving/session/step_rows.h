// Which tokens of one call have KV, which its next step computes, and which chunks it needs for
// them. Neighbours: context_kv.h has the chunks, kv_holes.h says what is missing in them,
// step_draft.h has the drafted tokens; step_runner.h puts the rows of many calls into a step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/model.h"
#include "serving/call/call.h"
#include "serving/session/call_answer.h"
#include "serving/session/call_tokens.h"
#include "serving/session/context_kv.h"
#include "serving/session/lease.h"
#include "serving/session/step_draft.h"

namespace withy::serving {

// Owned by the call's session; what it borrows outlives it. Not thread-safe.
class StepRows {
 public:
  struct Parts {
    const CallRequest& request;
    const CallTokens& tokens;
    const CallAnswer& answer;
    StepDraft& draft;
    ContextKv& kv;
    CallUsage& usage;  // whose reused and prefilled tokens are counted here
  };
  explicit StepRows(const Parts& parts) : of_(parts) {}

  // The context's KV has been taken over: rows begin behind it.
  void Begin();

  // Rows without KV: tokens of the prompt, or the token tree of the next decode step.
  int32_t pending() const {
    return of_.kv.holes().Count(computed_, of_.tokens.count()) + of_.draft.rows();
  }
  // The first token without KV: where the next row is computed. Chunks behind it may be there.
  int32_t computed() const { return computed_; }
  // Pending rows that the next step may compute: those that have slots and do not attend to blocks
  // still being read.
  int32_t ready() const;
  // Whether the next rows attend to blocks that are still being read: their pass waits for them.
  bool waits_for_kv() const { return layers_for_next() != policy::KvLoad::kAllLayers; }
  // Whether the next rows are not ready because nothing of those blocks has arrived.
  bool held_by_load() const { return layers_for_next() == 0; }

  // Appends the next `count` (<= ready()) rows as rows of `context`. Returns how many of them want
  // logits: the last token that there is, and the drafted tokens behind it. The rows refer to the
  // call's session until they are computed.
  int32_t Append(int32_t count, int32_t context, std::vector<engine::Row>* rows);
  engine::ContextView View();
  // The last `count` rows that Append gave have been computed.
  void Advance(int32_t count) {
    computed_ = std::min(of_.kv.holes().After(computed_, count), of_.tokens.count());
  }
  // The drafted row in `slot`, which gave `density` to chunks, is the answer's next token.
  void Accept(int32_t slot, std::span<const float> density);

  // Chunks to claim so that the next `ahead` rows have slots; none while a claim is under way or
  // when they have. The caller sends the claim and calls ContextKv::AddChunks or EndClaim with its
  // result.
  std::optional<ClaimRange> NextClaim(int32_t ahead);

  // Chunks that are being read and could be computed instead, when the worker would soon have
  // nothing to compute. The caller asks the store, and calls OnLoad with its answer.
  struct More {
    int32_t computed_before = 0;  // chunks to compute below this one are computed
    int32_t chunks = 0;
  };
  std::optional<More> NextYield(int32_t ahead, int64_t now_ns);
  // As ContextKv::Apply. GiveUp must follow at once if a chunk is lost.
  absl::Status OnLoad(const LoadEvent& event, int64_t now_ns);
  // The tokens from this chunk on are computed, whatever the store reads. Not while a step of this
  // call is under way.
  void GiveUp(uint32_t chunk);

 private:
  // In which the next row may attend.
  uint32_t layers_for_next() const {
    return of_.kv.load().LayersFor(static_cast<uint32_t>(computed_ / engine::kChunkTokens));
  }
  // `rows` more have to be computed.
  void CountMore(int32_t rows);

  const Parts of_;
  int32_t computed_ = 0;  // tokens up to here have KV, or will have it when it has been read
};

}  // namespace withy::serving
