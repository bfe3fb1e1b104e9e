#include "bench/speculation/speculation_sequence.h"

#include <cmath>
#include <deque>
#include <memory>

#include "base/status.h"

namespace withy::bench {
namespace {

constexpr int32_t kPieceRows = 256;

}  // namespace

double LogProbability(std::span<const float> logits, int32_t token) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float value : logits) sum += std::exp(static_cast<double>(value - top));
  return static_cast<double>(logits[static_cast<size_t>(token)] - top) - std::log(sum);
}

Sequence::Sequence(engine::Model& model, int32_t tokens)
    : model_(model), kv_(model.info(), tokens) {}

absl::Status Sequence::CatchUp(std::span<const int32_t> tokens) {
  const auto end = static_cast<int32_t>(tokens.size()) - 1;
  computed_ = std::min(computed_, end);
  while (computed_ < end) {
    const int32_t rows = std::min(kPieceRows, end - computed_);
    WITHY_RETURN_IF_ERROR(engine::Prefill(
        model_, kv_, tokens.subspan(static_cast<size_t>(computed_), static_cast<size_t>(rows)),
        computed_, nullptr));
    computed_ += rows;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const float>> Sequence::Compute(std::span<const int32_t> tokens,
                                                         const policy::DraftTree& tree,
                                                         std::span<const int32_t> nodes,
                                                         int32_t level,
                                                         const BetweenLayers& between) {
  const auto length = static_cast<int32_t>(tokens.size());
  std::vector<engine::Row> rows;
  std::deque<std::vector<int32_t>> ancestors;
  for (const int32_t index : nodes) {
    engine::Row& row = rows.emplace_back();
    row.token = tokens.back();
    row.position = row.slot = length - 1;
    row.level = level;
    row.want_logits = true;
    if (index < 0) continue;
    const policy::DraftNode& node = tree.nodes()[static_cast<size_t>(index)];
    row.token = node.token;
    row.position = length - 1 + node.depth;
    row.slot = length + index;
    row.ancestor_slots = ancestors.emplace_back(tree.AncestorSlots(index, length));
  }
  kv_.Extend(length + tree.size());
  logits_.resize(rows.size() * static_cast<size_t>(model_.info().vocab_size));
  const engine::ContextView view = kv_.View();
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Pass> pass,
                         model_.Begin({.rows = rows, .contexts = {&view, 1}}, logits_.data()));
  const double half_layer = 0.5 / model_.info().layers;
  double until = between ? half_layer : 1;
  while (!pass->Run(nullptr, until)) {
    WITHY_RETURN_IF_ERROR(pass->status());
    WITHY_RETURN_IF_ERROR(between(pass->Done()));
    until = pass->Done() + half_layer;
  }
  if (level < 0) computed_ = std::max(computed_, length);
  return std::span<const float>(logits_);
}

void Sequence::Accept(int32_t length, int32_t node, int32_t position) {
  Move(length + node, position);
  computed_ = position + 1;
}

absl::StatusOr<std::span<const float>> Sequence::ComputeTokens(std::span<const int32_t> tokens,
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
  logits_.resize(rows.size() * static_cast<size_t>(model_.info().vocab_size));
  const engine::ContextView view = kv_.View();
  WITHY_RETURN_IF_ERROR(model_.Forward({.rows = rows, .contexts = {&view, 1}}, logits_.data()));
  computed_ = end;
  return std::span<const float>(logits_);
}

}  // namespace withy::bench
