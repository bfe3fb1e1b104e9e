#include "serving/speculation/head_drafter.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "engine/session/solo_answer.h"

namespace withy::serving {
namespace {

// Not tuned. Weight of the last pass in the mean of what passes take.
constexpr double kHeadPassWeight = 0.2;
// Not tuned. Tokens whose features wait for the head's next pass, at most: bounds their memory.
constexpr int32_t kMostPending = 64;
// Choice. Tokens of one pass of the head without logits: as many as share the reading of weights.
constexpr int32_t kPendingRows = 128;

double WeightShare(const engine::DraftHead& head, const engine::ModelInfo& target) {
  return static_cast<double>(head.info().levels.front().weight_bytes) /
         static_cast<double>(std::max<int64_t>(1, target.levels.back().weight_bytes));
}

}  // namespace

HeadDrafter::HeadDrafter(engine::DraftHead& head, const engine::ModelInfo& target,
                         const policy::LevelPace& pace, Clock& clock, WorkerMetrics& metrics)
    : head_(head),
      target_(target),
      pace_(pace),
      clock_(clock),
      metrics_(metrics),
      weight_share_(WeightShare(head, target)) {}

bool HeadDrafter::OfFullLevel(const engine::Row& row) const {
  return row.level == -1 || static_cast<size_t>(row.level) + 1 == target_.levels.size();
}

void HeadDrafter::AskFeatures(std::span<engine::Row> rows, std::vector<float>* features) const {
  const auto width = static_cast<size_t>(head_.shape().feature_width());
  if (std::none_of(rows.begin(), rows.end(),
                   [this](const auto& row) { return OfFullLevel(row); })) {
    return;
  }
  features->resize(rows.size() * width);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (OfFullLevel(rows[i])) rows[i].features = std::span(*features).subspan(i * width, width);
  }
}

void HeadDrafter::TakeFeatures(const Session& session, CallDrafts& drafts,
                               std::span<const engine::Row> rows, std::span<const float> features) {
  if (drafts.head == nullptr) drafts.head = std::make_unique<HeadDrafts>(head_, session);
  HeadTreeKv& kv = drafts.head->kv;
  const std::span<const int32_t> tokens = session.tokens();
  const auto width = static_cast<size_t>(head_.shape().feature_width());
  std::vector<int32_t> accepted;  // slots of drafted rows that are of the answer
  for (size_t i = 0; i < rows.size(); ++i) {
    const engine::Row& row = rows[i];
    const auto position = static_cast<size_t>(row.position);
    // The last token is sampled, and was no row.
    if (position + 1 >= tokens.size() && session.decoding()) continue;
    if (row.features.empty() || position >= tokens.size() || tokens[position] != row.token)
      continue;
    const std::span<const int32_t> before = row.ancestor_slots;
    if (!before.empty() &&
        std::find(accepted.begin(), accepted.end(), before.back()) == accepted.end()) {
      continue;
    }
    if (row.slot != row.position || !before.empty()) accepted.push_back(row.slot);
    kv.Append(row.position, features.subspan(i * width, width));
  }
  if (kv.pending() < kMostPending) return;
  if (!ComputePending(session.call_id(), kv).ok()) drafts.head.reset();
}

absl::Status HeadDrafter::ComputePending(uint64_t call_id, HeadTreeKv& kv) {
  while (kv.pending() > 0) {
    const int32_t count = std::min(kv.pending(), kPendingRows);
    const std::vector<engine::Row> rows = kv.PendingRows(count);
    const engine::ContextView view = kv.View();
    WITHY_ASSIGN_OR_RETURN(
        const std::unique_ptr<engine::Pass> pass,
        head_.Begin(
            {.rows = rows, .contexts = {&view, 1}, .tag = metrics_.pass_numbers().Next(call_id)},
            nullptr));
    pass->Run();
    kv.set_computed(kv.computed() + count);
  }
  return absl::OkStatus();
}

policy::DraftOffer HeadDrafter::Follow(const DraftTask& task) {
  if (task.drafts.head == nullptr) return {};
  HeadDrafts& drafts = *task.drafts.head;
  drafts.tree = {};
  const bool ready =
      drafts.kv.BeginTree() && engine::LevelIndex(target_, task.session.level_percent()) + 1 ==
                                   static_cast<int32_t>(target_.levels.size());
  drafts.tree.Follow(drafts.kv);
  const double guess = weight_share_ * pace_.TokenMs(task.session.rows().computed());
  return {.ready = ready, .pass_ms = pass_ms_ > 0 ? pass_ms_ : guess};
}

absl::StatusOr<std::unique_ptr<TreeGrower>> HeadDrafter::GrowerOf(
    std::span<const DraftTask> tasks) {
  std::vector<TreeJob> jobs;
  for (const DraftTask& task : tasks) {
    jobs.push_back({.call_id = task.call_id,
                    .tree = task.drafts.head->tree,
                    .kv = task.drafts.head->kv,
                    .sampling = task.session.answer().sampling(),
                    .limits = task.limits,
                    .confidence = task.drafts.Confidence()});
  }
  return TreeGrower::Create({.model = head_,
                             .passes = metrics_.pass_numbers(),
                             .clock = clock_,
                             .logits = logits_,
                             .source = policy::DraftSourceKind::kHead},
                            std::move(jobs));
}

absl::Status HeadDrafter::GrowAll(TreeGrower& grower, const std::atomic<bool>* interrupt) {
  while (true) {
    WITHY_ASSIGN_OR_RETURN(const bool more, grower.Begin());
    if (!more) return absl::OkStatus();
    WITHY_ASSIGN_OR_RETURN(const bool computed, grower.Compute(interrupt));
    if (!computed) return absl::OkStatus();
    if (!grower.extends()) continue;
    pass_ms_ += (pass_ms_ > 0 ? kHeadPassWeight : 1) * (grower.pass_ms() - pass_ms_);
  }
}

DraftResult HeadDrafter::Grow(std::span<const DraftTask> tasks, const DraftTime& time) {
  for (const DraftTask& task : tasks) {
    ComputePending(task.call_id, task.drafts.head->kv).IgnoreError();
  }
  const auto grower = GrowerOf(tasks);
  if (grower.ok()) GrowAll(**grower, time.interrupt).IgnoreError();
  for (const DraftTask& task : tasks) task.drafts.step.tree.Merge(task.drafts.head->tree.tree);
  return {.came = true};
}

}  // namespace withy::serving
