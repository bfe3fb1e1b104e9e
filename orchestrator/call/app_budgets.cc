#include "orchestrator/call/app_budgets.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/contract_limits.h"
#include "base/files.h"
#include "base/status.h"
#include "orchestrator/board/slo_metrics.h"
#include "policy/constants.h"
#include "rpc/error_reason.h"
#include "rpc/status.h"

namespace withy::orchestrator {
namespace {

// How much a crash may forget (docs/operations.md).
constexpr absl::Duration kWrite = absl::Seconds(5);
constexpr size_t kMostFileBytes = 8 << 20;
constexpr char kReason[] = "BUDGET_REACHED";
constexpr char kAllOthers[] = "*";

// How long the calls of an app that has too many should wait.
constexpr int64_t kPlaceRetryMs = 1000;

}  // namespace

AppBudgets::AppBudgets(const v1::Config& config, telemetry::Recorder& recorder, const Clock& clock)
    : recorder_(recorder), clock_(clock), path_(config.state_dir() + "/budgets") {
  for (const v1::AppBudget& budget : config.orchestrator().app_budgets()) {
    limits_[budget.app()] = {.limits = {budget.tokens_per_hour(), budget.tokens_per_day(),
                                        budget.joules_per_hour(), budget.joules_per_day()},
                             .concurrent_calls = budget.concurrent_calls()};
  }
  if (limits_.empty()) return;
  Read();
  writer_ = std::thread([this] {
    while (!stop_.WaitForNotificationWithTimeout(kWrite)) Write();
  });
}

AppBudgets::~AppBudgets() {
  if (!writer_.joinable()) return;
  stop_.Notify();
  writer_.join();
  Write();
}

AppBudgets::Place::~Place() {
  if (budgets_ != nullptr) budgets_->Give(app_);
}

const policy::BudgetLimits* AppBudgets::LimitsOf(std::string_view app) const {
  auto found = limits_.find(app);
  if (found == limits_.end()) found = limits_.find(kAllOthers);
  return found == limits_.end() ? nullptr : &found->second;
}

AppBudgets::AppMetrics AppBudgets::MetricsOf(const std::string& app) const {
  // Those that come later share a label.
  const std::string label = apps_.size() >= SloMetrics::kApps ? "other" : MetricLabelOf(app);
  const auto spec = [&label](const char* name, const char* help) {
    return telemetry::MetricSpec{
        .name = name, .help = help, .label_key = "app", .label_value = label};
  };
  AppMetrics metrics = {
      .tokens = &recorder_.counter(
          spec("withy_app_tokens_total", "Tokens of prompts and answers, of apps with budgets.")),
      .joules = &recorder_.counter(
          spec("withy_app_joules_total", "Energy charged to calls, of apps with budgets.")),
      .refusals = &recorder_.counter(
          spec("withy_app_budget_refusals_total", "Calls refused because a budget was used up.")),
      .tokens_left = nullptr,  // it has no such budget
      .joules_left = nullptr};
  const policy::BudgetLimits* const limits = LimitsOf(app);
  if (limits == nullptr) return metrics;  // of an earlier configuration
  for (const policy::BudgetState& state : policy::StatesOf(*limits, {}, NowMs())) {
    if (policy::UnitOf(state.budget) == "tokens") {
      metrics.tokens_left = &recorder_.gauge(spec(
          "withy_app_budget_tokens_left",
          "Tokens that the app may still use; of an hour's and a day's budget the lesser rest."));
    } else {
      metrics.joules_left = &recorder_.gauge(spec(
          "withy_app_budget_joules_left",
          "Energy that the app may still use; of an hour's and a day's budget the lesser rest."));
    }
  }
  return metrics;
}

AppBudgets::App& AppBudgets::Of(const std::string& app) {
  const auto known = apps_.find(app);
  if (known != apps_.end()) return known->second;
  const AppMetrics metrics = MetricsOf(app);
  return apps_.emplace(app, App{.metrics = metrics}).first->second;
}

absl::Status AppBudgets::Refusal(const std::string& app, const policy::BudgetLimits& limits,
                                 App& of) const {
  const auto used_up = policy::UsedUp(policy::StatesOf(limits, of.use, NowMs()));
  if (used_up.has_value()) {
    const absl::Duration wait = absl::Milliseconds(used_up->resets_in_ms);
    return rpc::WithRetryAfter(
        absl::ResourceExhaustedError(
            absl::StrCat("app ", app, " has used its ", used_up->limit, " ",
                         ToAbsl(policy::UnitOf(used_up->budget)), " of this ",
                         policy::NameOf(used_up->budget).ends_with("hour") ? "hour" : "day",
                         " (orchestrator.app_budgets ", ToAbsl(policy::NameOf(used_up->budget)),
                         "): retry in ", absl::FormatDuration(absl::Ceil(wait, absl::Seconds(1))),
                         ", or let the operator raise it")),
        used_up->resets_in_ms);
  }
  if (limits.concurrent_calls > 0 && of.running >= limits.concurrent_calls) {
    return rpc::WithRetryAfter(
        absl::ResourceExhaustedError(absl::StrCat(
            "app ", app, " has ", of.running,
            " calls at the same time, as many as it may (orchestrator.app_budgets "
            "concurrent_calls): retry when one has ended, or let the operator raise it")),
        kPlaceRetryMs);
  }
  return absl::OkStatus();
}

absl::StatusOr<AppBudgets::Place> AppBudgets::Begin(const std::string& app) {
  const policy::BudgetLimits* const limits = LimitsOf(app);
  if (limits == nullptr) return Place();
  absl::MutexLock lock(&mutex_);
  App& of = Of(app);
  if (const absl::Status refused = Refusal(app, *limits, of); !refused.ok()) {
    of.metrics.refusals->Add();
    return WithReason(refused, kReason);
  }
  ++of.running;
  return Place(this, app);
}

void AppBudgets::Give(const std::string& app) {
  absl::MutexLock lock(&mutex_);
  --Of(app).running;
}

std::vector<v1::BudgetLeft> AppBudgets::Spend(const std::string& app, uint64_t tokens,
                                              double joules) {
  const policy::BudgetLimits* const limits = LimitsOf(app);
  if (limits == nullptr) return {};
  absl::MutexLock lock(&mutex_);
  App& of = Of(app);
  of.use.Spend(NowMs(), static_cast<double>(tokens), joules);
  unwritten_ = true;
  of.metrics.tokens->Add(tokens);
  of.joules_to_count += joules;
  const double whole = std::floor(of.joules_to_count);
  of.metrics.joules->Add(static_cast<uint64_t>(whole));
  of.joules_to_count -= whole;
  ShowLeft(app, of);
  std::vector<v1::BudgetLeft> left;
  for (const policy::BudgetState& state : policy::StatesOf(*limits, of.use, NowMs())) {
    v1::BudgetLeft& one = left.emplace_back();
    one.set_budget(std::string(policy::NameOf(state.budget)));
    one.set_limit(state.limit);
    one.set_left(state.left);
    one.set_resets_in_ms(static_cast<uint64_t>(state.resets_in_ms));
  }
  return left;
}

void AppBudgets::ShowLeft(const std::string& app, const App& of) const {
  const policy::BudgetLimits* const limits = LimitsOf(app);
  if (limits == nullptr) return;  // of an earlier configuration
  uint64_t tokens = UINT64_MAX, joules = UINT64_MAX;
  for (const policy::BudgetState& state : policy::StatesOf(*limits, of.use, NowMs())) {
    uint64_t& least = policy::UnitOf(state.budget) == "tokens" ? tokens : joules;
    least = std::min(least, state.left);
  }
  if (of.metrics.tokens_left != nullptr) of.metrics.tokens_left->Set(static_cast<int64_t>(tokens));
  if (of.metrics.joules_left != nullptr) of.metrics.joules_left->Set(static_cast<int64_t>(joules));
}

AppBudgets::Left AppBudgets::LeftOf(const std::string& app) const {
  const policy::BudgetLimits* const limits = LimitsOf(app);
  if (limits == nullptr) return {};
  absl::MutexLock lock(&mutex_);
  const auto known = apps_.find(app);
  const App none;
  const App& of = known == apps_.end() ? none : known->second;
  return {.budgets = policy::StatesOf(*limits, of.use, NowMs()),
          .concurrent_calls = limits->concurrent_calls,
          .running_calls = of.running};
}

void AppBudgets::Read() {
  const absl::StatusOr<std::string> text = ReadRegularFile(path_, kMostFileBytes);
  if (!text.ok()) {
    if (!absl::IsNotFound(text.status())) {
      spdlog::warn("what apps have used is counted anew: {}", text.status().ToString());
    }
    return;
  }
  absl::MutexLock lock(&mutex_);
  for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    const auto budget = words.size() == 4 ? policy::BudgetOf(words[1]) : std::nullopt;
    policy::BudgetWindow window;
    if (!budget.has_value() || words[0].size() > kMaxAppNameBytes ||
        !absl::SimpleAtoi(words[2], &window.index) || !absl::SimpleAtod(words[3], &window.used) ||
        !(window.used >= 0)) {
      spdlog::warn("{} has a line that cannot be read, which is left out", path_);
      continue;
    }
    Of(words[0]).use.windows[static_cast<size_t>(*budget)] = window;
  }
}

void AppBudgets::Write() {
  std::string text;
  {
    absl::MutexLock lock(&mutex_);
    // The hour may have ended without a call.
    for (const auto& [app, of] : apps_) ShowLeft(app, of);
    if (!std::exchange(unwritten_, false)) return;
    for (const auto& [app, of] : apps_) {
      for (size_t i = 0; i < policy::kBudgets; ++i) {
        const policy::BudgetWindow& window = of.use.windows[i];
        if (window.used <= 0) continue;
        absl::StrAppend(&text, app, " ", ToAbsl(policy::NameOf(static_cast<policy::Budget>(i))),
                        " ", window.index, " ", absl::StrFormat("%.3f", window.used), "\n");
      }
    }
  }
  const absl::Status written = WriteAtomically(path_, text);
  if (written.ok()) return;
  spdlog::error("what apps have used is not kept: {}", written.ToString());
  absl::MutexLock lock(&mutex_);
  unwritten_ = true;  // and tried again
}

}  // namespace withy::orchestrator
