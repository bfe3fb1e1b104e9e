#include "serving/speculation/prefix_growth.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace withy::serving {
namespace {

using policy::TreeGrowth;

int32_t ParentOf(const policy::DraftTree& tree, int32_t node) {
  return tree.nodes()[static_cast<size_t>(node)].parent;
}

// The session's slots for drafts that are not among `used`, the highest first: they are far from
// the rows of the steps to come.
std::vector<int32_t> FreeSlots(std::span<const int32_t> used, const Session& session) {
  std::vector<int32_t> free;
  for (int32_t slot = session.end_draft_slots() - 1; slot >= session.first_draft_slot(); --slot) {
    if (std::find(used.begin(), used.end(), slot) == used.end()) free.push_back(slot);
  }
  return free;
}

}  // namespace

int32_t PrefixTree::Follow(std::span<const int32_t> tokens) {
  int32_t at = TreeGrowth::kRoot;
  const bool longer = length_ <= tokens.size();
  const std::span<const int32_t> added = longer ? tokens.subspan(length_) : tokens;
  for (size_t i = 0; i < added.size() && (i == 0 || at >= 0); ++i) at = tree.Find(at, added[i]);
  length_ = tokens.size();
  if (longer && added.empty()) return 0;
  if (!longer || at < 0) {
    tree = {};
    slots_.clear();
    old_ = 0;
    return 0;
  }
  std::vector<int32_t> from;
  policy::DraftTree below = tree.Below(at, &from);
  std::vector<int32_t> slots = {SlotOf(at)};
  for (const int32_t node : from) slots.push_back(SlotOf(node));
  tree = std::move(below);
  slots_ = std::move(slots);
  const auto grown = std::count_if(from.begin(), from.end(), [&](int32_t n) { return n >= old_; });
  old_ = tree.size();
  return static_cast<int32_t>(grown);
}

void PrefixTree::Add(const policy::DraftTree& other, std::span<const int32_t> chosen) {
  std::vector<int32_t> place(other.nodes().size(), -1);
  for (const int32_t node : chosen) {
    const auto index = static_cast<size_t>(node);
    const policy::DraftNode& added = other.nodes()[index];
    const int32_t parent = added.parent < 0 ? -1 : place[static_cast<size_t>(added.parent)];
    place[index] = tree.Add(parent, added.token, added.confidence, added.origin);
  }
  old_ = tree.size();
}

int32_t PrefixTree::SlotOf(int32_t node) const {
  const auto index = static_cast<size_t>(node + 1);
  return index < slots_.size() ? slots_[index] : kNoSlot;
}

void PrefixTree::SetSlot(int32_t node, int32_t slot) {
  const auto index = static_cast<size_t>(node + 1);
  if (index >= slots_.size()) slots_.resize(index + 1, kNoSlot);
  slots_[index] = slot;
}

void PrefixTree::KeepSlots(int32_t first, int32_t end) {
  for (int32_t& slot : slots_) {
    if (slot < first || slot >= end) slot = kNoSlot;
  }
}

absl::StatusOr<std::unique_ptr<PrefixGrowth>> PrefixGrowth::Create(engine::Model& model,
                                                                   engine::PassNumbers& passes,
                                                                   Clock& clock,
                                                                   std::vector<PrefixJob> jobs,
                                                                   OnPass on_pass) {
  std::unique_ptr<PrefixGrowth> growth(
      new PrefixGrowth(model, passes, clock, std::move(jobs), std::move(on_pass)));
  growth->growing_.reserve(growth->jobs_.size());
  for (PrefixJob& job : growth->jobs_) {
    job.tree.KeepSlots(job.session.first_draft_slot(), job.session.end_draft_slots());
    WITHY_ASSIGN_OR_RETURN(engine::DraftSampler sampler,
                           engine::DraftSampler::Create(job.session.sampling()));
    growth->growing_.push_back(
        {.job = job,
         .sampler = std::move(sampler),
         .growth = policy::TreeGrowth(job.limits, policy::DraftSourceKind::kPrefix, job.confidence,
                                      &job.tree.tree)});
  }
  return growth;
}

absl::StatusOr<bool> PrefixGrowth::Run(const std::atomic<bool>* stop) {
  while (true) {
    if (pass_ == nullptr) {
      WITHY_RETURN_IF_ERROR(Begin());
      if (pass_ == nullptr) return true;
    }
    const int64_t started = clock_.SteadyNanos();
    const bool computed = pass_->Run(stop);
    pass_ms_ += Millis(clock_.SteadyNanos() - started);
    if (!computed) {
      WITHY_RETURN_IF_ERROR(pass_->status());
      return false;
    }
    pass_.reset();
    if (on_pass_) on_pass_(static_cast<int32_t>(rows_.size()), pass_ms_);
    WITHY_RETURN_IF_ERROR(Extend());
  }
}

// Begins the next pass; none if all trees are done.
absl::Status PrefixGrowth::Begin() {
  rows_.clear();
  views_.clear();
  ancestors_.clear();
  size_t leaves = 0;
  for (Growing& one : growing_) {
    ChooseRows(&one);
    AppendRows(one);
    leaves += one.leaves.size();
  }
  if (leaves == 0) return absl::OkStatus();
  for (size_t i = 0; i < rows_.size(); ++i) rows_[i].ancestor_slots = ancestors_[i];
  pass_ms_ = 0;
  logits_.resize(std::max(logits_.size(), leaves * static_cast<size_t>(model_.info().vocab_size)));
  const engine::PassTag tag = pass_numbers_.Next(OnlyCall());
  WITHY_ASSIGN_OR_RETURN(
      pass_, model_.Begin({.rows = rows_, .contexts = views_, .tag = tag}, logits_.data()));
  return absl::OkStatus();
}

// The call that all rows of the pass belong to; 0: they are of several.
uint64_t PrefixGrowth::OnlyCall() const {
  uint64_t only = 0;
  for (const Growing& one : growing_) {
    if (one.computed.empty()) continue;
    if (only != 0) return 0;
    only = one.job.session.call_id();
  }
  return only;
}

// The leaves that go on next, and all without KV between them and the call's tokens. A leaf whose
// branch finds no slots is left out.
void PrefixGrowth::ChooseRows(Growing* one) {
  const PrefixTree& tree = one->job.tree;
  std::vector<int32_t> nodes;
  std::vector<int32_t> leaves = one->growth.Next();
  std::sort(leaves.begin(), leaves.end());
  one->slots = FreeSlots(tree.slots(), one->job.session);
  one->leaves.clear();
  for (const int32_t leaf : leaves) {
    std::vector<int32_t> more;
    for (int32_t at = leaf;; at = ParentOf(tree.tree, at)) {
      const bool planned = std::find(nodes.begin(), nodes.end(), at) != nodes.end();
      // A leaf is computed for its logits, too.
      if (!planned && (at == leaf || tree.SlotOf(at) == PrefixTree::kNoSlot)) more.push_back(at);
      if (at == TreeGrowth::kRoot) break;
    }
    if (nodes.size() + more.size() > one->slots.size()) continue;
    nodes.insert(nodes.end(), more.begin(), more.end());
    one->leaves.push_back(leaf);
  }
  std::sort(nodes.begin(), nodes.end());
  one->slots.resize(nodes.size());
  one->computed = std::move(nodes);
}

void PrefixGrowth::AppendRows(const Growing& one) {
  if (one.computed.empty()) return;
  Session& session = one.job.session;
  const policy::DraftTree& tree = one.job.tree.tree;
  const auto slot_of = [&](int32_t node) {
    const auto found = std::lower_bound(one.computed.begin(), one.computed.end(), node);
    const bool now = found != one.computed.end() && *found == node;
    return now ? one.slots[static_cast<size_t>(found - one.computed.begin())]
               : one.job.tree.SlotOf(node);
  };
  for (const int32_t node : one.computed) {
    DraftRowSpec spec{.token = session.tokens().back(), .slot = slot_of(node)};
    std::vector<int32_t>& slots = ancestors_.emplace_back();
    if (node != TreeGrowth::kRoot) {
      spec.token = tree.nodes()[static_cast<size_t>(node)].token;
      spec.depth = tree.nodes()[static_cast<size_t>(node)].depth;
      for (int32_t at = ParentOf(tree, node);; at = ParentOf(tree, at)) {
        slots.push_back(slot_of(at));
        if (at == TreeGrowth::kRoot) break;
      }
      std::reverse(slots.begin(), slots.end());
    }
    rows_.push_back(session.DraftRow(spec));
    rows_.back().context = static_cast<int32_t>(views_.size());
    rows_.back().want_logits = std::binary_search(one.leaves.begin(), one.leaves.end(), node);
  }
  views_.push_back(session.DraftView());
}

// Adds each leaf's likely tokens, from its row of the logits.
absl::Status PrefixGrowth::Extend() {
  const auto vocab = static_cast<size_t>(model_.info().vocab_size);
  size_t row = 0;
  for (Growing& one : growing_) {
    policy::DraftTree& tree = one.job.tree.tree;
    for (size_t i = 0; i < one.computed.size(); ++i) {
      one.job.tree.SetSlot(one.computed[i], one.slots[i]);
    }
    for (const int32_t leaf : one.leaves) {
      WITHY_ASSIGN_OR_RETURN(
          const std::vector<engine::DraftCandidate> likely,
          one.sampler.Candidates(std::span(logits_).subspan(vocab * row++, vocab),
                                 one.job.session.tokens(), tree.PathTo(leaf)));
      std::vector<policy::LikelyToken> candidates;
      for (const auto& [token, probability] : likely) candidates.push_back({token, probability});
      one.growth.Extend(leaf, candidates, one.job.session.sampling().unpenalized);
    }
  }
  return absl::OkStatus();
}

}  // namespace withy::serving
