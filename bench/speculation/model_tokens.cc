#include "bench/speculation/model_tokens.h"

#include <deque>

#include "base/status.h"

namespace withy::bench {

absl::Status ModelTokens::CatchUp(std::span<const int32_t> tokens) {
  constexpr int32_t kPieceRows = 256;
  const auto end = static_cast<int32_t>(tokens.size()) - 1;
  computed_ = std::min(computed_, end);
  kv_.Extend(end + 1);
  while (computed_ < end) {
    const int32_t rows = std::min(kPieceRows, end - computed_);
    WITHY_RETURN_IF_ERROR(engine::Prefill(
        model_, kv_, tokens.subspan(static_cast<size_t>(computed_), static_cast<size_t>(rows)),
        computed_, nullptr));
    computed_ += rows;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const float>> ModelTokens::Forward(std::span<const engine::Row> rows) {
  logits_.resize(rows.size() * static_cast<size_t>(model_.info().vocab_size));
  const engine::ContextView view = kv_.View();
  WITHY_RETURN_IF_ERROR(model_.Forward({.rows = rows, .contexts = {&view, 1}}, logits_.data()));
  return std::span<const float>(logits_);
}

absl::StatusOr<std::span<const float>> ModelTokens::Compute(std::span<const int32_t> tokens,
                                                            int32_t first, bool all_logits) {
  std::vector<engine::Row> rows;
  const auto end = static_cast<int32_t>(tokens.size());
  for (int32_t at = first; at < end; ++at) {
    rows.push_back({.token = tokens[static_cast<size_t>(at)],
                    .position = at,
                    .slot = at,
                    .want_logits = all_logits || at + 1 == end});
  }
  kv_.Extend(end);
  WITHY_ASSIGN_OR_RETURN(const std::span<const float> logits, Forward(rows));
  computed_ = end;
  return logits;
}

absl::Status ModelTokens::ComputeNodes(int32_t length, const policy::DraftTree& tree,
                                       std::span<const int32_t> nodes) {
  std::vector<engine::Row> rows;
  std::deque<std::vector<int32_t>> ancestors;
  for (const int32_t index : nodes) {
    const policy::DraftNode& node = tree.nodes()[static_cast<size_t>(index)];
    rows.push_back({.token = node.token,
                    .position = length - 1 + node.depth,
                    .slot = length + index,
                    .want_logits = true,
                    .ancestor_slots = ancestors.emplace_back(tree.AncestorSlots(index, length))});
  }
  kv_.Extend(length + tree.size());
  return Forward(rows).status();
}

}  // namespace withy::bench
