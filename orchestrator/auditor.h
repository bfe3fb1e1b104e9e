// Finds out in quiet moments how often lower levels answer as the full model does: has the full
// model answer a prompt that was answered lately, greedily, and holds each lower level against
// that. Answers are told to nobody and kept nowhere; what is counted is kept over restarts.
// Neighbours: idle_task.h waits and asks, policy/call/pair_table.h counts, audit_record.h writes it
// down, gateway.cc owns it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "orchestrator/audit_record.h"
#include "orchestrator/board/backends.h"
#include "orchestrator/board/idle_task.h"
#include "orchestrator/call/score.h"
#include "policy/call/pair_table.h"
#include "telemetry/recorder.h"
#include "withy/v1/llm_service.pb.h"
#include "withy/v1/model_worker.pb.h"

namespace withy::orchestrator {

// Thread-safe. Metrics: counter withy_audited_answers_total; by pair of levels, the gauges
// withy_level_agreement_ratio, withy_level_agreement_spread_ratio and withy_level_audits.
class Auditor {
 public:
  static constexpr size_t kApps = policy::PairTable::kApps;  // whose calls wait to be audited

  // `path`: of the record (audit_record.h). One that is damaged, or of another model, is logged and
  // begun anew.
  Auditor(Backends& backends, TextScores& scores, const Clock& clock, telemetry::Recorder& recorder,
          std::string path);

  // A call has come, or has gone: audits happen while none is there.
  void CallStarts() { idle_.CallStarts(); }
  void CallEnds() { idle_.CallEnds(); }

  // A stateless call was answered as `run` says in `tokens` tokens, by `model`, which is decided
  // for as `measure` says. Of an app the last one waits to be audited. Long answers are not where
  // answers are compared: they say the same in other words. Where tokens are, calls with an output
  // format are not: what the format forbids would count against a level.
  void Offer(const v1::RunRequest& run, uint32_t tokens, const v1::ModelDescription& model,
             AuditMeasure measure);

  // What is known of an app's prompts. What was found of another model or by another measure is
  // forgotten.
  policy::Agreement AgreementOf(const std::string& app_id, const v1::ModelDescription& model);
  // The same by tokens, of each level on the whole prompt, [levels].
  std::vector<double> ChancesOf(const std::string& app_id, const v1::ModelDescription& model);

  // What is known of the board, ascending. Empty before the first call.
  std::vector<v1::LevelPairChance> Report() const;

 private:
  struct Sample {
    AuditKey key;
    v1::RunRequest run;
    std::vector<uint32_t> levels;                    // still to be asked, without the full one
    std::optional<std::string> full = std::nullopt;  // its answer
  };
  struct App {
    uint32_t offered = 0;
    uint64_t last_offer = 0;  // of all apps' offers, the number of its last one
    std::unique_ptr<Sample> waiting;
  };
  struct PairMetrics {
    telemetry::Gauge* chance;
    telemetry::Gauge* spread;
    telemetry::Gauge* audits;
  };

  static AuditKey KeyOf(const v1::ModelDescription& model, AuditMeasure measure);
  // From now on the table is that of `key`.
  void Attend(const AuditKey& key, const v1::ModelDescription& model)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Show() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  App& Of(const std::string& app_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  int64_t AuditNext();
  // An app whose answer waits; end: none.
  std::map<std::string, App>::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // As far as it comes. Returns whether what is left waits for a caller's text to be scored.
  bool Audit(const std::string& app_id, Sample* sample);
  void Learn(const std::string& app_id, const AuditKey& key, uint32_t level, double agreement);
  void Keep();
  absl::StatusOr<double> AgreementAt(const Sample& sample, uint32_t level_percent);
  absl::StatusOr<std::string> Answer(const v1::RunRequest& run, uint32_t level_percent);
  absl::StatusOr<double> ShareOfTokens(const Sample& sample, uint32_t level_percent);

  const Clock& clock_;
  TextScores& scores_;
  telemetry::Recorder& recorder_;
  telemetry::Counter& audits_;
  const std::string path_;
  mutable absl::Mutex mutex_;
  std::map<std::string, App> apps_ ABSL_GUARDED_BY(mutex_);
  uint64_t offers_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string last_app_ ABSL_GUARDED_BY(mutex_);         // that was audited
  std::optional<AuditKey> key_ ABSL_GUARDED_BY(mutex_);  // of the table; none before the first call
  policy::PairTable table_ ABSL_GUARDED_BY(mutex_);
  bool unwritten_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<policy::LevelPair, PairMetrics> metrics_ ABSL_GUARDED_BY(mutex_);
  IdleTask idle_;  // uses the others
};

}  // namespace withy::orchestrator
