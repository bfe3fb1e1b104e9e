#include "serving/speculation/tree_grower.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace withy::serving {
namespace {

using policy::TreeGrowth;

int32_t ParentOf(const policy::DraftTree& tree, int32_t node) {
  return tree.nodes()[static_cast<size_t>(node)].parent;
}

}  // namespace

void KvTree::Clear() {
  tree = {};
  slots_.clear();
  settled_ = 0;
}

void KvTree::Follow(TreeKv& kv) {
  const std::span<const int32_t> tokens = kv.tokens();
  const bool longer = length_ <= tokens.size();
  const std::span<const int32_t> added = longer ? tokens.subspan(length_) : tokens;
  length_ = tokens.size();
  if (longer && added.empty()) return;
  int32_t at = TreeGrowth::kRoot;
  std::vector<int32_t> path;
  for (size_t i = 0; longer && i < added.size(); ++i) {
    at = tree.Find(at, added[i]);
    if (at < 0) break;
    path.push_back(SlotOf(at));
  }
  if (at < 0) {
    path.resize(added.size(), TreeKv::kNoSlot);
    kv.Keep(path, {});
    return Clear();
  }
  std::vector<int32_t> from;
  policy::DraftTree below = tree.Below(at, &from);
  std::vector<int32_t> slots = {SlotOf(at)};
  for (const int32_t node : from) slots.push_back(SlotOf(node));
  kv.Keep(path, slots);
  settled_ = static_cast<int32_t>(
      std::count_if(from.begin(), from.end(), [this](int32_t node) { return node < settled_; }));
  tree = std::move(below);
  slots_ = std::move(slots);
  // The tree was full when this token was computed, or nothing was to follow it: it is asked again.
  if (tree.root_extended() && tree.empty()) Clear();
}

int32_t KvTree::SlotOf(int32_t node) const {
  const auto index = static_cast<size_t>(node + 1);
  return index < slots_.size() ? slots_[index] : TreeKv::kNoSlot;
}

void KvTree::SetSlot(int32_t node, int32_t slot) {
  const auto index = static_cast<size_t>(node + 1);
  if (index >= slots_.size()) slots_.resize(index + 1, TreeKv::kNoSlot);
  slots_[index] = slot;
}

absl::StatusOr<std::unique_ptr<TreeGrower>> TreeGrower::Create(const GrowerParts& parts,
                                                               std::vector<TreeJob> jobs) {
  std::unique_ptr<TreeGrower> grower(new TreeGrower(parts));
  grower->growing_.reserve(jobs.size());
  for (TreeJob& job : jobs) {
    job.kv.Keep({}, job.tree.slots());
    WITHY_ASSIGN_OR_RETURN(engine::DraftSampler sampler,
                           engine::DraftSampler::Create(job.sampling));
    policy::TreeGrowth growth(job.limits, parts.source, job.confidence, &job.tree.tree);
    grower->growing_.push_back(
        {.job = std::move(job), .sampler = std::move(sampler), .growth = std::move(growth)});
  }
  return grower;
}

absl::StatusOr<bool> TreeGrower::Run(const std::atomic<bool>* stop) {
  while (true) {
    WITHY_ASSIGN_OR_RETURN(const bool more, Begin());
    if (!more) return true;
    WITHY_ASSIGN_OR_RETURN(const bool computed, Compute(stop));
    if (!computed) return false;
  }
}

absl::StatusOr<bool> TreeGrower::Begin() {
  if (pass_ != nullptr) return true;
  WITHY_RETURN_IF_ERROR(Finish());
  rows_.clear();
  views_.clear();
  ancestors_.clear();
  pass_ms_ = 0;
  const auto behind = std::find_if(growing_.begin(), growing_.end(), [](const Growing& one) {
    return one.job.kv.computed() + 1 < static_cast<int32_t>(one.job.kv.tokens().size());
  });
  catching_up_ = behind == growing_.end() ? nullptr : &*behind;
  size_t leaves = 0;
  if (catching_up_ != nullptr) {
    AppendPiece(*catching_up_);
  } else {
    for (Growing& one : growing_) {
      ChooseRows(&one);
      AppendRows(one);
      leaves += one.leaves.size();
    }
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i].ancestor_slots = ancestors_[i];
  }
  if (rows_.empty()) return false;
  const size_t wanted = leaves * static_cast<size_t>(parts_.model.info().vocab_size);
  if (parts_.logits.size() < wanted) parts_.logits.resize(wanted);
  const engine::PassTag tag = parts_.passes.Next(OnlyCall());
  WITHY_ASSIGN_OR_RETURN(pass_, parts_.model.Begin({.rows = rows_, .contexts = views_, .tag = tag},
                                                   parts_.logits.data()));
  return true;
}

absl::StatusOr<bool> TreeGrower::Compute(const std::atomic<bool>* stop) {
  const int64_t started = parts_.clock.SteadyNanos();
  const bool computed = pass_->Run(stop);
  pass_ms_ += Millis(parts_.clock.SteadyNanos() - started);
  if (!computed) {
    WITHY_RETURN_IF_ERROR(pass_->status());
    return false;
  }
  pass_.reset();
  computed_ = true;
  if (extends()) ++passes_;
  return true;
}

// What the pass gave, if one was computed.
absl::Status TreeGrower::Finish() {
  if (!std::exchange(computed_, false)) return absl::OkStatus();
  if (catching_up_ != nullptr) {
    TreeKv& kv = catching_up_->job.kv;
    kv.set_computed(kv.computed() + rows());
    catching_up_->caught_up.tokens += rows();
    catching_up_->caught_up.ms += pass_ms_;
    return absl::OkStatus();
  }
  size_t logits_row = 0;
  for (Growing& one : growing_) WITHY_RETURN_IF_ERROR(Extend(one, &logits_row));
  return absl::OkStatus();
}

// The call that all rows of the pass belong to; 0: they are of several.
uint64_t TreeGrower::OnlyCall() const {
  if (catching_up_ != nullptr) return catching_up_->job.call_id;
  uint64_t only = 0;
  for (const Growing& one : growing_) {
    if (one.computed.empty()) continue;
    if (only != 0) return 0;
    only = one.job.call_id;
  }
  return only;
}

// The next tokens without KV, all but the last: that one is computed for its logits, as a leaf is.
void TreeGrower::AppendPiece(Growing& one) {
  const std::span<const int32_t> tokens = one.job.kv.tokens();
  const auto end = static_cast<int32_t>(tokens.size()) - 1;
  const int32_t first = one.job.kv.computed();
  for (int32_t at = first; at < std::min(first + kPieceRows, end); ++at) {
    engine::Row& row = rows_.emplace_back(one.job.kv.LastTokenRow());
    row.token = tokens[static_cast<size_t>(at)];
    row.position = row.slot = at;
    row.context = 0;
    row.want_logits = false;
  }
  views_.push_back(one.job.kv.View());
}

// The leaves that go on next, and all without KV between them and the call's tokens. A leaf whose
// branch finds no slots is left out.
void TreeGrower::ChooseRows(Growing* one) {
  const KvTree& tree = one->job.tree;
  one->leaves.clear();
  one->computed.clear();
  one->slots.clear();
  for (const int32_t leaf : one->growth.Next()) {
    std::vector<int32_t> nodes = one->computed;
    for (int32_t at = leaf;; at = ParentOf(tree.tree, at)) {
      // A leaf is computed for its logits, too.
      if (at == leaf || tree.SlotOf(at) == TreeKv::kNoSlot) nodes.push_back(at);
      if (at == TreeGrowth::kRoot) break;
    }
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    std::vector<int32_t> slots = one->job.kv.Place(nodes, one->job.tree.slots());
    if (slots.empty()) continue;
    one->computed = std::move(nodes);
    one->slots = std::move(slots);
    one->leaves.push_back(leaf);
  }
}

void TreeGrower::AppendRows(const Growing& one) {
  if (one.computed.empty()) return;
  const policy::DraftTree& tree = one.job.tree.tree;
  const engine::Row last = one.job.kv.LastTokenRow();
  const auto slot_of = [&](int32_t node) {
    const auto found = std::lower_bound(one.computed.begin(), one.computed.end(), node);
    const bool now = found != one.computed.end() && *found == node;
    return now ? one.slots[static_cast<size_t>(found - one.computed.begin())]
               : one.job.tree.SlotOf(node);
  };
  // Where the last token has its own place, rows see it as one of the tokens before them.
  const bool root_is_ancestor = slot_of(TreeGrowth::kRoot) != last.position;
  for (const int32_t node : one.computed) {
    engine::Row& row = rows_.emplace_back(last);
    row.slot = slot_of(node);
    row.context = static_cast<int32_t>(views_.size());
    row.want_logits = std::find(one.leaves.begin(), one.leaves.end(), node) != one.leaves.end();
    std::vector<int32_t>& slots = ancestors_.emplace_back();
    if (node == TreeGrowth::kRoot) continue;
    row.token = tree.nodes()[static_cast<size_t>(node)].token;
    row.position += tree.nodes()[static_cast<size_t>(node)].depth;
    for (int32_t at = ParentOf(tree, node); at != TreeGrowth::kRoot; at = ParentOf(tree, at)) {
      slots.push_back(slot_of(at));
    }
    if (root_is_ancestor) slots.push_back(slot_of(TreeGrowth::kRoot));
    std::reverse(slots.begin(), slots.end());
  }
  views_.push_back(one.job.kv.View());
}

// Adds each leaf's likely tokens, from its row of the logits.
absl::Status TreeGrower::Extend(Growing& one, size_t* logits_row) {
  const auto vocab = static_cast<size_t>(parts_.model.info().vocab_size);
  const std::span<const int32_t> tokens = one.job.kv.tokens();
  for (size_t i = 0; i < one.computed.size(); ++i) {
    one.job.tree.SetSlot(one.computed[i], one.slots[i]);
    if (one.computed[i] == TreeGrowth::kRoot) {
      one.job.kv.set_computed(static_cast<int32_t>(tokens.size()));
    }
  }
  for (const int32_t leaf : one.leaves) {
    // Rows are in the order of their nodes.
    const auto before =
        std::count_if(one.leaves.begin(), one.leaves.end(), [leaf](int32_t n) { return n < leaf; });
    const std::span<const float> logits =
        std::span<const float>(parts_.logits)
            .subspan((*logits_row + static_cast<size_t>(before)) * vocab, vocab);
    WITHY_ASSIGN_OR_RETURN(const std::vector<engine::DraftCandidate> likely,
                           one.sampler.Candidates(logits, tokens, one.job.tree.tree.PathTo(leaf)));
    std::vector<policy::LikelyToken> candidates;
    for (const auto& [token, probability] : likely) candidates.push_back({token, probability});
    one.growth.Extend(leaf, candidates, one.job.sampling.unpenalized);
  }
  *logits_row += one.leaves.size();
  return absl::OkStatus();
}

}  // namespace withy::serving
