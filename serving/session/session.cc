#include "serving/session/session.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace withy::serving {

absl::StatusOr<std::unique_ptr<Session>> Session::Create(const SessionEnv& env,
                                                         const CallRequest& request,
                                                         OpenedLease opened,
                                                         const engine::CancelCheck* cancelled) {
  WITHY_ASSIGN_OR_RETURN(engine::Sampler sampler,
                         engine::MakeSampler(request.answer.sampling, env.encoder.tokenizer()));
  auto session =
      std::unique_ptr<Session>(new Session(env, request, std::move(opened), std::move(sampler)));
  CallTokens& tokens = session->tokens_;
  WITHY_ASSIGN_OR_RETURN(engine::EncodedConversation encoded,
                         session->text_.Encode(tokens.window, cancelled));
  tokens.ids = std::move(encoded.ids);
  tokens.prompt_end = tokens.count();
  session->answer_.BeginBehind(tokens.ids);
  if (encoded.answer_begins_in_thought) session->answer_.BeginInThought();
  const bool rewritten = encoded.stable_tokens < encoded.history_tokens;
  const bool cut = request.answer.truncation != engine::Truncation::kRecord;
  session->kv_.AdoptResident(session->opened_.resident, tokens.ids,
                             {.rebuild = request.rebuild,
                              .level_percent = request.answer.level_percent,
                              .history_tokens = encoded.history_tokens,
                              .window_moved = encoded.dropped_segments > 0 || rewritten || cut,
                              .record_replaced = session->opened_.left_out > 0});
  WITHY_RETURN_IF_ERROR(session->kv_.AdoptClaimed(session->opened_.claimed));
  CallUsage& usage = session->usage_;
  usage.context_tokens = encoded.history_tokens;
  usage.prompt_tokens = tokens.prompt_end - encoded.history_tokens;
  usage.pruned_words = request.pruned_words;
  session->rows_.Begin();
  return session;
}

Session::Session(const SessionEnv& env, const CallRequest& request, OpenedLease opened,
                 engine::Sampler sampler)
    : env_(env),
      request_(request),
      opened_(std::move(opened)),
      text_(env.encoder, request_, opened_.segments),
      tokens_{.window = env.window, .levels = {env.model, request.answer.level_percent}},
      answer_(env.encoder.tokenizer(), request_, std::move(sampler),
              env.encoder.ToolsOf(opened_.segments, request_.answer.prompt), env.recorder),
      kv_(env.model, env.namer, opened_.arena),
      draft_(env.model, request_, tokens_, answer_, kv_),
      rows_({.request = request_,
             .tokens = tokens_,
             .answer = answer_,
             .draft = draft_,
             .kv = kv_,
             .usage = usage_}) {}

WantedChunks Session::Wanted() const {
  const bool may = !request_.context_id.empty() && !request_.rebuild && !kv_.faulty_chunk();
  return may ? kv_.Wanted(tokens_.ids, request_.answer.level_percent) : WantedChunks();
}

void Session::AdoptShared(std::span<const ResidentChunk> chunks) {
  kv_.AdoptShared(chunks, tokens_.ids);
  rows_.Begin();
}

void Session::LowerLevel(int32_t percent) {
  tokens_.levels.Lower(std::max(rows_.computed(), kv_.reused_tokens()), percent);
}

absl::StatusOr<std::vector<engine::AnswerDelta>> Session::TakeLogits(
    std::span<const float> logits) {
  tokens_.answer_begun = true;
  const auto vocab = static_cast<size_t>(env_.model.vocab_size);
  const auto rows = static_cast<int32_t>(logits.size() / vocab);
  const policy::TokenTree tree = draft_.TakeTree();
  std::vector<engine::AnswerDelta> deltas;
  for (int32_t row = 0; row >= 0;) {
    WITHY_ASSIGN_OR_RETURN(engine::AnswerDelta delta,
                           answer_.Pick(logits.subspan(static_cast<size_t>(row) * vocab, vocab),
                                        level_percent(), tokens_.window, &tokens_.ids));
    deltas.push_back(std::move(delta));
    if (answer_.finished()) break;
    row = tree.Child(row, tokens_.ids.back(), rows);
    if (row < 0) break;
    rows_.Accept(tree.slot(row), draft_.DensityOfRow(row));
  }
  return deltas;
}

std::vector<ChunkName> Session::NameAndStamp(int32_t tokens) {
  std::vector<int32_t> levels;  // the lowest of each chunk, which is that of its last token
  for (int32_t chunk = 0; chunk < ChunksFor(tokens); ++chunk) {
    levels.push_back(tokens_.levels.At(std::min((chunk + 1) * engine::kChunkTokens, tokens) - 1));
  }
  return kv_.NameAndStamp({tokens_.ids.data(), static_cast<size_t>(tokens)}, std::move(levels),
                          rows_.computed());
}

LeaseCommit Session::MakeCommit(int64_t unix_s) {
  LeaseCommit commit;
  commit.request_id = request_.request_id;
  commit.request_digest = request_.request_digest;
  commit.decision = request_.decision;
  commit.sampling = request_.answer.sampling;
  if (request_.context_id.empty()) return commit;
  commit.appended = text_.Appended(tokens_, answer_.RecordSegment(level_percent(), unix_s), unix_s);
  commit.appended_tokens = usage_.prompt_tokens + answer_.tokens();
  const CallText::NextRecord next = text_.Measure(commit.appended, tokens_, rows_.computed());
  commit.context_tokens = next.context_tokens;
  commit.dropped_segments = next.dropped_segments;
  commit.chunks = NameAndStamp(next.kept_tokens);
  return commit;
}

// Computing less than a chunk again is as fast as keeping it. KV that was computed without a part
// of the record does not fit the record, which keeps that part.
bool Session::worth_keeping() const {
  return !request_.context_id.empty() && !request_.rebuild && !decoding() &&
         opened_.left_out == 0 && rows_.computed() - kv_.reused_tokens() >= engine::kChunkTokens;
}

LeaseCommit Session::MakeUnanswered() {
  LeaseCommit commit;
  commit.context_tokens = usage_.context_tokens;
  commit.chunks = NameAndStamp(rows_.computed());
  return commit;
}

CallOutcome Session::Outcome() const {
  CallOutcome outcome;
  answer_.Describe(&outcome);
  outcome.usage = usage_;
  outcome.speculation = draft_.stats();
  return outcome;
}

}  // namespace withy::serving
