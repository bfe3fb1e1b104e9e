#include "engine/model/scratch_kv.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/status.h"
#include "engine/kv/encode.h"

namespace withy::engine {

ScratchKv::ScratchKv(const ModelInfo& info, int32_t tokens, KvFormat format)
    : kv_(info.kv), format_(format) {
  kv_.block_bytes = geometry().BlockBytes(format);
  Extend(tokens);
}

ScratchKv::ScratchKv(ScratchKv&& other) noexcept
    : kv_(other.kv_),
      format_(other.format_),
      memory_(std::exchange(other.memory_, {})),
      blocks_(std::move(other.blocks_)),
      versions_(std::move(other.versions_)) {}

ScratchKv::~ScratchKv() {
  if (memory_.base != nullptr) munmap(memory_.base, memory_.bytes);
}

void ScratchKv::Extend(int32_t tokens) {
  const auto chunks = static_cast<size_t>((tokens + kv_.chunk_tokens - 1) / kv_.chunk_tokens);
  const size_t count = chunks * static_cast<size_t>(kv_.layers);
  if (count <= blocks_.size()) return;
  const size_t bytes = count * kv_.block_bytes;
  void* const base =
      memory_.base == nullptr
          ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
          : mremap(memory_.base, memory_.bytes, bytes, MREMAP_MAYMOVE);
  if (base == MAP_FAILED) throw std::bad_alloc();
  std::byte* const fresh = static_cast<std::byte*>(base) + blocks_.size() * kv_.block_bytes;
  memory_ = {static_cast<std::byte*>(base), bytes, NewKvNumber()};
  // Touches the pages now, so that passes take no page faults.
  std::memset(fresh, 0, static_cast<size_t>(memory_.base + bytes - fresh));
  while (blocks_.size() < count) {
    blocks_.push_back(KvBlockName::AtOffset(blocks_.size() * kv_.block_bytes, format_));
  }
  while (versions_.size() < chunks) versions_.push_back(NewKvNumber());
}

void ScratchKv::Touch() {
  for (uint64_t& version : versions_) version = NewKvNumber();
}

void ScratchKv::Copy(int32_t from, int32_t to) {
  if (from == to) return;
  const auto block = [&](int32_t slot, int32_t layer) {
    const int32_t index = slot / kv_.chunk_tokens * kv_.layers + layer;
    return memory_.At(blocks_[static_cast<size_t>(index)]);
  };
  for (int32_t layer = 0; layer < kv_.layers; ++layer) {
    CopyToken(geometry(), block(from, layer), from % kv_.chunk_tokens, block(to, layer),
              to % kv_.chunk_tokens);
  }
  versions_[static_cast<size_t>(to / kv_.chunk_tokens)] = NewKvNumber();
}

void ScratchKv::Encode(int32_t chunk, KvFormat to) {
  std::vector<std::byte> encoded(geometry().BlockBytes(to));
  const auto layers = static_cast<size_t>(kv_.layers);
  for (KvBlockName& name :
       std::span(blocks_).subspan(static_cast<size_t>(chunk) * layers, layers)) {
    std::byte* block = memory_.At(name);
    EncodeBlock(geometry(), block, name.format, to, encoded.data());
    std::copy(encoded.begin() + sizeof(KvBlockHeader), encoded.end(),
              block + sizeof(KvBlockHeader));
    name.format = to;
  }
  versions_[static_cast<size_t>(chunk)] = NewKvNumber();
}

absl::Status Prefill(Model& model, const ScratchKv& kv, std::span<const int32_t> tokens,
                     int32_t first, float* logits, const PassTag& tag) {
  std::vector<Row> rows(tokens.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t position = first + static_cast<int32_t>(i);
    rows[i] = {.token = tokens[i], .position = position, .slot = position};
  }
  if (logits != nullptr && !rows.empty()) rows.back().want_logits = true;
  const ContextView view = kv.View(first);
  return model.Forward({.rows = rows, .contexts = {&view, 1}, .tag = tag}, logits);
}

absl::StatusOr<std::vector<int32_t>> GreedyDecode(Model& model, std::span<const int32_t> prompt,
                                                  int32_t count) {
  const auto prompt_tokens = static_cast<int32_t>(prompt.size());
  const ScratchKv kv(model.info(), prompt_tokens + count);
  std::vector<float> logits(static_cast<size_t>(model.info().vocab_size));
  WITHY_RETURN_IF_ERROR(Prefill(model, kv, prompt, 0, logits.data()));
  std::vector<int32_t> answer;
  for (int32_t i = 0; i < count; ++i) {
    const auto best = std::max_element(logits.begin(), logits.end());
    answer.push_back(static_cast<int32_t>(best - logits.begin()));
    if (i + 1 == count) break;
    WITHY_RETURN_IF_ERROR(
        Prefill(model, kv, std::span(&answer.back(), 1), prompt_tokens + i, logits.data()));
  }
  return answer;
}

}  // namespace withy::engine
