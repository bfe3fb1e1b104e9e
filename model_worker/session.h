// One call between its lease and its commit: which tokens there are, which are computed, where
// their KV goes, what the answer is so far. Neighbours: scheduler.h drives many of these; lease.h
// is where blocks come from. No threads, no clock, no messages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/sampling/sampler.h"
#include "engine/session/answer_stream.h"
#include "engine/session/conversation.h"
#include "engine/session/solo_answer.h"
#include "model_worker/call.h"
#include "model_worker/chunk_identity.h"
#include "model_worker/lease.h"
#include "policy/token_tree.h"

namespace withy::model_worker {

// What all sessions of a worker share; outlives them. Immutable.
struct SessionEnv {
  const engine::ModelInfo& model;
  const engine::ConversationEncoder& encoder;
  const ChunkNamer& namer;
  int32_t window = 0;  // tokens of a context at most
};

// Chunks to ask the store for.
struct ClaimRange {
  int32_t first = 0;
  int32_t count = 0;
};

// Not thread-safe: made by one thread, then owned by another.
class Session {
 public:
  // Encodes record and prompt (a rebuild: the record alone), and finds out how much of the resident
  // KV is what these tokens need. `cancelled` is asked while they are encoded; null: never.
  // Errors: INVALID_ARGUMENT (the template refuses the messages), OUT_OF_RANGE (window), CANCELLED.
  static absl::StatusOr<std::unique_ptr<Session>> Create(
      const SessionEnv& env, const CallRequest& request, OpenedLease opened,
      const engine::CancelCheck* cancelled = nullptr);

  // The first resident chunk that is not what its identity says, if any; it has to be reported
  // before the first claim. A chunk that reaches beyond the record, left there by a call that ended
  // before its answer, is none: it fits this prompt or is claimed anew.
  std::optional<int32_t> faulty_chunk() const { return faulty_chunk_; }
  const CallUsage& usage() const { return usage_; }

  // --- what the next step may compute
  int32_t prefill_tokens() const { return usage_.prefilled_tokens; }
  // Rows without KV: tokens of the prompt, or the token tree of the next decode step.
  int32_t pending_rows() const {
    return static_cast<int32_t>(ids_.size()) - computed_ + tree_.rows() - 1;
  }
  int32_t computed() const { return computed_; }  // tokens of the context that have KV
  int32_t ready_rows() const { return std::min(pending_rows(), slots_ - computed_); }
  bool decoding() const { return answer_begun_; }
  // Sets the tokens that are computed beside the answer's last one in the next decode step.
  // TakeLogits follows them as long as the sampled token is among them, so that one step may give
  // several tokens: the answer is the same as without. Tokens beyond the answer's bound or the
  // window are left out. Not while a step of this call is under way; holds for one step.
  // Errors: FAILED_PRECONDITION before the first token and after the last; else as
  // policy::TokenTree::Create.
  absl::Status Draft(std::span<const policy::DraftedToken> tokens);
  // Tokens of prompt and answer so far: what a draft goes on from.
  std::span<const int32_t> tokens() const { return ids_; }
  // Appends the next `count` (<= ready_rows()) rows as rows of `context`. Returns how many of them
  // want logits: the last token that there is, and the drafted tokens behind it. The rows refer to
  // this session until they are computed.
  int32_t AppendRows(int32_t count, int32_t context, std::vector<engine::Row>* rows) const;
  engine::ContextView View() const {
    return {.blocks = blocks_, .committed_tokens = read_only_tokens_};
  }
  // The last `count` rows that AppendRows gave have been computed.
  void Advance(int32_t count) {
    computed_ = std::min(computed_ + count, static_cast<int32_t>(ids_.size()));
  }

  // --- blocks
  // Chunks to claim so that `ahead` more rows than are computed have slots; none while a claim is
  // under way or when there are enough. The caller sends it: the session then waits for AddBlocks
  // or ClaimRefused.
  std::optional<ClaimRange> NextClaim(int32_t ahead);
  // Errors: INTERNAL when the store gave other chunks or blocks than were asked for.
  absl::Status AddBlocks(std::span<const ChunkBlocks> chunks);
  void ClaimRefused() { claim_.reset(); }

  // --- the level
  int32_t level_percent() const { return level_spans_.back().percent; }
  // Rows that are appended from now on are computed at this level of the model's, a lower one than
  // before.
  void LowerLevel(int32_t percent);

  // --- the answer
  // Picks the next tokens, at least one, from the logits of the step that Advance ended: [rows that
  // want logits, vocab], in the order of AppendRows. Each token that was drafted keeps its KV, and
  // the logits behind it give the next one. Errors: as Sampler::Pick.
  absl::StatusOr<std::vector<engine::AnswerDelta>> TakeLogits(std::span<const float> logits);
  // Ends the answer for a reason from outside; returns what was held back.
  engine::AnswerDelta Finish(engine::FinishReason reason);
  bool finished() const { return answer_.finished(); }
  bool has_answer() const { return !tokens_.empty(); }
  engine::FinishReason reason() const { return answer_.reason(); }

  // What to leave behind, and the headers of the blocks that were written, stamped for it. `unix_s`
  // is the present time.
  LeaseCommit MakeCommit(int64_t unix_s) const;
  // Whether enough was computed that a call which ends before its answer should keep it, so that
  // its retry goes on from there.
  bool worth_keeping() const;
  // What such a call leaves behind: KV and its names, nothing for the record.
  LeaseCommit MakeUnanswered() const;
  CallOutcome Outcome() const;

 private:
  Session(const SessionEnv& env, const CallRequest& request, OpenedLease opened,
          engine::Sampler sampler);

  // Computed at `percent` from position `first` on.
  struct LevelSpan {
    int32_t first = 0;
    int32_t percent = 100;
  };

  engine::Row RowAt(int32_t index, int32_t context) const;
  absl::StatusOr<engine::AnswerDelta> PickToken(std::span<const float> logits);
  void MoveToken(int32_t from_slot, int32_t to_slot);
  int32_t LevelAt(int32_t position) const;
  void AdoptResident();
  absl::Status AdoptClaimed();
  bool HeadersMatch(const ResidentChunk& chunk) const;
  void PushChunk(std::span<const uint32_t> blocks);
  std::vector<engine::Segment> AppendedSegments(int64_t unix_s) const;
  int32_t MeasureRecord(LeaseCommit* commit) const;
  std::vector<ChunkName> NameChunks(int32_t tokens) const;
  void NameAndStamp(int32_t tokens, LeaseCommit* commit) const;
  void StampHeaders(std::span<const ChunkName> names, size_t first) const;

  const SessionEnv& env_;
  const CallRequest request_;
  const OpenedLease opened_;
  int32_t level_;                            // index of the model's level
  std::vector<LevelSpan> level_spans_;       // at least one; the levels fall
  std::vector<int32_t> answer_levels_ = {};  // that tokens were made at
  engine::Sampler sampler_;
  engine::AnswerStream answer_;

  std::vector<int32_t> ids_;      // prompt, then the answer
  int32_t prompt_end_ = 0;        // ids_ up to here are the prompt
  int32_t computed_ = 0;          // ids_ up to here have KV
  policy::TokenTree tree_;        // of the next decode step
  int32_t slots_ = 0;             // tokens that blocks_ has room for
  int32_t read_only_tokens_ = 0;  // KV that was there before
  bool answer_begun_ = false;
  bool window_moved_ = false;    // history had to be left out
  std::vector<ChunkName> kept_;  // resident chunks that stay in use
  int32_t lowest_kept_level_;    // of kept_, as an index; the full model's where there is none
  std::optional<int32_t> faulty_chunk_;
  std::optional<ClaimRange> claim_;
  std::vector<std::byte*> blocks_;  // [chunk * layers + layer]
  CallUsage usage_;
  std::vector<engine::Sample> tokens_;
};

}  // namespace withy::model_worker
