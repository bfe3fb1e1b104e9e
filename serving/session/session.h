// One call between its lease and its commit: its tokens, which of them are computed, where their KV
// goes, the answer so far. Neighbours: step_runner.h drives many of these; lease.h brings blocks;
// policy/draft/token_tree.h is the shape of a decode step. No threads, no clock, no messages.
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
#include "engine/session/conversation.h"
#include "engine/session/solo_answer.h"
#include "policy/constants.h"
#include "policy/draft/token_tree.h"
#include "serving/call/call.h"
#include "serving/session/call_answer.h"
#include "serving/session/chunk_identity.h"
#include "serving/session/context_kv.h"
#include "serving/session/lease.h"
#include "serving/session/served_window.h"
#include "telemetry/recorder.h"

namespace withy::serving {

// Shared by all sessions of a worker; outlives them. Immutable.
struct SessionEnv {
  const engine::ModelInfo& model;
  const engine::ConversationEncoder& encoder;
  const ChunkNamer& namer;
  ServedWindow window = 0;
  int32_t draft_slots = 0;                            // that drafts of a call take at most
  int32_t prompt_rows = policy::kRowsWithoutAnswers;  // of prompts, in a step without answers
  telemetry::Recorder* recorder = nullptr;            // of the spans inside sampling; null: none
};

// At which levels the tokens of a context are computed, in per cent; the levels fall.
class LevelHistory {
 public:
  explicit LevelHistory(int32_t percent) : spans_{{.first = 0, .percent = percent}} {}
  int32_t now() const { return spans_.back().percent; }
  int32_t At(int32_t position) const;
  // Tokens from `position` on are computed at `percent`.
  void Lower(int32_t position, int32_t percent) {
    spans_.push_back({.first = position, .percent = percent});
  }

 private:
  struct Span {
    int32_t first = 0;
    int32_t percent = 100;
  };
  std::vector<Span> spans_;  // at least one, by position
};

// How far the next decode step may be drafted.
struct DraftRoom {
  int32_t depth = 0;  // tokens that the answer may still have, but its last one
  int32_t slots = 0;  // for drafted tokens
};

// Not thread-safe: made by one thread, then owned by another.
class Session {
 public:
  // Encodes record and prompt (a rebuild: the record alone), and takes over the resident KV that
  // these tokens need. `cancelled` is polled while they are encoded; null: never.
  // Errors: INVALID_ARGUMENT (the template refuses the messages), OUT_OF_RANGE (window), CANCELLED.
  static absl::StatusOr<std::unique_ptr<Session>> Create(
      const SessionEnv& env, const CallRequest& request, OpenedLease opened,
      const engine::CancelCheck* cancelled = nullptr);

  // The first resident chunk whose content is not that of its identity, if any; it must be reported
  // before the first claim. A chunk that reaches beyond the record is no fault: a call that ended
  // before its answer left it there, and it is used if it fits this prompt, else claimed anew.
  std::optional<int32_t> faulty_chunk() const { return kv_.faulty_chunk(); }
  const CallUsage& usage() const { return usage_; }
  uint64_t call_id() const { return request_.call_id; }

  // --- KV of other contexts, before all that follows
  // The chunks that the call would compute and that other contexts may have; no ways: none.
  WantedChunks Wanted() const;
  void AdoptShared(std::span<const ResidentChunk> chunks);

  // --- what the next step may compute
  // Rows without KV: tokens of the prompt, or the token tree of the next decode step.
  int32_t pending_rows() const {
    return kv_.holes().Count(computed_, static_cast<int32_t>(ids_.size())) + tree_.rows() - 1;
  }
  // The first token without KV: where the next row is computed. Chunks behind it may be there.
  int32_t computed() const { return computed_; }
  // Pending rows that the next step may compute: those that have slots and do not attend to blocks
  // still being read.
  int32_t ready_rows() const;
  // Whether the next rows attend to blocks that are still being read: their pass waits for them.
  bool waits_for_kv() const { return layers_for_next() != policy::KvLoad::kAllLayers; }
  // Whether the next rows are not ready because nothing of those blocks has arrived.
  bool held_by_load() const { return layers_for_next() == 0; }
  const policy::KvLoad& load() const { return kv_.load(); }
  policy::KvLoad& load() { return kv_.load(); }
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
  DraftRoom draft_room() const;
  // Slots to claim ahead for drafted tokens to come.
  void set_draft_ahead(int32_t tokens) { draft_ahead_ = tokens; }
  // A row of the answer's last token by the model's lowest level, to draft what follows it. Its
  // slot is left to the caller.
  engine::Row DraftRow() const;
  // Slots for such rows: behind those of the next decode step's rows, so that the step may be under
  // way. What is written there is written over or never named.
  int32_t first_draft_slot() const { return static_cast<int32_t>(ids_.size()) - 1 + tree_.rows(); }
  int32_t end_draft_slots() const { return kv_.blocks().slots(); }
  // View for such rows, whose attention does not count.
  engine::ContextView DraftView();
  SpeculationStats& speculation() { return speculation_; }
  // Appends the next `count` (<= ready_rows()) rows as rows of `context`. Returns how many of them
  // want logits: the last token that there is, and the drafted tokens behind it. The rows refer to
  // this session until they are computed.
  int32_t AppendRows(int32_t count, int32_t context, std::vector<engine::Row>* rows);
  engine::ContextView View();
  // The last `count` rows that AppendRows gave have been computed.
  void Advance(int32_t count) {
    computed_ = std::min(kv_.holes().After(computed_, count), static_cast<int32_t>(ids_.size()));
  }

  // --- blocks
  // Chunks to claim so that the next `ahead` rows have slots; none while a claim is under way or
  // when they have. The caller sends the claim and calls AddChunks or ClaimRefused with its result.
  std::optional<ClaimRange> NextClaim(int32_t ahead);
  // Errors: as ContextKv::AddChunks.
  absl::Status AddChunks(std::span<const ChunkSlot> chunks) { return kv_.AddChunks(chunks); }
  void ClaimRefused() { kv_.EndClaim(); }

  // --- the level
  int32_t level_percent() const { return levels_.now(); }
  // Sets the level of the rows that are appended from now on: one of the model's, lower than
  // before.
  void LowerLevel(int32_t percent);

  // --- the answer
  // Picks the next tokens, at least one, from the logits of the step that Advance ended: [rows that
  // want logits, vocab], in the order of AppendRows. Each token that was drafted keeps its KV, and
  // the logits behind it give the next one. Errors: as CallAnswer::Pick.
  absl::StatusOr<std::vector<engine::AnswerDelta>> TakeLogits(std::span<const float> logits);
  // As CallAnswer::Finish.
  engine::AnswerDelta Finish(engine::FinishReason reason) { return answer_.Finish(reason); }
  const CallAnswer& answer() const { return answer_; }

  // What the call leaves in the store. Writes the headers of the blocks that it wrote. `unix_s`:
  // the present time.
  LeaseCommit MakeCommit(int64_t unix_s);
  // Whether a call that ends before its answer has computed enough for its retry to go on from
  // there.
  bool worth_keeping() const;
  // What such a call leaves in the store: KV and its names, nothing for the record.
  LeaseCommit MakeUnanswered();
  CallOutcome Outcome() const;

 private:
  Session(const SessionEnv& env, const CallRequest& request, OpenedLease opened, int32_t window,
          engine::Sampler sampler);

  // In which the next row may attend.
  uint32_t layers_for_next() const {
    return kv_.load().LayersFor(static_cast<uint32_t>(computed_ / engine::kChunkTokens));
  }
  void CountReused();
  void CountMore(int32_t rows);
  // Of drafted row `row`, while its step is computed and its logits are taken.
  std::span<float> DensityOfRow(int32_t row) {
    const auto chunks = tree_density_.size() / static_cast<size_t>(drafted_rows_);
    return std::span(tree_density_).subspan(static_cast<size_t>(row - 1) * chunks, chunks);
  }
  std::vector<engine::Segment> AppendedSegments(int64_t unix_s) const;
  int32_t MeasureRecord(LeaseCommit* commit) const;
  std::vector<ChunkName> NameAndStamp(int32_t tokens);

  const SessionEnv& env_;
  const CallRequest request_;
  const OpenedLease opened_;
  const int32_t window_;       // when the call began
  const int32_t first_level_;  // index of the model's level, when the call began
  int32_t level_;              // likewise, now
  LevelHistory levels_;
  CallAnswer answer_;

  std::vector<int32_t> ids_;  // prompt, then the answer
  int32_t prompt_end_ = 0;    // ids_ up to here are the prompt
  int32_t computed_ = 0;      // ids_ up to here have KV, or will have it when it has been read
  policy::TokenTree tree_;    // of the next decode step
  // Attention that its drafted rows give to chunks, [row, chunk]: it counts once they are accepted.
  std::vector<float> tree_density_;
  int32_t drafted_rows_ = 0;  // that it has room for
  int32_t draft_ahead_ = 0;
  SpeculationStats speculation_;
  bool answer_begun_ = false;
  ContextKv kv_;
  CallUsage usage_;
};

}  // namespace withy::serving
