// The budgets of all apps: refuses calls of an app that has used up one, counts what calls use, and
// keeps it over restarts. Neighbours: policy/call/app_budget.h computes; generate.cc and score.cc
// ask and charge, gateway.cc asks; openai/ tells clients what is left.
//
// The file STATE_DIR/budgets has a line for each app and budget: the app's name, the budget's, the
// number of its hour or day since the Unix epoch, and what was used in it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "policy/call/app_budget.h"
#include "telemetry/recorder.h"
#include "withy/v1/config.pb.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// Thread-safe. Metrics, by app: counters withy_app_tokens_total, withy_app_joules_total,
// withy_app_budget_refusals_total; gauges withy_app_budget_tokens_left,
// withy_app_budget_joules_left (of an hour's and a day's budget the one with less).
class AppBudgets {
 public:
  // Reads what was used before; a file that cannot be read is logged and begun anew. `recorder` and
  // `clock` are borrowed. Without budgets in `config` nothing is counted, read or written.
  AppBudgets(const v1::Config& config, telemetry::Recorder& recorder, const Clock& clock);
  // Writes what was used.
  ~AppBudgets();
  AppBudgets(const AppBudgets&) = delete;
  AppBudgets& operator=(const AppBudgets&) = delete;

  // The place of a call among its app's; gives it back.
  class Place {
   public:
    Place() = default;
    Place(AppBudgets* budgets, std::string app) : budgets_(budgets), app_(std::move(app)) {}
    Place(Place&& other) noexcept
        : budgets_(std::exchange(other.budgets_, nullptr)), app_(std::move(other.app_)) {}
    Place& operator=(Place&&) = delete;
    ~Place();

   private:
    AppBudgets* budgets_ = nullptr;  // null: nothing to give back
    std::string app_;
  };

  // Before a call of the app of that name. Errors: RESOURCE_EXHAUSTED with the reason
  // BUDGET_REACHED and the time after which to retry; the message names the budget.
  absl::StatusOr<Place> Begin(const std::string& app);
  // What a call used. Returns what is left afterwards: nothing for an app without budgets.
  std::vector<v1::BudgetLeft> Spend(const std::string& app, uint64_t tokens, double joules);

  // What is left, for people and programs.
  struct Left {
    std::vector<policy::BudgetState> budgets = {};
    uint32_t concurrent_calls = 0;  // 0: no limit
    uint32_t running_calls = 0;
  };
  Left LeftOf(const std::string& app) const;

 private:
  struct AppMetrics {
    telemetry::Counter* tokens;
    telemetry::Counter* joules;
    telemetry::Counter* refusals;
    telemetry::Gauge* tokens_left;
    telemetry::Gauge* joules_left;
  };
  struct App {
    policy::BudgetUse use = {};
    uint32_t running = 0;
    double joules_to_count = 0;  // less than one
    AppMetrics metrics = {};
  };

  // Null: the app has no budgets.
  const policy::BudgetLimits* LimitsOf(std::string_view app) const;
  App& Of(const std::string& app) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  AppMetrics MetricsOf(const std::string& app) const;
  absl::Status Refusal(const std::string& app, const policy::BudgetLimits& limits, App& of) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Give(const std::string& app);
  void ShowLeft(const std::string& app, const App& of) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t NowMs() const { return clock_.UnixNanos() / kNanosPerMilli; }
  void Read();
  void Write();

  telemetry::Recorder& recorder_;
  const Clock& clock_;
  const std::string path_;
  std::map<std::string, policy::BudgetLimits, std::less<>> limits_;  // by name; "*": all others
  mutable absl::Mutex mutex_;
  std::map<std::string, App> apps_ ABSL_GUARDED_BY(mutex_);  // by name
  bool unwritten_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Notification stop_;
  std::thread writer_;  // none without budgets
};

}  // namespace withy::orchestrator
