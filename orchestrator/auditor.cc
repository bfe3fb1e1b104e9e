#include "orchestrator/auditor.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "policy/constants.h"

namespace withy::orchestrator {
namespace {

constexpr size_t kMostRecordBytes = 1 << 20;

// As the full model is asked: what an app's call wanted of time, chance and the record is left out.
v1::RunRequest AuditOf(const v1::RunRequest& run, AuditMeasure measure) {
  v1::RunRequest audit = run;
  const uint32_t asked = run.limits().max_tokens();  // 0 = as long as it gets
  constexpr uint32_t kMost = policy::kLongestAuditTokens + policy::kMoreAuditTokens;
  audit.mutable_limits()->set_max_tokens(asked == 0 ? kMost : std::min(asked, kMost));
  // Drawn tokens would differ where the levels agree.
  audit.mutable_sampling()->Clear();
  audit.mutable_sampling()->set_temperature(0);
  audit.clear_request_id();
  audit.clear_request_digest();
  audit.clear_deadline_steady_ns();
  audit.clear_targets();
  audit.clear_level_fixed();
  audit.clear_expected_tokens();
  audit.clear_report_progress();
  if (measure == AuditMeasure::kTokens) {  // of the whole prompt
    audit.clear_kept();
    audit.clear_pruned_words();
  }
  return audit;
}

int64_t InMillionths(double value) { return std::llround(value * 1e6); }

}  // namespace

Auditor::Auditor(Backends& backends, TextScores& scores, const Clock& clock,
                 telemetry::Recorder& recorder, std::string path)
    : clock_(clock),
      scores_(scores),
      recorder_(recorder),
      audits_(recorder.counter(
          {.name = "withy_audited_answers_total",
           .help = "Answers of lower levels that were compared with the full model's."})),
      path_(std::move(path)),
      idle_(backends, clock, [this] { return AuditNext(); }) {}

AuditKey Auditor::KeyOf(const v1::ModelDescription& model, AuditMeasure measure) {
  return {.model_id = model.model_id(),
          .levels = {model.levels_percent().begin(), model.levels_percent().end()},
          .measure = measure};
}

void Auditor::Attend(const AuditKey& key, const v1::ModelDescription& model) {
  if (key_ == key) return;
  key_ = key;
  apps_.clear();
  const auto& losses = model.level_loss_above_full();
  table_ = policy::PairTable(key.levels, {losses.begin(), losses.end()});
  unwritten_ = false;
  if (!key.model_id.empty()) {
    const absl::StatusOr<std::string> record = ReadRegularFile(path_, kMostRecordBytes);
    const absl::Status read =
        record.ok() ? ReadAuditRecord(*record, key, &table_) : record.status();
    if (!read.ok() && !absl::IsNotFound(read)) {
      spdlog::warn("{}: what audits found before is left out: {}", path_,
                   std::string(read.message()));
    }
  }
  for (auto& [pair, metrics] : metrics_) {  // of levels that the model may lack
    for (telemetry::Gauge* gauge : {metrics.chance, metrics.spread, metrics.audits}) gauge->Set(0);
  }
  Show();
}

void Auditor::Show() {
  for (const policy::LevelPair pair : table_.Pairs()) {
    auto found = metrics_.find(pair);
    if (found == metrics_.end()) {
      const std::string label = absl::StrCat(pair.prompt_percent, "/", pair.level_percent);
      const auto gauge = [&](const char* name, const char* help, telemetry::Unit unit) {
        return &recorder_.gauge({.name = name,
                                 .help = help,
                                 .unit = unit,
                                 .label_key = "levels",
                                 .label_value = label});
      };
      found =
          metrics_
              .emplace(pair, PairMetrics{gauge("withy_level_agreement_ratio",
                                               "Agreement with the full model, by prompt and model "
                                               "level in per cent.",
                                               telemetry::Unit::kMillionths),
                                         gauge("withy_level_agreement_spread_ratio",
                                               "Standard deviation of withy_level_agreement_ratio.",
                                               telemetry::Unit::kMillionths),
                                         gauge("withy_level_audits",
                                               "Audits that withy_level_agreement_ratio was learnt "
                                               "from; old ones count for less.",
                                               telemetry::Unit::kMillionths)})
              .first;
    }
    const policy::PairChance chance = table_.BoardChanceOf(pair);
    found->second.chance->Set(InMillionths(chance.mean));
    found->second.spread->Set(InMillionths(chance.spread));
    found->second.audits->Set(InMillionths(chance.audits));
  }
}

Auditor::App& Auditor::Of(const std::string& app_id) {
  if (!apps_.contains(app_id) && apps_.size() >= kApps) {
    apps_.erase(std::min_element(apps_.begin(), apps_.end(), [](const auto& a, const auto& b) {
      return a.second.last_offer < b.second.last_offer;
    }));
  }
  App& app = apps_[app_id];
  app.last_offer = ++offers_;
  return app;
}

void Auditor::Offer(const v1::RunRequest& run, uint32_t tokens, const v1::ModelDescription& model,
                    AuditMeasure measure) {
  if (!run.context_id().empty() || model.levels_percent_size() < 2) return;
  const bool unfit = measure == AuditMeasure::kAnswers ? tokens > policy::kLongestAuditTokens
                                                       : run.has_output_format();
  if (unfit) return;
  AuditKey key = KeyOf(model, measure);
  absl::MutexLock lock(&mutex_);
  Attend(key, model);
  App& app = Of(run.app_id());
  const uint32_t before = app.offered++;
  if (before >= policy::kFirstAudits && before % policy::kAuditEvery != 0) return;
  if (app.waiting != nullptr && app.waiting->full.has_value()) return;  // half audited
  std::vector<uint32_t> levels = key.levels;
  std::erase(levels, policy::kFullPercent);
  app.waiting = std::make_unique<Sample>(
      Sample{.key = std::move(key), .run = AuditOf(run, measure), .levels = std::move(levels)});
  idle_.Schedule(0);
}

policy::Agreement Auditor::AgreementOf(const std::string& app_id,
                                       const v1::ModelDescription& model) {
  absl::MutexLock lock(&mutex_);
  Attend(KeyOf(model, AuditMeasure::kAnswers), model);
  return table_.AgreementOf(app_id);
}

std::vector<double> Auditor::ChancesOf(const std::string& app_id,
                                       const v1::ModelDescription& model) {
  absl::MutexLock lock(&mutex_);
  Attend(KeyOf(model, AuditMeasure::kTokens), model);
  std::vector<double> chances;
  for (const uint32_t level : table_.levels()) {
    chances.push_back(table_.ChanceOf(app_id, {policy::kFullPercent, level}).mean);
  }
  return chances;
}

std::vector<v1::LevelPairChance> Auditor::Report() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::LevelPairChance> report;
  for (const policy::LevelPair pair : table_.Pairs()) {
    const policy::PairChance chance = table_.BoardChanceOf(pair);
    v1::LevelPairChance& wire = report.emplace_back();
    wire.set_prompt_level_percent(pair.prompt_percent);
    wire.set_model_level_percent(pair.level_percent);
    wire.set_chance(chance.mean);
    wire.set_spread(chance.spread);
    wire.set_audits(chance.audits);
  }
  return report;
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
  const bool scorer_busy = Audit(app_id, sample.get());
  Keep();
  absl::MutexLock lock(&mutex_);
  const auto app = apps_.find(app_id);
  const bool waits = app == apps_.end() || app->second.waiting != nullptr;
  if (!sample->levels.empty() && !waits) app->second.waiting = std::move(sample);
  if (Next() == apps_.end()) return IdleTask::kNothing;
  return scorer_busy ? clock_.SteadyNanos() + policy::kScoreRetryMs * kNanosPerMilli : 0;
}

// What is left to be asked stays in `sample`. The full model first, then from the highest of the
// others down.
bool Auditor::Audit(const std::string& app_id, Sample* sample) {
  while (!sample->levels.empty()) {
    absl::Status asked;
    const bool scores = sample->full.has_value() && sample->key.measure == AuditMeasure::kTokens;
    if (!sample->full.has_value()) {
      absl::StatusOr<std::string> answer = Answer(sample->run, policy::kFullPercent);
      asked = answer.status();
      if (answer.ok()) sample->full = *std::move(answer);
    } else {
      const uint32_t level = sample->levels.back();
      const absl::StatusOr<double> agreement = AgreementAt(*sample, level);
      asked = agreement.status();
      if (agreement.ok()) {
        audits_.Add();
        Learn(app_id, sample->key, level, *agreement);
        sample->levels.pop_back();
      }
    }
    if (absl::IsCancelled(asked)) return false;
    if (scores && absl::IsResourceExhausted(asked)) return true;
    if (!asked.ok()) sample->levels.clear();
  }
  return false;
}

void Auditor::Learn(const std::string& app_id, const AuditKey& key, uint32_t level,
                    double agreement) {
  absl::MutexLock lock(&mutex_);
  if (key_ != key) return;
  table_.Learn(app_id, {policy::kFullPercent, level}, agreement);
  unwritten_ = true;
  Show();
}

void Auditor::Keep() {
  std::string record;
  {
    absl::MutexLock lock(&mutex_);
    if (!key_.has_value() || key_->model_id.empty() || !std::exchange(unwritten_, false)) return;
    record = AuditRecord(*key_, table_);
  }
  const absl::Status written = WriteAtomically(path_, record);
  if (written.ok()) return;
  spdlog::error("what audits found is not kept: {}", std::string(written.message()));
  absl::MutexLock lock(&mutex_);
  unwritten_ = true;  // and tried again
}

absl::StatusOr<double> Auditor::AgreementAt(const Sample& sample, uint32_t level_percent) {
  if (sample.key.measure == AuditMeasure::kTokens) return ShareOfTokens(sample, level_percent);
  WITHY_ASSIGN_OR_RETURN(const std::string answer, Answer(sample.run, level_percent));
  return answer == *sample.full ? 1.0 : 0.0;
}

// One pass over prompt and answer instead of an answer, which takes a pass a token.
absl::StatusOr<double> Auditor::ShareOfTokens(const Sample& sample, uint32_t level_percent) {
  if (sample.full->empty()) return absl::NotFoundError("the full model has nothing to say");
  v1::ScoreRequest request;
  *request.mutable_prompt() = sample.run.prompt();
  request.set_text(*sample.full);
  request.mutable_setting()->set_model_level_percent(level_percent);
  absl::StatusOr<v1::ScoreResult> result = absl::UnavailableError("not scored");
  WITHY_RETURN_IF_ERROR(idle_.Do([&](CallControl& control) {
    result = scores_.ScoreForAudit(request, control);
    return result.status();
  }));
  if (result->tokens() == 0) return absl::NotFoundError("no token was scored");
  return result->top1_share();
}

absl::StatusOr<std::string> Auditor::Answer(const v1::RunRequest& run, uint32_t level_percent) {
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
