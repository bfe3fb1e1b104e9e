#include "model_worker/context_kv.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/kv/block.h"
#include "engine/session/solo_answer.h"
#include "engine/weights/crc32c.h"

namespace withy::model_worker {
namespace {

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

int32_t ChunksFor(int32_t tokens) {
  return (tokens + engine::kChunkTokens - 1) / engine::kChunkTokens;
}

ContextKv::ContextKv(const engine::ModelInfo& model, const ChunkNamer& namer,
                     std::shared_ptr<const Arena> arena)
    : model_(model),
      namer_(namer),
      arena_(std::move(arena)),
      lowest_level_(static_cast<int32_t>(model.levels.size()) - 1) {}

// A block that this attachment to the store wrote is not checked again. An older one is checked
// byte by byte, and stamped so that the next call does not check it.
bool ContextKv::HeadersMatch(const ResidentChunk& chunk) const {
  if (chunk.where.blocks.size() != static_cast<size_t>(model_.kv.layers)) return false;
  for (size_t layer = 0; layer < chunk.where.blocks.size(); ++layer) {
    if (chunk.where.blocks[layer] >= arena_->block_count()) return false;
    std::byte* block = arena_->Block(chunk.where.blocks[layer]);
    engine::KvBlockHeader header = ReadHeader(block);
    if (header.layer != layer || header.filled != chunk.name.tokens ||
        header.format != engine::KvFormat::kQ8 ||
        std::memcmp(header.identity, chunk.name.identity.data(), sizeof(header.identity)) != 0) {
      return false;
    }
    if (header.epoch == arena_->epoch()) continue;
    if (header.checksum != PayloadChecksum(block, model_.kv.block_bytes)) return false;
    header.epoch = arena_->epoch();
    std::memcpy(block, &header, sizeof(header));
  }
  return true;
}

void ContextKv::AdoptResident(std::span<const ResidentChunk> resident, std::span<const int32_t> ids,
                              const ReuseRules& rules) {
  std::vector<ChunkName> names;
  for (const ResidentChunk& chunk : resident) {
    if (rules.rebuild && chunk.name.level_percent < rules.level_percent) break;
    names.push_back(chunk.name);
  }
  const size_t named = namer_.MatchingChunks(names, ids);
  size_t matching = 0;
  while (matching < named && HeadersMatch(resident[matching])) ++matching;
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
  for (size_t i = 0; i < matching; ++i) {
    // The last token of a prompt is always computed: the answer begins with its logits. A chunk
    // that has it already is not used, so that it is not written.
    if (!rules.rebuild && reused_tokens_ + names[i].tokens >= end) break;
    PushChunk(resident[i].where.blocks);
    reused_tokens_ += names[i].tokens;
    reused_.push_back(names[i]);
    const int32_t level = engine::LevelIndex(model_, names[i].level_percent);
    if (level >= 0) lowest_level_ = std::min(lowest_level_, level);
  }
}

absl::Status ContextKv::AdoptClaimed(std::span<const ChunkBlocks> claimed) {
  if (claimed.empty()) return absl::OkStatus();
  if (slots_ > 0) {
    return absl::InternalError("context store: chunks claimed beside those of a context");
  }
  claim_ = ClaimRange{.first = 0, .count = static_cast<int32_t>(claimed.size())};
  return AddBlocks(claimed);
}

void ContextKv::PushChunk(std::span<const uint32_t> blocks) {
  for (const uint32_t number : blocks) blocks_.push_back(arena_->Name(number));
  slots_ += engine::kChunkTokens;
}

std::byte* ContextKv::BlockOf(int32_t chunk, int32_t layer) const {
  const size_t first = static_cast<size_t>(chunk) * static_cast<size_t>(model_.kv.layers);
  return arena_->memory().At(blocks_[first + static_cast<size_t>(layer)]);
}

void ContextKv::CopySlot(int32_t from_slot, int32_t to_slot) {
  const engine::KvGeometry geometry{model_.kv.layers, model_.kv.kv_heads, model_.kv.head_dim};
  for (int32_t layer = 0; layer < model_.kv.layers; ++layer) {
    engine::CopyToken(geometry, BlockOf(from_slot / engine::kChunkTokens, layer),
                      from_slot % engine::kChunkTokens,
                      BlockOf(to_slot / engine::kChunkTokens, layer),
                      to_slot % engine::kChunkTokens);
  }
}

std::optional<ClaimRange> ContextKv::BeginClaim(int32_t tokens) {
  if (claim_.has_value() || tokens <= slots_) return std::nullopt;
  const int32_t first = slots_ / engine::kChunkTokens;
  claim_ = ClaimRange{.first = first, .count = ChunksFor(tokens) - first};
  return claim_;
}

absl::Status ContextKv::AddBlocks(std::span<const ChunkBlocks> chunks) {
  const ClaimRange claim = claim_.value_or(ClaimRange{});
  claim_.reset();
  if (chunks.size() != static_cast<size_t>(claim.count)) {
    return absl::InternalError(
        absl::StrCat("context store: claimed ", claim.count, " chunks and got ", chunks.size()));
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    const std::vector<uint32_t>& blocks = chunks[i].blocks;
    const bool inside = std::all_of(blocks.begin(), blocks.end(), [&](uint32_t number) {
      return number < arena_->block_count();
    });
    if (chunks[i].chunk != claim.first + static_cast<int32_t>(i) || !inside ||
        blocks.size() != static_cast<size_t>(model_.kv.layers)) {
      return absl::InternalError(absl::StrCat(
          "context store: chunk ", chunks[i].chunk, " with ", blocks.size(),
          " blocks in answer to a claim of chunk ", claim.first + static_cast<int>(i), " with ",
          model_.kv.layers, " of them in an arena of ", arena_->block_count()));
    }
    PushChunk(blocks);
  }
  return absl::OkStatus();
}

std::vector<ChunkName> ContextKv::NameAndStamp(std::span<const int32_t> ids,
                                               std::vector<int32_t> levels) {
  const auto tokens = static_cast<int32_t>(ids.size());
  std::vector<ChunkName> kept;
  for (size_t i = 0; i < std::min(reused_.size(), levels.size()); ++i) {
    const int32_t end = static_cast<int32_t>(i) * engine::kChunkTokens + reused_[i].tokens;
    const bool unchanged = reused_[i].tokens == engine::kChunkTokens || end == tokens;
    if (unchanged && end <= tokens) {
      kept.push_back(reused_[i]);
    } else {
      levels[i] = std::min(levels[i], reused_[i].level_percent);
      break;
    }
  }
  std::vector<ChunkName> names = namer_.NameAll(kept, ids, levels);
  size_t unchanged = 0;
  while (unchanged < std::min(reused_.size(), names.size()) &&
         reused_[unchanged].identity == names[unchanged].identity) {
    ++unchanged;
  }
  StampHeaders(names, unchanged);
  return names;
}

void ContextKv::StampHeaders(std::span<const ChunkName> names, size_t first) const {
  const auto layers = static_cast<size_t>(model_.kv.layers);
  for (size_t chunk = first; chunk < names.size(); ++chunk) {
    for (size_t layer = 0; layer < layers; ++layer) {
      std::byte* block = BlockOf(static_cast<int32_t>(chunk), static_cast<int32_t>(layer));
      engine::KvBlockHeader header = {};
      header.epoch = arena_->epoch();
      std::memcpy(header.identity, names[chunk].identity.data(), sizeof(header.identity));
      header.layer = static_cast<uint32_t>(layer);
      header.checksum = PayloadChecksum(block, model_.kv.block_bytes);
      header.level = static_cast<uint8_t>(names[chunk].level_percent);
      header.format = engine::KvFormat::kQ8;
      header.filled = static_cast<uint8_t>(names[chunk].tokens);
      std::memcpy(block, &header, sizeof(header));
    }
  }
}

}  // namespace withy::model_worker
