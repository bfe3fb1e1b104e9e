#include "draft_worker/tree_drafter.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::draft_worker {
namespace {

// Of the tokens that are caught up: a request whose time is over ends between two pieces, while the
// target computes already.
constexpr int32_t kPieceRows = 16;
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

absl::StatusOr<TreeDrafter::Drafted*> TreeDrafter::Follow(const TreeRequest& request,
                                                          const std::function<bool()>& cancelled,
                                                          GrownTree* grown) {
  Drafted& call = EntryOf(request.call_id);
  const auto known = static_cast<size_t>(request.known_tokens);
  if (known > call.tokens.size()) return nullptr;
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
  const int32_t before = call.computed;
  const int64_t started = clock_.SteadyNanos();
  WITHY_RETURN_IF_ERROR(CatchUp(call, cancelled));
  grown->caught_up_tokens = call.computed - before;
  grown->catch_up_ms = Millis(clock_.SteadyNanos() - started);
  return &call;
}

absl::StatusOr<GrownTree> TreeDrafter::Draft(const TreeRequest& request,
                                             const std::function<bool()>& cancelled) {
  WITHY_RETURN_IF_ERROR(Check(request));
  WITHY_ASSIGN_OR_RETURN(std::vector<GrownTree> grown, DraftTogether({&request, 1}, cancelled));
  return std::move(grown.front());
}

TreeDrafter::Growing::Growing(Drafted& of_call, engine::DraftSampler of_sampler,
                              const TreeRequest& request, const policy::GrowthLimits& limits,
                              policy::DraftTree* to_tree)
    : call(of_call),
      sampler(std::move(of_sampler)),
      tree(*to_tree),
      growth(
          limits, policy::DraftSourceKind::kDraft,
          [](policy::DraftOrigin /*origin*/, double probability) { return probability; }, to_tree),
      ends(request.sampling.unpenalized) {}

absl::StatusOr<std::vector<GrownTree>> TreeDrafter::DraftTogether(
    std::span<const TreeRequest> requests, const std::function<bool()>& cancelled) {
  std::set<uint64_t> ids;
  for (const TreeRequest& request : requests) ids.insert(request.call_id);
  if (requests.empty() || requests.size() > kCalls || ids.size() != requests.size()) {
    return absl::InvalidArgumentError(absl::StrCat(requests.size(), " calls of ", ids.size(),
                                                   " ids are drafted together: must ", "be 1 to ",
                                                   kCalls, ", each once"));
  }
  std::vector<GrownTree> grown(requests.size());
  std::vector<Growing> growing;
  growing.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const absl::Status status = Check(requests[i]);
    if (absl::IsOutOfRange(status)) continue;
    WITHY_RETURN_IF_ERROR(status);
    WITHY_ASSIGN_OR_RETURN(Drafted* const call, Follow(requests[i], cancelled, &grown[i]));
    grown[i].unknown = call == nullptr;
    if (call == nullptr) continue;
    WITHY_ASSIGN_OR_RETURN(engine::DraftSampler sampler,
                           engine::DraftSampler::Create(requests[i].sampling));
    policy::GrowthLimits limits = requests[i].limits;
    limits.pass_ms = limits.token_ms > 0 ? pass_ms_ / static_cast<double>(requests.size()) : 0;
    growing.emplace_back(*call, std::move(sampler), requests[i], limits, &grown[i].tree);
  }
  WITHY_ASSIGN_OR_RETURN(const int32_t passes, GrowAll(growing, cancelled));
  for (GrownTree& one : grown) {
    one.passes = passes;
    one.pass_ms = pass_ms_;
  }
  return grown;
}

// Returns the passes that it took.
absl::StatusOr<int32_t> TreeDrafter::GrowAll(std::span<Growing> growing,
                                             const std::function<bool()>& cancelled) {
  const auto vocab = static_cast<size_t>(model_.info().vocab_size);
  for (int32_t passes = 0;; ++passes) {
    size_t leaves = 0;
    for (Growing& one : growing) {
      one.leaves = one.growth.Next();
      leaves += one.leaves.size();
    }
    if (leaves == 0) return passes;
    if (cancelled()) return absl::CancelledError("the request has ended");
    const int64_t started = clock_.SteadyNanos();
    WITHY_RETURN_IF_ERROR(ComputeLeaves(growing));
    const double ms = Millis(clock_.SteadyNanos() - started);
    pass_ms_ += (pass_ms_ > 0 ? kPassWeight : 1) * (ms - pass_ms_);
    size_t row = 0;
    for (Growing& one : growing) {
      // The last token is computed by the first pass.
      one.call.computed = static_cast<int32_t>(one.call.tokens.size());
      for (const int32_t leaf : one.leaves) {
        WITHY_ASSIGN_OR_RETURN(
            const std::vector<engine::DraftCandidate> likely,
            one.sampler.Candidates(std::span(logits_).subspan(vocab * row++, vocab),
                                   one.call.tokens, one.tree.PathTo(leaf)));
        std::vector<policy::LikelyToken> candidates;
        for (const auto& [token, probability] : likely) candidates.push_back({token, probability});
        one.growth.Extend(leaf, candidates, one.ends);
      }
    }
  }
}

// Computes the tokens without KV, all but the last.
absl::Status TreeDrafter::CatchUp(Drafted& call, const std::function<bool()>& cancelled) {
  const auto end = static_cast<int32_t>(call.tokens.size()) - 1;
  while (call.computed < end) {
    if (cancelled()) return absl::CancelledError("the request has ended");
    const int32_t rows = std::min(kPieceRows, end - call.computed);
    const auto piece = std::span(call.tokens)
                           .subspan(static_cast<size_t>(call.computed), static_cast<size_t>(rows));
    WITHY_RETURN_IF_ERROR(engine::Prefill(model_, call.kv, piece, call.computed, nullptr,
                                          pass_numbers_.Next(call.call_id)));
    call.computed += rows;
  }
  return absl::OkStatus();
}

absl::Status TreeDrafter::ComputeLeaves(std::span<Growing> growing) {
  std::vector<engine::Row> rows;
  std::vector<engine::ContextView> views;
  std::deque<std::vector<int32_t>> ancestors;  // rows refer to them
  std::set<uint64_t> calls;
  for (const Growing& one : growing) {
    if (!one.leaves.empty()) calls.insert(one.call.call_id);
    const auto length = static_cast<int32_t>(one.call.tokens.size());
    for (const int32_t leaf : one.leaves) {
      engine::Row& row = rows.emplace_back();
      row.token = one.call.tokens.back();
      row.position = row.slot = length - 1;
      row.context = static_cast<int32_t>(views.size());
      row.want_logits = true;
      if (leaf == policy::TreeGrowth::kRoot) continue;
      const policy::DraftNode& node = one.tree.nodes()[static_cast<size_t>(leaf)];
      row.token = node.token;
      row.position = length - 1 + node.depth;
      row.slot = length + leaf;
      row.ancestor_slots = ancestors.emplace_back(one.tree.AncestorSlots(leaf, length));
    }
    views.push_back(one.call.kv.View());
  }
  logits_.resize(
      std::max(logits_.size(), rows.size() * static_cast<size_t>(model_.info().vocab_size)));
  const engine::PassTag tag = pass_numbers_.Next(calls.size() == 1 ? *calls.begin() : 0);
  return model_.Forward({.rows = rows, .contexts = views, .tag = tag}, logits_.data());
}

}  // namespace withy::draft_worker
