// One call between its lease and its commit. Its parts: call_text.h (record and prompt),
// call_tokens.h (their tokens), context_kv.h (the KV that it has and is owed), step_rows.h (what
// the next step computes), step_draft.h (what is drafted), call_answer.h. Neighbours: step_runner.h
// drives many of these; lease.h brings blocks. No threads, no clock, no messages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/sampling/sampler.h"
#include "engine/session/conversation.h"
#include "engine/session/solo_answer.h"
#include "policy/constants.h"
#include "serving/call/call.h"
#include "serving/session/call_answer.h"
#include "serving/session/call_text.h"
#include "serving/session/call_tokens.h"
#include "serving/session/chunk_identity.h"
#include "serving/session/context_kv.h"
#include "serving/session/lease.h"
#include "serving/session/served_window.h"
#include "serving/session/step_draft.h"
#include "serving/session/step_rows.h"
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

// Not thread-safe: made by one thread, then owned by another.
class Session {
 public:
  // Encodes record and prompt (a rebuild: the record alone), and takes over the resident KV that
  // these tokens need. `cancelled` is polled while they are encoded; null: never.
  // Errors: INVALID_ARGUMENT (the template refuses the messages), OUT_OF_RANGE (window), CANCELLED.
  static absl::StatusOr<std::unique_ptr<Session>> Create(
      const SessionEnv& env, const CallRequest& request, OpenedLease opened,
      const engine::CancelCheck* cancelled = nullptr);

  const CallUsage& usage() const { return usage_; }
  uint64_t call_id() const { return request_.call_id; }

  // --- its parts
  // The KV that it has, is owed and claims. A faulty chunk must be reported before the first claim.
  // A chunk that reaches beyond the record is no fault: a call that ended before its answer left it
  // there, and it is used if it fits this prompt, else claimed anew.
  const ContextKv& kv() const { return kv_; }
  ContextKv& kv() { return kv_; }
  // What the next step may compute.
  const StepRows& rows() const { return rows_; }
  StepRows& rows() { return rows_; }
  // What is drafted.
  const StepDraft& draft() const { return draft_; }
  StepDraft& draft() { return draft_; }
  const CallAnswer& answer() const { return answer_; }

  // --- KV of other contexts, before all that follows
  // The chunks that the call would compute and that other contexts may have; no ways: none.
  WantedChunks Wanted() const;
  void AdoptShared(std::span<const ResidentChunk> chunks);

  // --- the answer
  bool decoding() const { return tokens_.answer_begun; }
  // Tokens of prompt and answer so far: what a draft goes on from.
  std::span<const int32_t> tokens() const { return tokens_.ids; }
  int32_t level_percent() const { return tokens_.levels.now(); }
  // Sets the level of the rows that are appended from now on: one of the model's, lower than
  // before.
  void LowerLevel(int32_t percent);
  // Picks the next tokens, at least one, from the logits of the step that StepRows::Advance ended:
  // [rows that want logits, vocab], in the order of StepRows::Append. Each token that was drafted
  // keeps its KV, and the logits behind it give the next one. Errors: as CallAnswer::Pick.
  absl::StatusOr<std::vector<engine::AnswerDelta>> TakeLogits(std::span<const float> logits);
  // As CallAnswer::Finish.
  engine::AnswerDelta Finish(engine::FinishReason reason) { return answer_.Finish(reason); }

  // --- its end
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
  Session(const SessionEnv& env, const CallRequest& request, OpenedLease opened,
          engine::Sampler sampler);

  std::vector<ChunkName> NameAndStamp(int32_t tokens);

  const SessionEnv& env_;
  const CallRequest request_;
  const OpenedLease opened_;
  const CallText text_;
  CallTokens tokens_;
  CallAnswer answer_;
  ContextKv kv_;
  StepDraft draft_;
  CallUsage usage_;
  StepRows rows_;
};

}  // namespace withy::serving
