#include "draft_worker/tree_drafter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/sampling/draft_sampler.h"

namespace withy::draft_worker {
namespace {

constexpr int32_t kPieceRows = 64;  // of the tokens that are caught up
constexpr double kPassWeight = 0.2;

}  // namespace

TreeDrafter::Drafted& TreeDrafter::EntryOf(uint64_t call_id) {
  const auto found = std::find_if(calls_.begin(), calls_.end(),
                                  [&](const auto& call) { return call->call_id == call_id; });
  if (found != calls_.end()) {
    std::rotate(found, found + 1, calls_.end());
  } else {
    if (calls_.size() == kCalls) calls_.erase(calls_.begin());
    calls_.push_back(std::make_unique<Drafted>(call_id, model_.info()));
  }
  return *calls_.back();
}

absl::Status TreeDrafter::Check(const TreeRequest& request) const {
  const int32_t vocab = model_.info().vocab_size;
  for (const int32_t token : request.tokens) {
    if (token >= 0 && token < vocab) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token ", token, " is outside the draft's vocabulary of ", vocab));
  }
  const size_t length = static_cast<size_t>(request.known_tokens) + request.tokens.size();
  if (length == 0) return absl::InvalidArgumentError("there are no tokens to draft behind");
  const auto tree = static_cast<size_t>(request.limits.max_nodes);
  if (length + tree <= static_cast<size_t>(window_)) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(length, " tokens and a tree of ", tree,
                                            " are more than the draft's window of ", window_));
}

absl::StatusOr<GrownTree> TreeDrafter::Draft(const TreeRequest& request,
                                             const std::function<bool()>& cancelled) {
  WITHY_RETURN_IF_ERROR(Check(request));
  Drafted& call = EntryOf(request.call_id);
  const auto known = static_cast<size_t>(request.known_tokens);
  GrownTree grown;
  if (known > call.tokens.size()) {
    grown.unknown = true;
    return grown;
  }
  // A request that ran out of time may have left these tokens here already.
  const std::span<const int32_t> here = std::span(call.tokens).subspan(known);
  const auto same =
      std::mismatch(here.begin(), here.end(), request.tokens.begin(), request.tokens.end());
  const auto agree = static_cast<int32_t>(known) + static_cast<int32_t>(same.first - here.begin());
  call.computed = std::min(call.computed, agree);
  call.tokens.resize(known);
  call.tokens.insert(call.tokens.end(), request.tokens.begin(), request.tokens.end());
  call.kv.Extend(static_cast<int32_t>(call.tokens.size()) + request.limits.max_nodes);
  // The last token is computed with the tree: its logits are where that begins.
  call.computed = std::min(call.computed, static_cast<int32_t>(call.tokens.size()) - 1);
  WITHY_RETURN_IF_ERROR(CatchUp(call, cancelled));

  WITHY_ASSIGN_OR_RETURN(engine::DraftSampler sampler,
                         engine::DraftSampler::Create(request.sampling));
  policy::GrowthLimits limits = request.limits;
  limits.pass_ms = limits.token_ms > 0 ? pass_ms_ : 0;
  const auto vocab = static_cast<size_t>(model_.info().vocab_size);
  policy::TreeGrowth growth(
      limits, policy::DraftSourceKind::kDraft,
      [](policy::DraftOrigin /*origin*/, double probability) { return probability; }, &grown.tree);
  for (std::vector<int32_t> leaves = growth.Next(); !leaves.empty(); leaves = growth.Next()) {
    if (cancelled()) return absl::CancelledError("the request has ended");
    const int64_t started = clock_.SteadyNanos();
    WITHY_RETURN_IF_ERROR(ComputeLeaves(call, grown.tree, leaves));
    const double ms = Millis(clock_.SteadyNanos() - started);
    pass_ms_ += (pass_ms_ > 0 ? kPassWeight : 1) * (ms - pass_ms_);
    ++grown.passes;
    call.computed = static_cast<int32_t>(call.tokens.size());  // the last one by the first pass
    for (size_t i = 0; i < leaves.size(); ++i) {
      WITHY_ASSIGN_OR_RETURN(const std::vector<engine::DraftCandidate> likely,
                             sampler.Candidates(std::span(logits_).subspan(i * vocab, vocab),
                                                call.tokens, grown.tree.PathTo(leaves[i])));
      std::vector<policy::Candidate> candidates;
      for (const auto& [token, probability] : likely) candidates.push_back({token, probability});
      growth.Extend(leaves[i], candidates);
    }
  }
  grown.pass_ms = pass_ms_;
  return grown;
}

// Computes the tokens without KV, all but the last.
absl::Status TreeDrafter::CatchUp(Drafted& call, const std::function<bool()>& cancelled) {
  const auto end = static_cast<int32_t>(call.tokens.size()) - 1;
  while (call.computed < end) {
    if (cancelled()) return absl::CancelledError("the request has ended");
    const int32_t rows = std::min(kPieceRows, end - call.computed);
    const auto piece = std::span(call.tokens)
                           .subspan(static_cast<size_t>(call.computed), static_cast<size_t>(rows));
    WITHY_RETURN_IF_ERROR(engine::Prefill(model_, call.kv, piece, call.computed, nullptr));
    call.computed += rows;
  }
  return absl::OkStatus();
}

absl::Status TreeDrafter::ComputeLeaves(Drafted& call, const policy::DraftTree& tree,
                                        const std::vector<int32_t>& leaves) {
  const auto length = static_cast<int32_t>(call.tokens.size());
  std::vector<engine::Row> rows;
  std::vector<std::vector<int32_t>> ancestors(leaves.size());
  for (size_t i = 0; i < leaves.size(); ++i) {
    engine::Row& row = rows.emplace_back(engine::Row{.token = call.tokens.back(),
                                                     .position = length - 1,
                                                     .slot = length - 1,
                                                     .want_logits = true,
                                                     .ancestor_slots = {}});
    if (leaves[i] == policy::TreeGrowth::kRoot) continue;
    const policy::DraftNode& node = tree.nodes()[static_cast<size_t>(leaves[i])];
    for (int32_t at = node.parent; at >= 0; at = tree.nodes()[static_cast<size_t>(at)].parent) {
      ancestors[i].push_back(length + at);
    }
    std::reverse(ancestors[i].begin(), ancestors[i].end());
    row.token = node.token;
    row.position = length - 1 + node.depth;
    row.slot = length + leaves[i];
    row.ancestor_slots = ancestors[i];
  }
  const engine::ContextView view = call.kv.View();
  logits_.resize(
      std::max(logits_.size(), rows.size() * static_cast<size_t>(model_.info().vocab_size)));
  return model_.Forward({.rows = rows, .contexts = {&view, 1}}, logits_.data());
}

}  // namespace withy::draft_worker
