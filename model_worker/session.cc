#include "model_worker/session.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/kv/block.h"
#include "engine/weights/crc32c.h"

namespace withy::model_worker {
namespace {

constexpr int32_t kChunk = engine::kChunkTokens;

int32_t ChunksFor(int32_t tokens) { return (tokens + kChunk - 1) / kChunk; }

engine::KvBlockHeader ReadHeader(const std::byte* block) {
  engine::KvBlockHeader header;
  std::memcpy(&header, block, sizeof(header));
  return header;
}

uint32_t PayloadChecksum(const std::byte* block, size_t block_bytes) {
  return engine::Crc32c(
      0, {block + sizeof(engine::KvBlockHeader), block_bytes - sizeof(engine::KvBlockHeader)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Create(const SessionEnv& env,
                                                         const CallRequest& request,
                                                         OpenedLease opened,
                                                         const engine::CancelCheck* cancelled) {
  WITHY_ASSIGN_OR_RETURN(engine::Sampler sampler,
                         engine::MakeSampler(request.answer.sampling, env.encoder.tokenizer()));
  std::vector<engine::Segment> segments = opened.segments;
  segments.insert(segments.end(), request.answer.prompt.begin(), request.answer.prompt.end());
  WITHY_ASSIGN_OR_RETURN(
      engine::EncodedConversation encoded,
      request.rebuild
          ? env.encoder.EncodeRecord(segments, env.window, cancelled)
          : env.encoder.EncodePrompt(segments, env.window, opened.segments.size(), cancelled));
  if (request.rebuild) encoded.history_tokens = static_cast<int32_t>(encoded.ids.size());
  auto session =
      std::unique_ptr<Session>(new Session(env, request, std::move(opened), std::move(sampler)));
  session->ids_ = std::move(encoded.ids);
  session->prompt_end_ = static_cast<int32_t>(session->ids_.size());
  session->window_moved_ = encoded.dropped_segments > 0;
  CallUsage& usage = session->usage_;
  usage.context_tokens = encoded.history_tokens;
  session->AdoptResident();
  WITHY_RETURN_IF_ERROR(session->AdoptClaimed());
  usage.prompt_tokens = session->prompt_end_ - encoded.history_tokens;
  usage.reused_tokens = session->computed_;
  usage.prefilled_tokens = session->prompt_end_ - session->computed_;
  usage.pruned_words = request.pruned_words;
  return session;
}

Session::Session(const SessionEnv& env, const CallRequest& request, OpenedLease opened,
                 engine::Sampler sampler)
    : env_(env),
      request_(request),
      opened_(std::move(opened)),
      level_(engine::LevelIndex(env.model, request.answer.level_percent)),
      level_spans_{{.first = 0, .percent = request.answer.level_percent}},
      sampler_(std::move(sampler)),
      answer_(env.encoder.tokenizer(), request.answer.max_tokens, request.answer.stop),
      lowest_kept_level_(static_cast<int32_t>(env.model.levels.size()) - 1) {}

// A block that this attachment wrote needs no second look; one from before it is checked byte by
// byte, and stamped so that the next call need not.
bool Session::HeadersMatch(const ResidentChunk& chunk) const {
  if (chunk.where.blocks.size() != static_cast<size_t>(env_.model.kv.layers)) return false;
  for (size_t layer = 0; layer < chunk.where.blocks.size(); ++layer) {
    if (chunk.where.blocks[layer] >= opened_.arena->block_count()) return false;
    std::byte* block = opened_.arena->Block(chunk.where.blocks[layer]);
    engine::KvBlockHeader header = ReadHeader(block);
    if (header.layer != layer || header.filled != chunk.name.tokens ||
        header.format != engine::KvFormat::kQ8 ||
        std::memcmp(header.identity, chunk.name.identity.data(), sizeof(header.identity)) != 0) {
      return false;
    }
    if (header.epoch == opened_.arena->epoch()) continue;
    if (header.checksum != PayloadChecksum(block, env_.model.kv.block_bytes)) return false;
    header.epoch = opened_.arena->epoch();
    std::memcpy(block, &header, sizeof(header));
  }
  return true;
}

void Session::AdoptResident() {
  std::vector<ChunkName> names;
  for (const ResidentChunk& chunk : opened_.resident) {
    if (request_.rebuild && chunk.name.level_percent < level_percent()) break;
    names.push_back(chunk.name);
  }
  const size_t named = env_.namer.MatchingChunks(names, ids_);
  size_t matching = 0;
  while (matching < named && HeadersMatch(opened_.resident[matching])) ++matching;
  // What was computed with segments that are left out now is no fault, but claimed anew.
  if (matching < names.size() && !request_.rebuild && opened_.left_out == 0) {
    const int32_t end = static_cast<int32_t>(matching) * kChunk + names[matching].tokens;
    // Where older messages were left out, other tokens stand at these positions now: no fault.
    if (matching < named || (end <= usage_.context_tokens && !window_moved_)) {
      faulty_chunk_ = static_cast<int32_t>(matching);
    }
  }
  for (size_t i = 0; i < matching; ++i) {
    // The last token of a prompt is always computed, for its logits are where the answer begins;
    // what is computed is not written into a chunk that has it already.
    if (!request_.rebuild && computed_ + names[i].tokens >= prompt_end_) matching = i;
    if (i == matching) break;
    PushChunk(opened_.resident[i].where.blocks);
    computed_ += names[i].tokens;
  }
  kept_.assign(names.begin(), names.begin() + static_cast<int64_t>(matching));
  for (const ChunkName& name : kept_) {
    const int32_t level = engine::LevelIndex(env_.model, name.level_percent);
    if (level >= 0) lowest_kept_level_ = std::min(lowest_kept_level_, level);
  }
  read_only_tokens_ = computed_;
}

absl::Status Session::AdoptClaimed() {
  if (opened_.claimed.empty()) return absl::OkStatus();
  if (slots_ > 0) {
    return absl::InternalError("context store: chunks claimed beside those of a context");
  }
  claim_ = ClaimRange{.first = 0, .count = static_cast<int32_t>(opened_.claimed.size())};
  return AddBlocks(opened_.claimed);
}

void Session::PushChunk(std::span<const uint32_t> blocks) {
  for (const uint32_t number : blocks) blocks_.push_back(opened_.arena->Block(number));
  slots_ += kChunk;
}

absl::Status Session::Draft(std::span<const policy::DraftedToken> tokens) {
  if (!answer_begun_ || finished()) {
    return absl::FailedPreconditionError("a draft needs an answer that has begun and goes on");
  }
  // The last token of an answer is sampled and not computed.
  const auto length = static_cast<int32_t>(ids_.size());
  const int32_t left = std::min(request_.answer.max_tokens - static_cast<int32_t>(tokens_.size()),
                                env_.window - length);
  WITHY_ASSIGN_OR_RETURN(
      tree_, policy::TokenTree::Create(tokens, env_.model.vocab_size, left - 1, length - 1));
  return absl::OkStatus();
}

// The row of token `index` of ids_, or of the tree whose root is the last one.
engine::Row Session::RowAt(int32_t index, int32_t context) const {
  engine::Row row{.context = context,
                  .level = level_,
                  .context_level = std::min(level_, lowest_kept_level_),
                  .ancestor_slots = {}};
  const int32_t last = static_cast<int32_t>(ids_.size()) - 1;
  row.want_logits = !request_.rebuild && index >= last;
  row.slot = index;
  if (index <= last) {
    row.token = ids_[static_cast<size_t>(index)];
    row.position = index;
  } else {
    const int32_t tree_row = index - last;
    row.token = tree_.token(tree_row);
    row.position = last + tree_.depth(tree_row);
    row.ancestor_slots = tree_.AncestorSlots(tree_row);
  }
  return row;
}

int32_t Session::AppendRows(int32_t count, int32_t context, std::vector<engine::Row>* rows) const {
  int32_t want_logits = 0;
  for (int32_t i = 0; i < count; ++i) {
    rows->push_back(RowAt(computed_ + i, context));
    want_logits += rows->back().want_logits ? 1 : 0;
  }
  return want_logits;
}

std::optional<ClaimRange> Session::NextClaim(int32_t ahead) {
  if (claim_.has_value()) return std::nullopt;
  // One token beyond those there are: the next one's slot should be there when it is sampled.
  const int32_t more = finished() || request_.rebuild ? 0 : kChunk / 2;
  const int32_t tree_end = computed_ + tree_.rows();
  const int32_t useful = std::max(static_cast<int32_t>(ids_.size()) + more, tree_end);
  const int32_t wanted = std::min({std::max(computed_ + ahead, tree_end), useful, env_.window});
  if (wanted <= slots_) return std::nullopt;
  const int32_t first = slots_ / kChunk;
  claim_ = ClaimRange{.first = first, .count = ChunksFor(wanted) - first};
  return claim_;
}

absl::Status Session::AddBlocks(std::span<const ChunkBlocks> chunks) {
  const ClaimRange claim = claim_.value_or(ClaimRange{});
  claim_.reset();
  if (chunks.size() != static_cast<size_t>(claim.count)) {
    return absl::InternalError(
        absl::StrCat("context store: claimed ", claim.count, " chunks and got ", chunks.size()));
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    const std::vector<uint32_t>& blocks = chunks[i].blocks;
    const bool inside = std::all_of(blocks.begin(), blocks.end(), [&](uint32_t number) {
      return number < opened_.arena->block_count();
    });
    if (chunks[i].chunk != claim.first + static_cast<int32_t>(i) || !inside ||
        blocks.size() != static_cast<size_t>(env_.model.kv.layers)) {
      return absl::InternalError(absl::StrCat(
          "context store: chunk ", chunks[i].chunk, " with ", blocks.size(),
          " blocks in answer to a claim of chunk ", claim.first + static_cast<int>(i), " with ",
          env_.model.kv.layers, " of them in an arena of ", opened_.arena->block_count()));
    }
    PushChunk(blocks);
  }
  return absl::OkStatus();
}

void Session::LowerLevel(int32_t percent) {
  level_ = engine::LevelIndex(env_.model, percent);
  level_spans_.push_back({.first = computed_, .percent = percent});
}

int32_t Session::LevelAt(int32_t position) const {
  int32_t percent = level_spans_.front().percent;
  for (const LevelSpan& span : level_spans_) {
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
                           PickToken(logits.subspan(static_cast<size_t>(row) * vocab, vocab)));
    deltas.push_back(std::move(delta));
    if (finished()) break;
    row = tree.Child(row, ids_.back(), rows);
    if (row < 0) break;
    MoveToken(tree.slot(row), computed_);
    ++computed_;
  }
  return deltas;
}

// K and V of one token: paths that were followed lie before those that were not, so that what is
// written over is no longer wanted.
void Session::MoveToken(int32_t from_slot, int32_t to_slot) {
  if (from_slot == to_slot) return;
  const engine::KvInfo& kv = env_.model.kv;
  const engine::KvGeometry geometry{kv.layers, kv.kv_heads, kv.head_dim};
  const auto layers = static_cast<size_t>(kv.layers);
  for (size_t layer = 0; layer < layers; ++layer) {
    engine::CopyToken(geometry, blocks_[static_cast<size_t>(from_slot / kChunk) * layers + layer],
                      from_slot % kChunk,
                      blocks_[static_cast<size_t>(to_slot / kChunk) * layers + layer],
                      to_slot % kChunk);
  }
}

absl::StatusOr<engine::AnswerDelta> Session::PickToken(std::span<const float> logits) {
  WITHY_ASSIGN_OR_RETURN(engine::Sample sample, sampler_.Pick(logits, ids_.size(), ids_));
  engine::AnswerDelta delta;
  delta.text = answer_.Push(sample.id);
  if (answer_.reason() == engine::FinishReason::kEndOfTurn) return delta;
  ids_.push_back(sample.id);
  tokens_.push_back(sample);
  if (answer_levels_.empty() || answer_levels_.back() != level_percent()) {
    answer_levels_.push_back(level_percent());
  }
  delta.token = std::move(sample);
  if (!finished() && static_cast<int32_t>(ids_.size()) >= env_.window) {
    delta.text += answer_.Finish(engine::FinishReason::kContextFull);
  }
  return delta;
}

engine::AnswerDelta Session::Finish(engine::FinishReason reason) {
  return {.text = answer_.Finish(reason), .token = std::nullopt};
}

std::vector<engine::Segment> Session::AppendedSegments(int64_t unix_s) const {
  std::vector<engine::Segment> appended = request_.answer.prompt;
  for (engine::Segment& segment : appended) {
    segment.unix_s = unix_s;
    segment.level_percent = LevelAt(prompt_end_ - 1);
  }
  engine::Segment& answer = appended.emplace_back();
  answer.role = "assistant";
  answer.text = answer_.text();
  answer.level_percent = level_percent();
  answer.cancelled = reason() == engine::FinishReason::kCancelled;
  answer.ended = reason() == engine::FinishReason::kEndOfTurn;
  answer.unix_s = unix_s;
  // A stop string cuts the text inside the generated tokens: then the text alone counts.
  const engine::Tokenizer& tokenizer = env_.encoder.tokenizer();
  if (reason() != engine::FinishReason::kStopString &&
      tokenizer.Encode(answer.text, {.add_bos = false, .continues = true}) != answer_.ids()) {
    answer.token_ids = answer_.ids();
    answer.tokenizer_fingerprint = tokenizer.fingerprint();
  }
  return appended;
}

// Fills in what the window holds of the record with commit->appended. Returns how many of the
// computed tokens it begins with.
int32_t Session::MeasureRecord(LeaseCommit* commit) const {
  std::vector<engine::Segment> record = opened_.segments;
  record.insert(record.end(), commit->appended.begin(), commit->appended.end());
  const auto encoded = env_.encoder.EncodeRecord(record, env_.window);
  commit->context_tokens = static_cast<int32_t>(encoded.ok() ? encoded->ids.size() : ids_.size());
  if (!encoded.ok()) return 0;
  commit->dropped_segments = encoded->dropped_segments;
  const std::vector<int32_t>& ids = encoded->ids;
  const auto limit = std::min(ids.size(), static_cast<size_t>(computed_));
  const auto end = ids_.begin() + static_cast<int64_t>(limit);
  return static_cast<int32_t>(std::mismatch(ids_.begin(), end, ids.begin()).first - ids_.begin());
}

std::vector<ChunkName> Session::NameChunks(int32_t tokens) const {
  const auto chunks = static_cast<size_t>(ChunksFor(tokens));
  std::vector<int32_t> levels;  // the lowest of each chunk, which is that of its last token
  for (size_t i = 0; i < chunks; ++i) {
    levels.push_back(LevelAt(std::min(static_cast<int32_t>(i + 1) * kChunk, tokens) - 1));
  }
  std::vector<ChunkName> kept;
  for (size_t i = 0; i < std::min(kept_.size(), chunks); ++i) {
    const int32_t end = static_cast<int32_t>(i) * kChunk + kept_[i].tokens;
    const bool unchanged = kept_[i].tokens == kChunk || end == tokens;
    if (unchanged && end <= tokens) {
      kept.push_back(kept_[i]);
    } else {
      levels[i] = std::min(levels[i], kept_[i].level_percent);
      break;
    }
  }
  return env_.namer.NameAll(kept, {ids_.data(), static_cast<size_t>(tokens)}, levels);
}

void Session::StampHeaders(std::span<const ChunkName> names, size_t first) const {
  const auto layers = static_cast<size_t>(env_.model.kv.layers);
  for (size_t chunk = first; chunk < names.size(); ++chunk) {
    for (size_t layer = 0; layer < layers; ++layer) {
      std::byte* block = blocks_[chunk * layers + layer];
      engine::KvBlockHeader header = {};
      header.epoch = opened_.arena->epoch();
      std::memcpy(header.identity, names[chunk].identity.data(), sizeof(header.identity));
      header.layer = static_cast<uint32_t>(layer);
      header.checksum = PayloadChecksum(block, env_.model.kv.block_bytes);
      header.level = static_cast<uint8_t>(names[chunk].level_percent);
      header.format = engine::KvFormat::kQ8;
      header.filled = static_cast<uint8_t>(names[chunk].tokens);
      std::memcpy(block, &header, sizeof(header));
    }
  }
}

LeaseCommit Session::MakeCommit(int64_t unix_s) const {
  LeaseCommit commit;
  commit.request_id = request_.request_id;
  commit.request_digest = request_.request_digest;
  commit.decision = request_.decision;
  commit.sampling = request_.answer.sampling;
  if (request_.context_id.empty()) return commit;
  commit.appended = AppendedSegments(unix_s);
  NameAndStamp(MeasureRecord(&commit), &commit);
  return commit;
}

// Less than a chunk is computed again as fast as it is kept. What was computed without a part of
// the record is not what the record, which keeps that part, stands for.
bool Session::worth_keeping() const {
  return !request_.context_id.empty() && !request_.rebuild && !answer_begun_ &&
         opened_.left_out == 0 && computed_ - read_only_tokens_ >= kChunk;
}

LeaseCommit Session::MakeUnanswered() const {
  LeaseCommit commit;
  commit.context_tokens = usage_.context_tokens;
  NameAndStamp(computed_, &commit);
  return commit;
}

void Session::NameAndStamp(int32_t tokens, LeaseCommit* commit) const {
  commit->chunks = NameChunks(tokens);
  size_t unchanged = 0;
  while (unchanged < std::min(kept_.size(), commit->chunks.size()) &&
         kept_[unchanged].identity == commit->chunks[unchanged].identity) {
    ++unchanged;
  }
  StampHeaders(commit->chunks, unchanged);
}

CallOutcome Session::Outcome() const {
  CallOutcome outcome;
  outcome.reason = reason();
  outcome.text = answer_.text();
  outcome.sampling = request_.answer.sampling;
  outcome.tokens = tokens_;
  outcome.levels_percent = answer_levels_;
  outcome.decided_percent = request_.answer.level_percent;
  outcome.usage = usage_;
  return outcome;
}

}  // namespace withy::model_worker
