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

// The `most` tokens of the tree that are likeliest with all before them.
policy::DraftTree MostLikely(const policy::DraftTree& tree, int32_t most) {
  if (tree.size() <= most) return tree;
  policy::DraftTree likely;
  std::vector<int32_t> place(static_cast<size_t>(tree.size()), -1);
  for (const int32_t index : tree.ByConfidence()) {
    if (likely.size() == most) break;
    const policy::DraftNode& node = tree.nodes()[static_cast<size_t>(index)];
    const int32_t parent = node.parent < 0 ? -1 : place[static_cast<size_t>(node.parent)];
    place[static_cast<size_t>(index)] =
        likely.Add(parent, node.token, node.confidence, node.origin);
  }
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
  return found == calls_.end() ? 0 : (*found)->computed;
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

void TreeDrafter::Drafted::DropTree() {
  tree = {};
  has_kv.clear();
  told = 0;
}

// A slot that is copied to is not behind the one it is copied from, nor is one that is still to be
// copied: nodes are behind their parents.
void TreeDrafter::Drafted::FollowTree(int32_t before) {
  const auto length = static_cast<int32_t>(tokens.size());
  if (length == before) return;
  int32_t at = policy::TreeGrowth::kRoot;
  for (int32_t i = before; i < length; ++i) {
    at = tree.Find(at, tokens[static_cast<size_t>(i)]);
    if (at < 0) return DropTree();
    if (computed != i || !has_kv[static_cast<size_t>(at)]) continue;
    kv.Copy(before + at, i);
    computed = i + 1;
  }
  std::vector<int32_t> from;
  policy::DraftTree below = tree.Below(at, &from);
  // What follows the last token is there, yet its KV is not: it ends an answer.
  if (below.root_extended() && computed < length) return DropTree();
  std::vector<bool> below_kv;
  for (size_t i = 0; i < from.size(); ++i) {
    below_kv.push_back(has_kv[static_cast<size_t>(from[i])]);
    if (below_kv.back()) kv.Copy(before + from[i], length + static_cast<int32_t>(i));
  }
  told = static_cast<int32_t>(
      std::count_if(from.begin(), from.end(), [&](int32_t node) { return node < told; }));
  tree = std::move(below);
  has_kv = std::move(below_kv);
}

absl::StatusOr<TreeDrafter::Drafted*> TreeDrafter::Follow(const TreeRequest& request,
                                                          const Pacing& pacing,
                                                          CaughtUp* caught_up) {
  Drafted& call = EntryOf(request.call_id);
  const auto known = static_cast<size_t>(request.known_tokens);
  if (known > call.tokens.size()) return nullptr;
  // A request that ran out of time may have left these tokens here already.
  const auto before = static_cast<int32_t>(call.tokens.size());
  const std::span<const int32_t> here = std::span(call.tokens).subspan(known);
  const auto same =
      std::mismatch(here.begin(), here.end(), request.tokens.begin(), request.tokens.end());
  const auto agree = static_cast<int32_t>(known) + static_cast<int32_t>(same.first - here.begin());
  call.tokens.resize(known);
  call.tokens.insert(call.tokens.end(), request.tokens.begin(), request.tokens.end());
  call.kv.Extend(static_cast<int32_t>(call.tokens.size()) +
                 std::max(request.limits.max_nodes, call.tree.size()));
  if (agree == before) {
    call.FollowTree(before);
  } else {
    call.DropTree();
    call.computed = std::min(call.computed, agree);
  }
  // The last token is computed with the tree, unless that has begun: its logits are where it does.
  if (!call.tree.root_extended()) {
    call.computed = std::min(call.computed, static_cast<int32_t>(call.tokens.size()) - 1);
  }
  WITHY_RETURN_IF_ERROR(CatchUp(call, pacing, caught_up));
  return &call;
}

TreeDrafter::Growing::Growing(Drafted& of_call, engine::DraftSampler of_sampler,
                              const TreeRequest& request, const policy::GrowthLimits& limits)
    : call(of_call),
      sampler(std::move(of_sampler)),
      growth(
          limits, policy::DraftSourceKind::kDraft,
          [](policy::DraftOrigin /*origin*/, double probability) { return probability; },
          &of_call.tree),
      ends(request.sampling.unpenalized) {}

absl::StatusOr<std::vector<TreeDrafter::Growing>> TreeDrafter::Begin(
    std::span<const TreeRequest> requests, const Pacing& pacing, std::vector<GrownTree>* grown) {
  std::set<uint64_t> ids;
  for (const TreeRequest& request : requests) ids.insert(request.call_id);
  if (requests.empty() || requests.size() > kCalls || ids.size() != requests.size()) {
    return absl::InvalidArgumentError(absl::StrCat(requests.size(), " calls of ", ids.size(),
                                                   " ids are drafted together: must ", "be 1 to ",
                                                   kCalls, ", each once"));
  }
  grown->resize(requests.size());
  std::vector<Growing> growing;
  growing.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const absl::Status status = Check(requests[i]);
    if (absl::IsOutOfRange(status)) continue;
    WITHY_RETURN_IF_ERROR(status);
    WITHY_ASSIGN_OR_RETURN(Drafted* const call,
                           Follow(requests[i], pacing, &(*grown)[i].caught_up));
    (*grown)[i].unknown = call == nullptr;
    if (call == nullptr) continue;
    WITHY_ASSIGN_OR_RETURN(engine::DraftSampler sampler,
                           engine::DraftSampler::Create(requests[i].sampling));
    policy::GrowthLimits limits = requests[i].limits;
    limits.pass_ms = limits.token_ms > 0 ? pass_ms_ / static_cast<double>(requests.size()) : 0;
    growing.emplace_back(*call, std::move(sampler), requests[i], limits);
  }
  return growing;
}

absl::StatusOr<std::vector<GrownTree>> TreeDrafter::Draft(std::span<const TreeRequest> requests,
                                                          const std::function<bool()>& cancelled) {
  const Pacing pacing{.cancelled = cancelled};
  std::vector<GrownTree> grown;
  WITHY_ASSIGN_OR_RETURN(std::vector<Growing> growing, Begin(requests, pacing, &grown));
  std::vector<int32_t> kept;
  for (const Growing& one : growing) kept.push_back(one.call.tree.size() - one.call.told);
  WITHY_ASSIGN_OR_RETURN(const int32_t passes, GrowAll(growing, pacing));
  size_t next = 0;
  for (size_t i = 0; i < grown.size(); ++i) {
    GrownTree& one = grown[i];
    one.passes = passes;
    one.pass_ms = pass_ms_;
    if (next == growing.size() || growing[next].call.call_id != requests[i].call_id) continue;
    Drafted& call = growing[next].call;
    one.tree = MostLikely(call.tree, requests[i].limits.max_nodes);
    one.window_drafted = std::exchange(call.window_drafted, 0);
    one.window_kept = kept[next++];
    call.told = call.tree.size();
  }
  return grown;
}

absl::StatusOr<CaughtUp> TreeDrafter::Grow(std::span<const TreeRequest> requests, Turns& turns) {
  const std::function<bool()> never = [] { return false; };
  const Pacing pacing{.cancelled = never, .turns = &turns};
  std::vector<GrownTree> grown;
  absl::StatusOr<std::vector<Growing>> growing = Begin(requests, pacing, &grown);
  CaughtUp all;
  for (const GrownTree& one : grown) {
    all.tokens += one.caught_up.tokens;
    all.ms += one.caught_up.ms;
  }
  if (absl::IsCancelled(growing.status())) return all;
  WITHY_RETURN_IF_ERROR(growing.status());
  std::vector<int32_t> before;
  for (const Growing& one : *growing) before.push_back(one.call.tree.size());
  const absl::Status status = GrowAll(*growing, pacing).status();
  for (size_t i = 0; i < growing->size(); ++i) {
    Drafted& call = (*growing)[i].call;
    call.window_drafted += call.tree.size() - before[i];
  }
  if (!status.ok() && !absl::IsCancelled(status)) return status;
  return all;
}

// Returns the passes that it took.
absl::StatusOr<int32_t> TreeDrafter::GrowAll(std::span<Growing> growing, const Pacing& pacing) {
  const auto vocab = static_cast<size_t>(model_.info().vocab_size);
  for (int32_t passes = 0;; ++passes) {
    size_t leaves = 0;
    for (Growing& one : growing) {
      one.leaves = one.growth.Next();
      leaves += one.leaves.size();
    }
    if (leaves == 0) return passes;
    if (pacing.cancelled()) return absl::CancelledError("the request has ended");
    const int64_t started = clock_.SteadyNanos();
    WITHY_RETURN_IF_ERROR(ComputeLeaves(growing, pacing));
    const double ms = Millis(clock_.SteadyNanos() - started);
    // A pass in turns takes as long as they let it wait.
    if (pacing.turns == nullptr) pass_ms_ += (pass_ms_ > 0 ? kPassWeight : 1) * (ms - pass_ms_);
    size_t row = 0;
    for (Growing& one : growing) {
      Drafted& call = one.call;
      // The last token is computed by the first pass.
      call.computed = static_cast<int32_t>(call.tokens.size());
      for (const int32_t leaf : one.leaves) {
        WITHY_ASSIGN_OR_RETURN(
            const std::vector<engine::DraftCandidate> likely,
            one.sampler.Candidates(std::span(logits_).subspan(vocab * row++, vocab), call.tokens,
                                   call.tree.PathTo(leaf)));
        std::vector<policy::LikelyToken> candidates;
        for (const auto& [token, probability] : likely) candidates.push_back({token, probability});
        one.growth.Extend(leaf, candidates, one.ends);
        if (leaf != policy::TreeGrowth::kRoot) call.has_kv[static_cast<size_t>(leaf)] = true;
        call.has_kv.resize(static_cast<size_t>(call.tree.size()));
      }
    }
  }
}

// Computes the tokens without KV, all but the last.
absl::Status TreeDrafter::CatchUp(Drafted& call, const Pacing& pacing, CaughtUp* caught_up) {
  const auto end = static_cast<int32_t>(call.tokens.size()) - 1;
  while (call.computed < end) {
    if (pacing.cancelled()) return absl::CancelledError("the request has ended");
    std::vector<engine::Row> rows;
    const int32_t last = std::min(call.computed + kPieceRows, end);
    for (int32_t at = call.computed; at < last; ++at) {
      rows.push_back({.token = call.tokens[static_cast<size_t>(at)], .position = at, .slot = at});
    }
    const engine::ContextView view = call.kv.View();
    WITHY_RETURN_IF_ERROR(Compute(
        {.rows = rows, .contexts = {&view, 1}, .tag = pass_numbers_.Next(call.call_id)}, pacing));
    caught_up->tokens += last - call.computed;
    caught_up->ms += computed_ms_;
    call.computed = last;
  }
  return absl::OkStatus();
}

absl::Status TreeDrafter::ComputeLeaves(std::span<Growing> growing, const Pacing& pacing) {
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
      const policy::DraftNode& node = one.call.tree.nodes()[static_cast<size_t>(leaf)];
      row.token = node.token;
      row.position = length - 1 + node.depth;
      row.slot = length + leaf;
      row.ancestor_slots = ancestors.emplace_back(one.call.tree.AncestorSlots(leaf, length));
    }
    views.push_back(one.call.kv.View());
  }
  logits_.resize(
      std::max(logits_.size(), rows.size() * static_cast<size_t>(model_.info().vocab_size)));
  const engine::PassTag tag = pass_numbers_.Next(calls.size() == 1 ? *calls.begin() : 0);
  return Compute({.rows = rows, .contexts = views, .tag = tag}, pacing);
}

// Errors: CANCELLED (the turns are over).
absl::Status TreeDrafter::Compute(const engine::Batch& batch, const Pacing& pacing) {
  int64_t started = clock_.SteadyNanos();
  if (pacing.turns == nullptr) {
    const absl::Status status = model_.Forward(batch, logits_.data());
    computed_ms_ = Millis(clock_.SteadyNanos() - started);
    return status;
  }
  computed_ms_ = 0;
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Pass> pass,
                         model_.Begin(batch, logits_.data()));
  while (pacing.turns->Begin()) {
    started = clock_.SteadyNanos();
    const bool computed = pass->Run(&pacing.turns->wanted());
    computed_ms_ += Millis(clock_.SteadyNanos() - started);
    pacing.turns->End();
    if (computed) return absl::OkStatus();
    WITHY_RETURN_IF_ERROR(pass->status());
  }
  return absl::CancelledError("the turns are over");
}

}  // namespace withy::draft_worker
