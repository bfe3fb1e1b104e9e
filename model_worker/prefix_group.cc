#include "model_worker/prefix_group.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "base/status.h"
#include "engine/sampling/draft_sampler.h"

namespace withy::model_worker {
namespace {

struct Growing {
  PrefixJob& job;
  engine::DraftSampler sampler;
  policy::TreeGrowth growth;
  std::vector<int32_t> leaves = {};  // that the next pass computes
};

// The rows of one pass and what they refer to.
struct LeafRows {
  std::vector<engine::Row> rows;
  std::vector<engine::ContextView> views;
  std::deque<std::vector<int32_t>> ancestors;
};

LeafRows RowsOf(std::span<Growing> growing) {
  LeafRows made;
  for (const Growing& one : growing) {
    Session& session = one.job.session;
    const std::vector<policy::DraftNode>& nodes = one.job.tree.nodes();
    for (const int32_t leaf : one.leaves) {
      DraftRowSpec spec{.token = session.tokens().back()};
      if (leaf != policy::TreeGrowth::kRoot) {
        const policy::DraftNode& node = nodes[static_cast<size_t>(leaf)];
        std::vector<int32_t>& slots = made.ancestors.emplace_back();
        for (int32_t at = node.parent; at >= 0; at = nodes[static_cast<size_t>(at)].parent) {
          slots.push_back(session.DraftSlot(at));
        }
        std::reverse(slots.begin(), slots.end());
        spec = {.token = node.token, .depth = node.depth, .node = leaf, .ancestor_slots = slots};
      }
      made.rows.push_back(session.DraftRow(spec));
      made.rows.back().context = static_cast<int32_t>(made.views.size());
    }
    made.views.push_back(session.DraftView());
  }
  return made;
}

// Each leaf's likely tokens, from its row of `logits`.
absl::Status ExtendAll(std::span<Growing> growing, std::span<const float> logits, size_t vocab) {
  size_t row = 0;
  for (Growing& one : growing) {
    for (const int32_t leaf : one.leaves) {
      WITHY_ASSIGN_OR_RETURN(
          const std::vector<engine::DraftCandidate> likely,
          one.sampler.Candidates(logits.subspan(vocab * row++, vocab), one.job.session.tokens(),
                                 one.job.tree.PathTo(leaf)));
      std::vector<policy::Candidate> candidates;
      for (const auto& [token, probability] : likely) candidates.push_back({token, probability});
      const int32_t before = one.job.tree.size();
      one.growth.Extend(leaf, candidates);
      StopAtEnds(one.job.session.sampling().unpenalized, before, &one.job.tree);
    }
  }
  return absl::OkStatus();
}

}  // namespace

void StopAtEnds(std::span<const int32_t> ends, int32_t first, policy::DraftTree* tree) {
  for (int32_t node = first; node < tree->size(); ++node) {
    const int32_t token = tree->nodes()[static_cast<size_t>(node)].token;
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) tree->MarkExtended(node);
  }
}

absl::Status GrowTogether(engine::Model& model, std::span<PrefixJob> jobs,
                          const std::atomic<bool>* interrupt, std::vector<float>* logits) {
  const auto vocab = static_cast<size_t>(model.info().vocab_size);
  std::vector<Growing> growing;
  growing.reserve(jobs.size());
  for (PrefixJob& job : jobs) {
    WITHY_ASSIGN_OR_RETURN(engine::DraftSampler sampler,
                           engine::DraftSampler::Create(job.session.sampling()));
    growing.push_back({.job = job,
                       .sampler = std::move(sampler),
                       .growth = policy::TreeGrowth(job.limits, policy::DraftSourceKind::kPrefix,
                                                    job.confidence, &job.tree)});
  }
  while (true) {
    for (Growing& one : growing) one.leaves = one.growth.Next();
    const LeafRows leaves = RowsOf(growing);
    if (leaves.rows.empty()) return absl::OkStatus();
    logits->resize(std::max(logits->size(), leaves.rows.size() * vocab));
    WITHY_ASSIGN_OR_RETURN(
        const std::unique_ptr<engine::Pass> pass,
        model.Begin({.rows = leaves.rows, .contexts = leaves.views}, logits->data()));
    if (!pass->Run(interrupt)) return pass->status();
    WITHY_RETURN_IF_ERROR(ExtendAll(growing, *logits, vocab));
  }
}

}  // namespace withy::model_worker
