#include "serving/session/session.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "engine/kv/block.h"

namespace withy::serving {
absl::StatusOr<std::unique_ptr<Session>> Session::Create(const SessionEnv& env,
                                                         const CallRequest& request,
                                                         OpenedLease opened,
                                                         const engine::CancelCheck* cancelled) {
  WITHY_ASSIGN_OR_RETURN(engine::Sampler sampler,
                         engine::MakeSampler(request.answer.sampling, env.encoder.tokenizer()));
  constexpr engine::Truncation kRecord = engine::Truncation::kRecord;
  const int32_t window = env.window;
  std::vector<engine::Segment> segments = opened.segments;
  segments.insert(segments.end(), request.answer.prompt.begin(), request.answer.prompt.end());
  WITHY_ASSIGN_OR_RETURN(engine::EncodedConversation encoded,
                         request.rebuild
                             ? env.encoder.EncodeRecord(segments, window, cancelled)
                             : env.encoder.EncodePrompt(segments, window, opened.segments.size(),
                                                        cancelled, request.answer.truncation));
  if (request.rebuild) {
    encoded.history_tokens = encoded.stable_tokens = static_cast<int32_t>(encoded.ids.size());
  }
  auto session = std::unique_ptr<Session>(
      new Session(env, request, std::move(opened), window, std::move(sampler)));
  session->ids_ = std::move(encoded.ids);
  session->prompt_end_ = static_cast<int32_t>(session->ids_.size());
  session->answer_.BeginAt(session->prompt_end_);
  if (encoded.answer_begins_in_thought) session->answer_.BeginInThought();
  const bool rewritten = encoded.stable_tokens < encoded.history_tokens;
  session->kv_.AdoptResident(session->opened_.resident, session->ids_,
                             {.rebuild = request.rebuild,
                              .level_percent = request.answer.level_percent,
                              .history_tokens = encoded.history_tokens,
                              .window_moved = encoded.dropped_segments > 0 || rewritten ||
                                              request.answer.truncation != kRecord,
                              .record_replaced = session->opened_.left_out > 0});
  WITHY_RETURN_IF_ERROR(session->kv_.AdoptClaimed(session->opened_.claimed));
  CallUsage& usage = session->usage_;
  usage.context_tokens = encoded.history_tokens;
  usage.prompt_tokens = session->prompt_end_ - encoded.history_tokens;
  session->CountReused();
  usage.pruned_words = request.pruned_words;
  return session;
}

void Session::CountReused() {
  computed_ = kv_.holes().SkipPresent(0);
  usage_.prefilled_tokens = pending_rows();
  usage_.reused_tokens = prompt_end_ - usage_.prefilled_tokens;
  usage_.compressed_kv_tokens = kv_.compressed_tokens();
  usage_.other_level_kv_tokens = kv_.other_level_tokens(request_.answer.level_percent);
}

WantedChunks Session::Wanted() const {
  const bool may = !request_.context_id.empty() && !request_.rebuild && !kv_.faulty_chunk();
  return may ? kv_.Wanted(ids_, request_.answer.level_percent) : WantedChunks();
}

void Session::AdoptShared(std::span<const ResidentChunk> chunks) {
  kv_.AdoptShared(chunks, ids_);
  CountReused();
}

Session::Session(const SessionEnv& env, const CallRequest& request, OpenedLease opened,
                 int32_t window, engine::Sampler sampler)
    : env_(env),
      request_(request),
      opened_(std::move(opened)),
      window_(window),
      first_level_(engine::LevelIndex(env.model, request.answer.level_percent)),
      level_(first_level_),
      levels_(request.answer.level_percent),
      answer_(env.encoder.tokenizer(), request_, std::move(sampler),
              env.encoder.ToolsOf(opened_.segments, request_.answer.prompt), env.recorder),
      kv_(env.model, env.namer, opened_.arena) {}

absl::Status Session::Draft(std::span<const policy::DraftedToken> tokens) {
  if (!answer_begun_ || answer_.finished()) {
    return absl::FailedPreconditionError("a draft needs an answer that has begun and goes on");
  }
  WITHY_ASSIGN_OR_RETURN(
      tree_, policy::TokenTree::Create(tokens, env_.model.vocab_size, draft_room().depth,
                                       static_cast<int32_t>(ids_.size()) - 1));
  return absl::OkStatus();
}

// The last token of an answer is sampled and not computed.
DraftRoom Session::draft_room() const {
  const auto length = static_cast<int32_t>(ids_.size());
  const int32_t left = std::min(request_.answer.max_tokens - answer_.tokens(), window_ - length);
  return {.depth = std::max(0, left - 1), .slots = std::max(0, kv_.blocks().slots() - length)};
}

engine::Row Session::DraftRow() const {
  return {.token = ids_.back(),
          .position = static_cast<int32_t>(ids_.size()) - 1,
          .level = 0,
          .context_level = 0};
}

engine::ContextView Session::DraftView() {
  engine::ContextView view = kv_.blocks().View(kv_.holes().SkipPresent(0));
  view.density = {};
  return view;
}

int32_t Session::ready_rows() const {
  if (held_by_load()) return 0;
  const bool stops = kv_.load().reading() && !waits_for_kv();
  const int32_t end = stops ? kv_.holes().FirstReading() : kv_.blocks().slots();
  return std::min(pending_rows(), kv_.holes().Count(computed_, end));
}

std::optional<Session::More> Session::NextYield(int32_t ahead, int64_t now_ns) {
  if (!kv_.load().MayAsk(now_ns)) return std::nullopt;
  const int32_t left = kv_.holes().Count(computed_, kv_.holes().FirstReading());
  if (left > ahead / 2) return std::nullopt;
  const More more{
      .computed_before = std::min(computed_, kv_.holes().FirstReading()) / engine::kChunkTokens,
      .chunks = (ahead - left) / engine::kChunkTokens};
  kv_.load().OnAsked(static_cast<uint32_t>(more.computed_before));
  return more;
}

absl::Status Session::OnLoad(const LoadEvent& event, int64_t now_ns) {
  const int32_t before = pending_rows();
  WITHY_RETURN_IF_ERROR(kv_.Apply(event, now_ns));
  if (event.slots.empty()) return absl::OkStatus();
  const int32_t first = event.slots.front().chunk * engine::kChunkTokens;
  if (first < kv_.reused_tokens()) computed_ = kv_.holes().SkipPresent(std::min(computed_, first));
  CountMore(pending_rows() - before);
  return absl::OkStatus();
}

engine::ContextView Session::View() {
  engine::ContextView view = kv_.blocks().View(kv_.holes().SkipPresent(0));
  if (waits_for_kv()) view.layers_ready = &kv_.layers_ready();
  return view;
}

void Session::GiveUp(uint32_t chunk) {
  kv_.Truncate(static_cast<int32_t>(chunk));
  const int32_t before = pending_rows();
  computed_ = kv_.holes().SkipPresent(std::min(computed_, kv_.reused_tokens()));
  CountMore(pending_rows() - before);
}

void Session::CountMore(int32_t rows) {
  usage_.prefilled_tokens += rows;
  usage_.reused_tokens -= rows;
  usage_.compressed_kv_tokens = kv_.compressed_tokens();
  usage_.other_level_kv_tokens = kv_.other_level_tokens(request_.answer.level_percent);
}

int32_t Session::AppendRows(int32_t count, int32_t context, std::vector<engine::Row>* rows) {
  drafted_rows_ = tree_.rows() - 1;
  tree_density_.assign(
      static_cast<size_t>(drafted_rows_) * static_cast<size_t>(kv_.blocks().chunks()), 0);
  const int32_t last = static_cast<int32_t>(ids_.size()) - 1;  // the root of the tree
  int32_t want_logits = 0;
  for (int32_t slot = computed_; count > 0; slot = kv_.holes().SkipPresent(slot + 1), --count) {
    const bool recomputed = slot < kv_.reused_tokens();  // at the level that its chunk has
    engine::Row row{
        .slot = slot,
        .context = context,
        .level = recomputed ? first_level_ : level_,
        .context_level = std::min(recomputed ? first_level_ : level_, kv_.lowest_level()),
        .want_logits = !request_.rebuild && slot >= last,
        .ancestor_slots = {},
        .density = {}};
    if (slot <= last) {
      row.token = ids_[static_cast<size_t>(slot)];
      row.position = slot;
    } else {
      row.token = tree_.token(slot - last);
      row.position = last + tree_.depth(slot - last);
      row.ancestor_slots = tree_.AncestorSlots(slot - last);
      row.density = DensityOfRow(slot - last);
    }
    want_logits += row.want_logits ? 1 : 0;
    rows->push_back(row);
  }
  return want_logits;
}

std::optional<ClaimRange> Session::NextClaim(int32_t ahead) {
  // Slots for tokens that are not sampled yet, so that they need not wait for their blocks.
  const int32_t more = answer_.finished() || request_.rebuild ? 0 : engine::kChunkTokens / 2;
  const int32_t drafted = std::max(tree_.rows() - 1, answer_begun_ ? draft_ahead_ : 0);
  const int32_t useful = static_cast<int32_t>(ids_.size()) + std::max(more, drafted);
  const int32_t wanted = kv_.holes().After(computed_, std::max(ahead, drafted + 1));
  return kv_.BeginClaim(std::min({wanted, useful, window_}));
}

void Session::LowerLevel(int32_t percent) {
  level_ = engine::LevelIndex(env_.model, percent);
  levels_.Lower(std::max(computed_, kv_.reused_tokens()), percent);
}

int32_t LevelHistory::At(int32_t position) const {
  int32_t percent = spans_.front().percent;
  for (const Span& span : spans_) {
    if (span.first <= position) percent = span.percent;
  }
  return percent;
}

absl::StatusOr<std::vector<engine::AnswerDelta>> Session::TakeLogits(
    std::span<const float> logits) {
  answer_begun_ = true;
  const auto vocab = static_cast<size_t>(env_.model.vocab_size);
  const auto rows = static_cast<int32_t>(logits.size() / vocab);
  const policy::TokenTree tree = std::exchange(tree_, policy::TokenTree());
  std::vector<engine::AnswerDelta> deltas;
  for (int32_t row = 0; row >= 0;) {
    WITHY_ASSIGN_OR_RETURN(engine::AnswerDelta delta,
                           answer_.Pick(logits.subspan(static_cast<size_t>(row) * vocab, vocab),
                                        level_percent(), window_, &ids_));
    deltas.push_back(std::move(delta));
    if (answer_.finished()) break;
    row = tree.Child(row, ids_.back(), rows);
    if (row < 0) break;
    // Rows of the path lie behind those before it, so that what is written over is not wanted.
    if (tree.slot(row) != computed_) kv_.blocks().CopySlot(tree.slot(row), computed_);
    kv_.blocks().AddDensity(DensityOfRow(row));
    ++computed_;
  }
  return deltas;
}

std::vector<engine::Segment> Session::AppendedSegments(int64_t unix_s) const {
  std::vector<engine::Segment> appended = request_.answer.prompt;
  engine::DropUnchangedSettings(opened_.segments, appended);
  for (engine::Segment& segment : appended) {
    segment.unix_s = unix_s;
    segment.level_percent = levels_.At(prompt_end_ - 1);
  }
  appended.push_back(answer_.RecordSegment(level_percent(), unix_s));
  return appended;
}

// Sets how much of the record, with commit->appended, the window holds. Returns how many of the
// computed tokens are the first ones of that.
int32_t Session::MeasureRecord(LeaseCommit* commit) const {
  std::vector<engine::Segment> record = opened_.segments;
  record.insert(record.end(), commit->appended.begin(), commit->appended.end());
  const auto encoded =
      env_.encoder.EncodeRecord(record, window_, /*cancelled=*/nullptr, request_.answer.truncation);
  commit->context_tokens = static_cast<int32_t>(encoded.ok() ? encoded->ids.size() : ids_.size());
  if (!encoded.ok()) return 0;
  commit->dropped_segments = encoded->dropped_segments;
  const std::vector<int32_t>& ids = encoded->ids;
  const auto limit = std::min(ids.size(), static_cast<size_t>(computed_));
  const auto end = ids_.begin() + static_cast<int64_t>(limit);
  return static_cast<int32_t>(std::mismatch(ids_.begin(), end, ids.begin()).first - ids_.begin());
}

std::vector<ChunkName> Session::NameAndStamp(int32_t tokens) {
  std::vector<int32_t> levels;  // the lowest of each chunk, which is that of its last token
  for (int32_t chunk = 0; chunk < ChunksFor(tokens); ++chunk) {
    levels.push_back(levels_.At(std::min((chunk + 1) * engine::kChunkTokens, tokens) - 1));
  }
  return kv_.NameAndStamp({ids_.data(), static_cast<size_t>(tokens)}, std::move(levels), computed_);
}

LeaseCommit Session::MakeCommit(int64_t unix_s) {
  LeaseCommit commit;
  commit.request_id = request_.request_id;
  commit.request_digest = request_.request_digest;
  commit.decision = request_.decision;
  commit.sampling = request_.answer.sampling;
  if (request_.context_id.empty()) return commit;
  commit.appended = AppendedSegments(unix_s);
  commit.appended_tokens = usage_.prompt_tokens + answer_.tokens();
  commit.chunks = NameAndStamp(MeasureRecord(&commit));
  return commit;
}

// Computing less than a chunk again is as fast as keeping it. KV that was computed without a part
// of the record does not fit the record, which keeps that part.
bool Session::worth_keeping() const {
  return !request_.context_id.empty() && !request_.rebuild && !answer_begun_ &&
         opened_.left_out == 0 && computed_ - kv_.reused_tokens() >= engine::kChunkTokens;
}

LeaseCommit Session::MakeUnanswered() {
  LeaseCommit commit;
  commit.context_tokens = usage_.context_tokens;
  commit.chunks = NameAndStamp(computed_);
  return commit;
}

CallOutcome Session::Outcome() const {
  CallOutcome outcome;
  answer_.Describe(&outcome);
  outcome.usage = usage_;
  outcome.speculation = speculation_;
  return outcome;
}

}  // namespace withy::serving
