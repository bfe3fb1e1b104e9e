#include "orchestrator/auditor.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "policy/constants.h"

namespace withy::orchestrator {

Auditor::Auditor(Backends& backends, const Clock& clock, telemetry::Recorder& recorder)
    : audits_(recorder.counter(
          {.name = "withy_audited_answers_total",
           .help = "Answers of lower levels that were compared with the full model's."})),
      idle_(backends, clock, [this] { return AuditNext(); }) {}

void Auditor::Offer(const v1::RunRequest& run, uint32_t tokens, std::vector<uint32_t> levels) {
  if (!run.context_id().empty() || levels.size() < 2 || tokens > policy::kLongestAuditTokens)
    return;
  absl::MutexLock lock(&mutex_);
  if (std::exchange(worker_instance_, run.worker_instance()) != run.worker_instance()) {
    apps_.clear();
  }
  if (!apps_.contains(run.app_id()) && apps_.size() >= kApps) {
    apps_.erase(std::min_element(apps_.begin(), apps_.end(), [](const auto& a, const auto& b) {
      return a.second.last_offer < b.second.last_offer;
    }));
  }
  App& app = apps_[run.app_id()];
  app.last_offer = ++offers_;
  const uint32_t before = app.offered++;
  if (before >= policy::kFirstAudits && before % policy::kAuditEvery != 0) return;
  if (app.waiting != nullptr && app.waiting->full_known) return;  // half audited
  app.waiting = std::make_unique<Sample>(Sample{.run = run, .levels = std::move(levels)});
  v1::RunRequest& sample = app.waiting->run;
  const uint32_t asked = run.limits().max_tokens();  // 0 = as long as it gets
  constexpr uint32_t kMost = policy::kLongestAuditTokens + policy::kMoreAuditTokens;
  sample.mutable_limits()->set_max_tokens(asked == 0 ? kMost : std::min(asked, kMost));
  // Drawn tokens would differ where the levels agree.
  sample.mutable_sampling()->Clear();
  sample.mutable_sampling()->set_temperature(0);
  sample.clear_request_id();
  sample.clear_request_digest();
  sample.clear_deadline_steady_ns();
  sample.clear_targets();
  sample.clear_level_fixed();
  sample.clear_expected_tokens();
  sample.clear_report_progress();
  idle_.Schedule(0);
}

policy::Agreement Auditor::AgreementOf(const std::string& app_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = apps_.find(app_id);
  return found == apps_.end() ? policy::Agreement() : found->second.agreement;
}

// App after app, so that a busy one leaves the others their turn.
std::map<std::string, Auditor::App>::iterator Auditor::Next() {
  auto it = apps_.upper_bound(last_app_);
  for (size_t i = 0; i < apps_.size(); ++i, ++it) {
    if (it == apps_.end()) it = apps_.begin();
    if (it->second.waiting != nullptr) return it;
  }
  return apps_.end();
}

int64_t Auditor::AuditNext() {
  std::string app_id;
  std::unique_ptr<Sample> sample;
  {
    absl::MutexLock lock(&mutex_);
    const auto next = Next();
    if (next == apps_.end()) return IdleTask::kNothing;
    app_id = last_app_ = next->first;
    sample = std::move(next->second.waiting);
  }
  Audit(app_id, sample.get());
  absl::MutexLock lock(&mutex_);
  const auto app = apps_.find(app_id);
  const bool waits = app == apps_.end() || app->second.waiting != nullptr;
  if (!sample->levels.empty() && !waits) app->second.waiting = std::move(sample);
  return Next() != apps_.end() ? 0 : IdleTask::kNothing;
}

// As far as it comes; what is left to be asked stays in `sample`. The full model first, then from
// the highest of the others down.
void Auditor::Audit(const std::string& app_id, Sample* sample) {
  while (!sample->levels.empty()) {
    const uint32_t level = sample->full_known ? sample->levels.back() : policy::kFullPercent;
    const absl::StatusOr<std::string> answer = Ask(sample->run, level);
    if (absl::IsCancelled(answer.status())) return;
    if (!answer.ok()) {
      sample->levels.clear();
      return;
    }
    if (!sample->full_known) {
      sample->full = *answer;
      sample->full_known = true;
      std::erase(sample->levels, policy::kFullPercent);
      continue;
    }
    audits_.Add();
    absl::MutexLock lock(&mutex_);
    const auto app = apps_.find(app_id);
    if (sample->run.worker_instance() == worker_instance_ && app != apps_.end()) {
      app->second.agreement.Learn(level, *answer == sample->full);
    }
    sample->levels.pop_back();
  }
}

absl::StatusOr<std::string> Auditor::Ask(const v1::RunRequest& run, uint32_t level_percent) {
  v1::RunRequest request = run;
  request.set_model_level_percent(level_percent);
  std::string text;
  bool finished = false;
  WITHY_RETURN_IF_ERROR(
      idle_.Ask(policy::Lane::kTarget, std::move(request), [&](v1::RunResponse& event) {
        if (event.has_finished()) {
          text = event.finished().text();
          finished = event.finished().reason() != v1::FINISH_REASON_CANCELLED;
        }
        return true;
      }));
  if (!finished) return absl::UnavailableError("no answer");
  return text;
}

}  // namespace withy::orchestrator
