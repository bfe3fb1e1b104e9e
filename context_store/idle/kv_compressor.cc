#include "context_store/idle/kv_compressor.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/crc32c.h"
#include "engine/kv/encode.h"
#include "policy/constants.h"
#include "policy/kv/kv_demotion.h"

namespace withy::context_store {
namespace {

// Formats in the order of the policy: from the most bytes to the fewest.
constexpr KvFormat kFormats[] = {KvFormat::kQ8, KvFormat::kQ4, KvFormat::kQ4Q2, KvFormat::kQ2};

// A chunk that lacks blocks counts as one in the smallest format that has as many bytes.
policy::KvFormatIndex IndexOf(KvFormat format, const engine::KvGeometry& kv) {
  if (LacksBlocks(format)) {
    policy::KvFormatIndex index = 0;
    while (size_t{index} + 1 < std::size(kFormats) &&
           kv.ChunkBytes(kFormats[index + 1]) >= kv.ChunkBytes(format)) {
      ++index;
    }
    return index;
  }
  return static_cast<policy::KvFormatIndex>(
      std::find(std::begin(kFormats), std::end(kFormats), format) - std::begin(kFormats));
}

// A context's chunks for the policy. `kept[i]`: the chunk keeps its format. `spares_copies`: so do
// those that can be read back bit for bit. Those that lack blocks keep it, too.
std::vector<policy::DensityChunk> DensitiesOf(const engine::KvGeometry& kv,
                                              const std::vector<ContextChunk>& chunks,
                                              const std::vector<bool>& kept, bool spares_copies) {
  std::vector<policy::DensityChunk> input;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const ContextChunk& chunk = chunks[i];
    const KvFormat now = chunk.slot.has_value() ? chunk.slot->format : chunk.stored_format;
    const bool exact = policy::StaysExact(i, chunks.size());
    input.push_back({.density = chunk.identity.density,
                     .tokens = chunk.identity.tokens,
                     .format = IndexOf(now, kv),
                     .pinned = exact || kept[i] || LacksBlocks(now) || !chunk.slot.has_value() ||
                               (spares_copies && chunk.HasExactCopy()) ||
                               chunk.identity.tokens != static_cast<uint32_t>(kChunkTokens)});
  }
  return input;
}

// The blocks of a chunk in its new format, headers included.
std::vector<std::byte> EncodeChunk(const engine::KvGeometry& kv, engine::KvMemory memory,
                                   KvSlot from, KvFormat to) {
  const size_t bytes = kv.BlockBytes(to);
  std::vector<std::byte> chunk(kv.ChunkBytes(to));
  if (LacksBlocks(to)) {
    for (int layer = 0; layer < kv.layers; ++layer) {
      if (!kv.HasBlock(to, layer)) continue;
      std::memcpy(chunk.data() + static_cast<size_t>(kv.BlocksBefore(to, layer)) * bytes,
                  memory.At(from.Block(kv, layer)), bytes);
    }
    return chunk;
  }
  for (int layer = 0; layer < kv.layers; ++layer) {
    const std::byte* block = memory.At(from.Block(kv, layer));
    std::byte* out = chunk.data() + static_cast<size_t>(layer) * bytes;
    engine::EncodeBlock(kv, block, from.format, to, out);
    engine::KvBlockHeader header;
    std::memcpy(&header, block, sizeof header);
    header.format = to;
    header.checksum = Crc32c(0, {out + sizeof header, bytes - sizeof header});
    std::memcpy(out, &header, sizeof header);
  }
  return chunk;
}

}  // namespace

struct KvCompressor::Candidates {
  Geometry geometry;
  std::vector<policy::KvFormatCost> formats;
  std::vector<std::string> ids;  // of contexts
  std::vector<std::vector<policy::DensityChunk>> chunks;
};

KvCompressor::Candidates KvCompressor::Find(std::vector<std::string> context_ids,
                                            bool spares_copies) const {
  const IdleKv& idle = book_.table().idle();
  Candidates found;
  found.geometry = book_.table().kv().geometry;
  found.ids = std::move(context_ids);
  const FormatErrors errors = costs_.errors();
  for (const KvFormat format : kFormats) {
    found.formats.push_back({.chunk_bytes = found.geometry.ChunkBytes(format),
                             .error = errors[static_cast<size_t>(format)]});
  }
  const std::vector<std::vector<bool>> kept = idle.KeptFormats(found.ids, policy::kLastExactChunks);
  for (size_t i = 0; i < found.ids.size(); ++i) {
    found.chunks.push_back(
        DensitiesOf(found.geometry.kv(), idle.Chunks(found.ids[i]), kept[i], spares_copies));
  }
  return found;
}

void KvCompressor::Carry(const Candidates& of, uint64_t bytes) {
  const policy::DemotionPlan plan =
      policy::PlanDemotions(of.formats, of.chunks, rules_.ratio, bytes, *rules_.precision);
  for (const policy::KvDemotion& one : plan.demotions) {
    const uint64_t freed = Store(of.geometry, of.ids[one.context], static_cast<uint32_t>(one.chunk),
                                 kFormats[one.format]);
    if (freed == 0) continue;
    metrics_.chunks.demoted.Add();
    metrics_.chunks.demoted_bytes.Add(freed);
  }
}

uint64_t KvCompressor::Store(const Geometry& geometry, const std::string& context_id,
                             uint32_t chunk, KvFormat to) {
  std::optional<ChunkWork> work;
  {
    absl::MutexLock lock(&book_.mutex());
    if (book_.table().kv().geometry != geometry) return 0;  // another model is served
    work = book_.table().idle().BeginDemotion(context_id, chunk, to);
    if (!work.has_value()) return 0;
    book_.BeginWriting();
  }
  const engine::KvMemory memory = book_.arena().memory();
  const std::vector<std::byte> encoded = EncodeChunk(geometry.kv(), memory, work->from, to);
  absl::MutexLock lock(&book_.mutex());
  book_.EndWriting();
  const std::optional<KvSlot> slot = book_.table().idle().FinishDemotion(*work, to);
  if (!slot.has_value()) return 0;
  std::memcpy(memory.base + slot->offset(), encoded.data(), encoded.size());
  book_.RecordGauges();
  return geometry.ChunkBytes(work->from.format) - encoded.size();
}

void KvCompressor::DropHidden(uint64_t bytes) {
  std::vector<IdleKv::HiddenChunk> hidden;
  Geometry geometry;
  {
    absl::MutexLock lock(&book_.mutex());
    hidden = book_.table().idle().Hidden(bytes);
    geometry = book_.table().kv().geometry;
  }
  for (const IdleKv::HiddenChunk& one : hidden) {
    const uint64_t freed = Store(geometry, one.context_id, one.chunk, KvFormat::kQ8Global);
    if (freed > 0) metrics_.chunks.hidden_bytes.Add(freed);
  }
}

void KvCompressor::Compress(const std::string& context_id) {
  Candidates one;
  {
    absl::MutexLock lock(&book_.mutex());
    one = Find({context_id}, /*spares_copies=*/false);
  }
  Carry(one, UINT64_MAX);
  absl::MutexLock lock(&book_.mutex());
  book_.table().idle().Deduplicate(context_id);
  book_.RecordGauges();
}

void KvCompressor::CompressFor(uint64_t bytes) {
  Candidates idle;
  {
    absl::MutexLock lock(&book_.mutex());
    idle = Find(book_.table().idle().ByUse(), /*spares_copies=*/true);
  }
  Carry(idle, bytes);
}

}  // namespace withy::context_store
