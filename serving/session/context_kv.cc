#include "serving/session/context_kv.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/session/solo_answer.h"
#include "policy/kv/kv_window.h"
#include "serving/session/chunk_headers.h"

namespace withy::serving {
namespace {

// As policy/kv/kv_window.h has them, for a model's windows.
bool CanContinue(const engine::KvInfo& kv, const std::vector<bool>& lacks, int32_t position) {
  return policy::CanContinue(lacks, static_cast<uint32_t>(position),
                             static_cast<uint32_t>(kv.window_reach));
}
size_t Continuable(const engine::KvInfo& kv, const std::vector<bool>& lacks, size_t chunks) {
  return policy::ContinuableChunks(lacks, static_cast<uint32_t>(chunks),
                                   static_cast<uint32_t>(kv.window_reach));
}

}  // namespace

ContextKv::ContextKv(const engine::ModelInfo& model, const ChunkNamer& namer,
                     std::shared_ptr<const Arena> arena)
    : model_(model),
      namer_(namer),
      blocks_({.layers = model.kv.layers,
               .kv_heads = model.kv.kv_heads,
               .head_dim = model.kv.head_dim,
               .windowed = model.kv.windowed},
              std::move(arena)),
      lowest_level_(static_cast<int32_t>(model.levels.size()) - 1) {}

void ContextKv::AdoptResident(std::span<const ResidentChunk> resident, std::span<const int32_t> ids,
                              const ReuseRules& rules) {
  std::vector<ChunkName> names;
  for (const ResidentChunk& chunk : resident) {
    if (rules.rebuild && chunk.name.level_percent < rules.level_percent) break;
    names.push_back(chunk.name);
  }
  const size_t named = namer_.MatchingChunks(names, ids);
  size_t matching = 0;
  // A chunk that is not in its slot yet is named by the store; what the disk gives is checked
  // there.
  const auto is_there = [this](const ResidentChunk& chunk) {
    return chunk.state == ResidentChunk::State::kResident
               ? HeadersMatch(blocks_.arena(), blocks_.geometry(), chunk)
               : blocks_.arena().Holds(blocks_.geometry(), chunk.where.slot);
  };
  while (matching < named && is_there(resident[matching])) ++matching;
  // Chunks computed with segments that are left out now are no fault; they are claimed anew.
  if (matching < names.size() && !rules.rebuild && !rules.record_replaced) {
    const int32_t end =
        static_cast<int32_t>(matching) * engine::kChunkTokens + names[matching].tokens;
    // When older messages were left out, other tokens have these positions now: no fault.
    if (matching < named || (end <= rules.history_tokens && !rules.window_moved)) {
      faulty_chunk_ = static_cast<int32_t>(matching);
    }
  }
  const auto end = static_cast<int32_t>(ids.size());
  using State = ResidentChunk::State;
  std::vector<State> states;
  std::vector<bool> lacks;
  int32_t tokens = 0;
  for (size_t i = 0; i < matching; ++i) {
    // The last token of a prompt is always computed: the answer begins with its logits. A chunk
    // that has it already is not used, so that it is not written.
    if (!rules.rebuild && tokens + names[i].tokens >= end) break;
    if (resident[i].state == State::kToCompute) {
      // Computed at another level it would have another name, and so would all that follow it.
      if (names[i].level_percent != rules.level_percent || !CanContinue(model_.kv, lacks, tokens))
        break;
    }
    states.push_back(resident[i].state);
    lacks.push_back(resident[i].where.slot.format == engine::KvFormat::kQ8Global);
    tokens += names[i].tokens;
  }
  if (!CanContinue(model_.kv, lacks, tokens))
    states.resize(Continuable(model_.kv, lacks, states.size()));
  for (size_t i = 0; i < states.size(); ++i) Reuse(resident[i], names[i]);
  load_ = policy::KvLoad(std::move(states), static_cast<uint32_t>(model_.kv.layers));
}

void ContextKv::Reuse(const ResidentChunk& chunk, const ChunkName& name) {
  blocks_.Add(chunk.where.slot);
  reused_tokens_ += name.tokens;
  reused_.push_back(name);
  const int32_t level = engine::LevelIndex(model_, name.level_percent);
  if (level >= 0) lowest_level_ = std::min(lowest_level_, level);
}

WantedChunks ContextKv::Wanted(std::span<const int32_t> ids, int32_t level_percent) const {
  // The last token is always computed.
  const size_t full = ids.empty() ? 0 : (ids.size() - 1) / engine::kChunkTokens;
  WantedChunks wanted{.first_chunk = static_cast<int32_t>(reused_.size()), .ways = {}};
  if (reused_tokens_ % engine::kChunkTokens != 0 || reused_.size() >= full) return wanted;
  const auto add = [&](int32_t percent) {
    const std::vector<int32_t> levels(full, percent);
    std::vector<ChunkName> names =
        namer_.NameAll(reused_, ids.first(full * engine::kChunkTokens), levels);
    names.erase(names.begin(), names.begin() + wanted.first_chunk);
    wanted.ways.push_back(std::move(names));
  };
  constexpr int32_t kFullPercent = 100;
  add(kFullPercent);
  if (level_percent != kFullPercent) add(level_percent);
  return wanted;
}

void ContextKv::AdoptShared(std::span<const ResidentChunk> chunks, std::span<const int32_t> ids) {
  std::vector<ChunkName> names = reused_;
  for (const ResidentChunk& chunk : chunks) names.push_back(chunk.name);
  const size_t matching = namer_.MatchingChunks(names, ids);
  const size_t first = reused_.size();
  std::vector<bool> lacks = blocks_.lacks();
  for (const ResidentChunk& chunk : chunks) {
    const size_t number = lacks.size();
    const auto end = static_cast<int32_t>(number + 1) * engine::kChunkTokens;
    const bool next = chunk.where.chunk == static_cast<int32_t>(number) && number < matching &&
                      chunk.name.tokens == engine::kChunkTokens &&
                      end < static_cast<int32_t>(ids.size());
    if (!next || !HeadersMatch(blocks_.arena(), blocks_.geometry(), chunk)) break;
    lacks.push_back(chunk.where.slot.format == engine::KvFormat::kQ8Global);
  }
  for (size_t i = first; i < Continuable(model_.kv, lacks, lacks.size()); ++i)
    Reuse(chunks[i - first], names[i]);
}

int32_t ContextKv::compressed_tokens() const {
  int32_t tokens = 0;
  for (size_t i = 0; i < reused_.size(); ++i) {
    if (IsToCompute(i)) continue;
    if (reused_[i].over_compressed || blocks_.IsCompressed(i)) tokens += reused_[i].tokens;
  }
  return tokens;
}

int32_t ContextKv::other_level_tokens(int32_t level_percent) const {
  int32_t tokens = 0;
  for (size_t i = 0; i < reused_.size(); ++i) {
    if (!IsToCompute(i) && reused_[i].level_percent != level_percent) tokens += reused_[i].tokens;
  }
  return tokens;
}

size_t ContextKv::CompressedFrom() const {
  for (size_t i = 0; i < reused_.size(); ++i) {
    if (IsToCompute(i)) continue;
    if (reused_[i].over_compressed) return i;
    if (blocks_.IsCompressed(i)) return i + 1;
  }
  return SIZE_MAX;
}

void ContextKv::Truncate(int32_t chunk) {
  if (chunk >= blocks_.chunks()) return;
  chunk = static_cast<int32_t>(Continuable(model_.kv, blocks_.lacks(), static_cast<size_t>(chunk)));
  blocks_.Truncate(chunk);
  reused_.resize(std::min(reused_.size(), static_cast<size_t>(chunk)));
  reused_tokens_ = std::min(reused_tokens_, blocks_.slots());
  load_.OnGivenUp(static_cast<uint32_t>(chunk));
  claim_is_stale_ = claim_.has_value();
}

absl::Status ContextKv::Apply(const LoadEvent& event, int64_t now_ns) {
  const auto chunks = static_cast<int32_t>(load_.chunks());
  for (const auto& [chunk, slot] : event.slots) {
    if (chunk >= chunks) continue;  // it was given up meanwhile
    if (chunk < 0 || !blocks_.MayWrite(slot)) {
      return absl::InternalError(absl::StrCat("context store: chunk ", chunk, " of format ",
                                              static_cast<int>(slot.format), " at ", slot.offset(),
                                              " is yielded, which cannot be"));
    }
  }
  std::vector<bool> lacks = blocks_.lacks();
  for (const auto& [chunk, slot] : event.slots) {
    if (chunk >= chunks) continue;
    lacks[static_cast<size_t>(chunk)] = false;
    if (CanContinue(model_.kv, lacks, chunk * engine::kChunkTokens)) continue;
    return absl::InternalError(absl::StrCat("context store: chunk ", chunk,
                                            " is yielded, within whose windows are chunks without "
                                            "the blocks of layers with a window"));
  }
  if (!load_.Apply(event.what, now_ns)) {
    return absl::InternalError(absl::StrCat("context store: change ", event.what.change,
                                            " of a load that has seen ", load_.changes(),
                                            " is of a chunk that is not being read"));
  }
  for (const auto& [chunk, slot] : event.slots) {
    if (chunk < chunks) blocks_.Replace(chunk, slot);
  }
  layers_ready_.store(static_cast<int32_t>(load_.arrived()), std::memory_order_release);
  return absl::OkStatus();
}

absl::Status ContextKv::AdoptClaimed(std::span<const ChunkSlot> claimed) {
  if (claimed.empty()) return absl::OkStatus();
  if (blocks_.chunks() > 0) {
    return absl::InternalError("context store: chunks claimed beside those of a context");
  }
  claim_ = ClaimRange{.first = 0, .count = static_cast<int32_t>(claimed.size())};
  return AddChunks(claimed);
}

std::optional<ClaimRange> ContextKv::BeginClaim(int32_t tokens) {
  if (claim_.has_value() || tokens <= blocks_.slots()) return std::nullopt;
  const int32_t first = blocks_.chunks();
  claim_is_stale_ = false;
  claim_ = ClaimRange{.first = first, .count = ChunksFor(tokens) - first};
  return claim_;
}

absl::Status ContextKv::AddChunks(std::span<const ChunkSlot> chunks) {
  const ClaimRange claim = std::exchange(claim_, std::nullopt).value_or(ClaimRange{});
  if (std::exchange(claim_is_stale_, false)) return absl::OkStatus();
  if (chunks.size() != static_cast<size_t>(claim.count)) {
    return absl::InternalError(
        absl::StrCat("context store: claimed ", claim.count, " chunks and got ", chunks.size()));
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    const auto [number, slot] = chunks[i];
    if (number != claim.first + static_cast<int32_t>(i) || !blocks_.MayWrite(slot)) {
      return absl::InternalError(absl::StrCat(
          "context store: chunk ", number, " of format ", static_cast<int>(slot.format), " at ",
          slot.offset(), " in answer to a claim of chunk ", claim.first + static_cast<int>(i),
          " of ", blocks_.geometry().ChunkBytes(engine::KvFormat::kQ8), " bytes in an arena of ",
          blocks_.arena().memory().bytes));
    }
    blocks_.Add(slot);
  }
  return absl::OkStatus();
}

std::vector<ChunkName> ContextKv::NameAndStamp(std::span<const int32_t> ids,
                                               std::vector<int32_t> levels, int32_t computed) {
  const auto tokens = static_cast<int32_t>(ids.size());
  std::vector<ChunkName> kept;
  for (size_t i = 0; i < std::min(reused_.size(), levels.size()); ++i) {
    const int32_t end = static_cast<int32_t>(i) * engine::kChunkTokens + reused_[i].tokens;
    const bool unchanged = reused_[i].tokens == engine::kChunkTokens || end == tokens;
    if (unchanged && end <= tokens) {
      kept.push_back(reused_[i]);
    } else if (reused_[i].tokens == engine::kChunkTokens) {
      // The record ends in a chunk that is only read: other contexts may have it, too.
      ids = ids.first(i * engine::kChunkTokens);
      break;
    } else {
      levels[i] = std::min(levels[i], reused_[i].level_percent);
      break;
    }
  }
  const size_t compressed_from = CompressedFrom();
  for (uint32_t number = holes().NextToCompute(0); number != policy::KvLoad::kNone;
       number = holes().NextToCompute(static_cast<int32_t>(number) + 1)) {
    const bool over_compressed = number >= compressed_from;
    if (number >= kept.size() || kept[number].over_compressed == over_compressed) continue;
    namer_.Rename(number, ids, over_compressed, &kept);
  }
  std::vector<ChunkName> names = namer_.NameAll(kept, ids, levels, compressed_from);
  for (size_t i = 0; i < names.size(); ++i) {
    const bool as_it_was = i < reused_.size() && reused_[i].identity == names[i].identity;
    if (!as_it_was || IsToCompute(i)) blocks_.Stamp(names[i], i);
  }
  AddDensities(computed, &names);
  return names;
}

void ContextKv::AddDensities(int32_t computed, std::vector<ChunkName>* names) const {
  const int32_t layers = std::max(model_.layers - 1, 1);
  const auto sums_of_a_row =
      static_cast<float>(std::max(model_.heads, 1) * layers * engine::kChunkTokens);
  for (size_t i = 0; i < names->size(); ++i) {
    ChunkName& name = (*names)[i];
    if (i < reused_.size()) {
      name.density = reused_[i].density;
      name.density_rows = reused_[i].density_rows;
    }
    const int32_t rows = holes().Count(static_cast<int32_t>(i) * engine::kChunkTokens, computed);
    if (rows <= 0) continue;
    const auto before = static_cast<float>(name.density_rows);
    const float sum = name.density * before + blocks_.density(i) / sums_of_a_row;
    name.density_rows += rows;
    name.density = sum / static_cast<float>(name.density_rows);
  }
}

}  // namespace withy::serving
