#include "engine/model/scratch_kv.h"

#include <algorithm>

#include "base/status.h"

namespace withy::engine {

ScratchKv::ScratchKv(const ModelInfo& info, int32_t tokens) : kv_(info.kv) { Extend(tokens); }

void ScratchKv::Extend(int32_t tokens) {
  const auto chunks = static_cast<size_t>((tokens + kv_.chunk_tokens - 1) / kv_.chunk_tokens);
  const size_t count = chunks * static_cast<size_t>(kv_.layers);
  if (count <= blocks_.size()) return;
  const size_t more = count - blocks_.size();
  std::byte* bytes = pieces_.emplace_back(more * kv_.block_bytes).data();
  for (size_t i = 0; i < more; ++i) blocks_.push_back(bytes + i * kv_.block_bytes);
}

absl::Status Prefill(Model& model, const ScratchKv& kv, std::span<const int32_t> tokens,
                     int32_t first, float* logits) {
  std::vector<Row> rows(tokens.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t position = first + static_cast<int32_t>(i);
    rows[i] = {.token = tokens[i], .position = position, .slot = position};
  }
  if (logits != nullptr && !rows.empty()) rows.back().want_logits = true;
  const ContextView view = kv.View(first);
  return model.Forward({.rows = rows, .contexts = {&view, 1}}, logits);
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
