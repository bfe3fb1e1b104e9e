#include "engine/cuda/kv_mirror.h"

#include <algorithm>
#include <bit>

#include "base/status.h"

namespace withy::engine::cuda {
namespace {

constexpr size_t kFirstChunks = 256;

}  // namespace

KvMirror::KvMirror(Gpu& gpu, const KvGeometry& geometry)
    : gpu_(gpu), geometry_(geometry), off_(gpu.facts().integrated), buffer_(gpu) {}

bool KvMirror::Takes(const ContextView& view) const {
  const size_t chunks = view.blocks.size() / static_cast<size_t>(geometry_.layers);
  return !off_ && view.layers_ready == nullptr && view.chunk_versions.size() == chunks &&
         std::ranges::none_of(
             view.blocks, [](const KvBlockName& name) { return name.format == KvFormat::kF16; });
}

absl::Status KvMirror::Reserve(size_t chunks) {
  if (off_ || pinned_ > 0 || chunks <= slots_.size()) return absl::OkStatus();
  const size_t bytes_of_chunk = geometry_.ChunkBytes();
  const size_t most = (gpu_.facts().free_bytes + buffer_.bytes()) / 2 / bytes_of_chunk;
  const size_t count = std::min(std::bit_ceil(std::max(chunks, kFirstChunks)), most);
  if (count <= slots_.size()) return absl::OkStatus();
  slots_.clear();
  slot_of_.clear();
  const absl::Status status = buffer_.Reserve(count * bytes_of_chunk);
  if (absl::IsResourceExhausted(status)) return absl::OkStatus();  // others were faster
  WITHY_RETURN_IF_ERROR(status);
  slots_.resize(count);
  return absl::OkStatus();
}

// Of those without pins, an empty one or the one that was used longest ago; -1: all are pinned.
int32_t KvMirror::FreeSlot() {
  int32_t best = -1;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.pins > 0) continue;
    if (best < 0 || slot.used < slots_[static_cast<size_t>(best)].used) {
      best = static_cast<int32_t>(i);
    }
    if (slot.version == 0) break;
  }
  return best;
}

std::vector<KvBlockName> KvMirror::Place(const ContextView& view, std::span<const int32_t> chunks,
                                         const uint8_t* host, Pins* pins,
                                         std::vector<KvCopy>* copies) {
  const auto layers = static_cast<size_t>(geometry_.layers);
  const size_t copies_before = copies->size();
  const size_t pins_before = pins->size();
  std::vector<KvBlockName> names(view.blocks.size(), KvBlockName::AtOffset(0));
  ++places_;
  for (const int32_t chunk : chunks) {
    const auto at = static_cast<size_t>(chunk);
    const uint64_t version = view.chunk_versions[at];
    const auto found = slot_of_.find(version);
    const int32_t index = found != slot_of_.end() ? found->second : FreeSlot();
    if (index < 0) {
      Pins taken(pins->begin() + static_cast<std::ptrdiff_t>(pins_before), pins->end());
      pins->resize(pins_before);
      Unpin(&taken);
      copies->resize(copies_before);
      Forget(view);
      return {};
    }
    Slot& slot = slots_[static_cast<size_t>(index)];
    const size_t offset = static_cast<size_t>(index) * geometry_.ChunkBytes();
    for (size_t layer = 0; layer < layers; ++layer) {
      const KvBlockName& from = view.blocks[at * layers + layer];
      KvBlockName& to = names[at * layers + layer];
      to = KvBlockName::AtOffset(offset + layer * geometry_.BlockBytes(), from.format);
      if (found != slot_of_.end()) continue;
      copies->push_back({.from = host + size_t{from.units} * KvBlockName::kUnitBytes,
                         .to = memory() + size_t{to.units} * KvBlockName::kUnitBytes,
                         .bytes = static_cast<int64_t>(geometry_.BlockBytes(from.format))});
    }
    if (found == slot_of_.end()) {
      slot_of_.erase(slot.version);
      slot_of_[version] = index;
      slot.version = version;
    }
    slot.used = places_;
    ++slot.pins;
    ++pinned_;
    pins->push_back(index);
  }
  return names;
}

void KvMirror::Unpin(Pins* pins) {
  for (const int32_t index : *pins) --slots_[static_cast<size_t>(index)].pins;
  pinned_ -= static_cast<int32_t>(pins->size());
  pins->clear();
}

void KvMirror::Forget(const ContextView& view) {
  for (const uint64_t version : view.chunk_versions) {
    const auto found = slot_of_.find(version);
    if (found == slot_of_.end()) continue;
    Slot& slot = slots_[static_cast<size_t>(found->second)];
    slot.version = 0;
    slot.used = 0;
    slot_of_.erase(found);
  }
}

}  // namespace withy::engine::cuda
