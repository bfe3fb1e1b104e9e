#include "serving/speculation/tree_drafter.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::serving {
namespace {

constexpr double kPassWeight = 0.2;

// The `most` tokens of the tree that are likeliest with all before them.
policy::DraftTree MostLikely(const policy::DraftTree& tree, int32_t most) {
  if (tree.size() <= most) return tree;
  policy::DraftTree likely;
  const std::vector<int32_t> order = tree.ByConfidence();
  likely.AddPart(tree, std::span(order).first(static_cast<size_t>(most)));
  return likely;
}

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

int32_t TreeDrafter::computed(uint64_t call_id) const {
  const auto found = std::find_if(calls_.begin(), calls_.end(),
                                  [&](const auto& call) { return call->call_id == call_id; });
  return found == calls_.end() ? 0 : (*found)->kv.computed();
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

TreeDrafter::Drafted* TreeDrafter::Follow(const TreeRequest& request) {
  Drafted& call = EntryOf(request.call_id);
  if (static_cast<size_t>(request.known_tokens) > call.kv.tokens().size()) return nullptr;
  // A request that ran out of time may have left these tokens here already.
  if (!call.kv.SetTokens(request.known_tokens, request.tokens)) call.tree.Clear();
  call.tree.Follow(call.kv);
  return &call;
}

absl::StatusOr<TreeDrafter::Growth> TreeDrafter::BeginGrowth(
    std::span<const TreeRequest> requests) {
  std::set<uint64_t> ids;
  for (const TreeRequest& request : requests) ids.insert(request.call_id);
  if (requests.empty() || requests.size() > kCalls || ids.size() != requests.size()) {
    return absl::InvalidArgumentError(absl::StrCat(requests.size(), " calls of ", ids.size(),
                                                   " ids are drafted together: must ", "be 1 to ",
                                                   kCalls, ", each once"));
  }
  Growth growth;
  growth.calls_.resize(requests.size());
  growth.unknown_.resize(requests.size());
  growth.before_.resize(requests.size());
  growth.sampling_.reserve(requests.size());
  std::vector<TreeJob> jobs;
  for (size_t i = 0; i < requests.size(); ++i) {
    const TreeRequest& request = requests[i];
    const absl::Status status = Check(request);
    if (absl::IsOutOfRange(status)) continue;
    WITHY_RETURN_IF_ERROR(status);
    Drafted* const call = growth.calls_[i] = Follow(request);
    growth.unknown_[i] = call == nullptr;
    if (call == nullptr) continue;
    growth.before_[i] = call->tree.tree.size();
    policy::GrowthLimits limits = request.limits;
    limits.pass_ms = limits.token_ms > 0 ? pass_ms_ / static_cast<double>(requests.size()) : 0;
    jobs.push_back({.call_id = request.call_id,
                    .tree = call->tree,
                    .kv = call->kv,
                    .sampling = growth.sampling_.emplace_back(request.sampling),
                    .limits = limits,
                    .confidence = [](policy::DraftOrigin /*origin*/, double probability) {
                      return probability;
                    }});
  }
  WITHY_ASSIGN_OR_RETURN(growth.grower_,
                         TreeGrower::Create({.model = model_,
                                             .passes = pass_numbers_,
                                             .clock = clock_,
                                             .logits = logits_,
                                             .source = policy::DraftSourceKind::kDraft},
                                            std::move(jobs)));
  return growth;
}

absl::StatusOr<std::vector<GrownTree>> TreeDrafter::Draft(std::span<const TreeRequest> requests,
                                                          const std::function<bool()>& cancelled) {
  WITHY_ASSIGN_OR_RETURN(const Growth growing, BeginGrowth(requests));
  std::vector<GrownTree> grown(requests.size());
  for (size_t i = 0; i < grown.size(); ++i) {
    if (growing.calls_[i] != nullptr) grown[i].window_kept = growing.calls_[i]->tree.grown();
  }
  WITHY_RETURN_IF_ERROR(GrowAll(*growing.grower_, cancelled));
  size_t job = 0;
  for (size_t i = 0; i < grown.size(); ++i) {
    GrownTree& one = grown[i];
    one.unknown = growing.unknown_[i];
    one.passes = growing.grower_->passes();
    one.pass_ms = pass_ms_;
    if (growing.calls_[i] == nullptr) continue;
    Drafted& call = *growing.calls_[i];
    one.caught_up = growing.grower_->caught_up(job++);
    one.tree = MostLikely(call.tree.tree, requests[i].limits.max_nodes);
    one.window_drafted = std::exchange(call.window_drafted, 0);
    call.tree.Settle();
  }
  return grown;
}

absl::Status TreeDrafter::GrowAll(TreeGrower& grower, const std::function<bool()>& cancelled) {
  while (true) {
    WITHY_ASSIGN_OR_RETURN(const bool more, grower.Begin());
    if (!more) return absl::OkStatus();
    if (cancelled()) return absl::CancelledError("the request has ended");
    WITHY_RETURN_IF_ERROR(grower.Compute(/*stop=*/nullptr).status());
    if (!grower.extends()) continue;
    pass_ms_ += (pass_ms_ > 0 ? kPassWeight : 1) * (grower.pass_ms() - pass_ms_);
  }
}

CaughtUp TreeDrafter::EndGrowth(Growth growth) {
  CaughtUp caught_up;
  size_t job = 0;
  for (size_t i = 0; i < growth.calls_.size(); ++i) {
    Drafted* const call = growth.calls_[i];
    if (call == nullptr) continue;
    call->window_drafted += call->tree.tree.size() - growth.before_[i];
    caught_up.tokens += growth.grower_->caught_up(job).tokens;
    caught_up.ms += growth.grower_->caught_up(job++).ms;
  }
  return caught_up;
}

absl::StatusOr<CaughtUp> TreeDrafter::Grow(std::span<const TreeRequest> requests, Turns& turns) {
  WITHY_ASSIGN_OR_RETURN(Growth growth, BeginGrowth(requests));
  const absl::Status grown = GrowInTurns(*growth.grower_, turns);
  const CaughtUp caught_up = EndGrowth(std::move(growth));
  WITHY_RETURN_IF_ERROR(grown);
  return caught_up;
}

absl::Status TreeDrafter::GrowInTurns(TreeGrower& grower, Turns& turns) {
  while (true) {
    WITHY_ASSIGN_OR_RETURN(const bool more, grower.Begin());
    if (!more || !turns.Begin()) return absl::OkStatus();
    const absl::Status status = grower.Compute(&turns.wanted()).status();
    turns.End();
    WITHY_RETURN_IF_ERROR(status);
  }
}

}  // namespace withy::serving
