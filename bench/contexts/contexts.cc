// withy-bench-contexts: how long it takes to switch between contexts that do not all fit the
// arena, against other ways to keep KV (contestants.h). Traces of calls over 72 hours,
// compressed in time, go through a real context_store process: its arena, leases, compression,
// encryption, segments and reads of the disk. A stand-in plays the worker; where KV has to be
// computed again, the time is that of a curve measured with the engine. Prints tables on stderr and
// one JSON line last on stdout. Neighbours: contexts_run.h, contexts_trace.h, contexts_figures.h.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/contexts/contexts_cost.h"
#include "bench/contexts/contexts_figures.h"
#include "bench/contexts/contexts_run.h"
#include "bench/contexts/contexts_service.h"
#include "bench/contexts/contexts_trace.h"

using Names = std::vector<std::string>;

ABSL_FLAG(bool, quick, false, "a few settings and calls, minutes; other flags replace its values");
ABSL_FLAG(Names, traces, {}, "random, markov, gaussian");
ABSL_FLAG(
    Names, settings, {},
    "settings to run, each CONTEXTS:ARENA_PERCENT:DISK_MB_PER_S, as 8:25:300; disk 0 is the "
    "disk as it is. Default: all of 2, 4, 6, 8, 12, 16 contexts, 12.5, 25, 37.5 %, and a disk "
    "as it is, of 300 and of 40 MB/s");
ABSL_FLAG(Names, shapes, {}, "gqa, mha");
ABSL_FLAG(Names, strategies, {}, "names of bench/contexts/contestants.h; withy is always measured");
ABSL_FLAG(int, calls, -1, "calls of each trace, from its start; 0: all of its hours");
ABSL_FLAG(int, max_tokens, 4096, "window of a context");
ABSL_FLAG(double, gap_s, 300, "mean time between calls");
ABSL_FLAG(bool, hurry, false,
          "calls follow each other at once, without time for the store's work on idle contexts");
ABSL_FLAG(int, seed, 1, "of traces and KV");
ABSL_FLAG(Names, recompute, {},
          "times of a recomputed row instead of measuring them, as gqa=ROW_MS:POSITION_MS");
ABSL_FLAG(
    std::string, models, "",
    "directory of the models whose recompute is timed; default: bench/ in the build directory");
ABSL_FLAG(bool, single, true, "also measure resident switches and cold loads");
ABSL_FLAG(bool, gain, true,
          "also measure what recomputing a part while the rest is read gains, with disks that take "
          "a quarter to four times as long as recomputing");
ABSL_FLAG(int, gain_tokens, 2048, "length of the context of --gain, at most --max_tokens");
ABSL_FLAG(bool, service, false,
          "also measure the whole service: the first token after everything was killed, and "
          "decoding over compressed KV");
ABSL_FLAG(std::string, service_model, "", "GGUF for --service; default: that of the shape gqa");
ABSL_FLAG(int, service_tokens, 2048, "longest context of --service");

namespace withy::bench {
namespace {

constexpr uint32_t kResidentRounds = 200;
constexpr uint32_t kColdRounds = 7;
constexpr uint32_t kDecodePairs = 7;
constexpr double kReadShares[] = {0.25, 0.5, 1, 2, 4};

struct Plan {
  std::vector<std::string> traces, shapes, strategies;
  std::vector<ContextSetting> settings;  // without shape and pattern
  uint32_t calls = 0;
};

absl::StatusOr<ContextSetting> ParseSetting(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  ContextSetting setting;
  if (parts.size() == 3 && absl::SimpleAtoi(parts[0], &setting.contexts) &&
      absl::SimpleAtod(parts[1], &setting.budget_percent) &&
      absl::SimpleAtoi(parts[2], &setting.disk_mb_per_s) && setting.contexts >= 1 &&
      setting.contexts <= 1000 && setting.budget_percent > 0 && setting.budget_percent <= 1000) {
    return setting;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--settings: \"", text,
                   "\" is not CONTEXTS:ARENA_PERCENT:DISK_MB_PER_S with 1 "
                   "to 1000 contexts and a share above 0 and up to 1000 %, as 8:25:300"));
}

Names Or(const Names& given, const Names& otherwise) { return given.empty() ? otherwise : given; }

absl::StatusOr<Plan> MakePlan() {
  const bool quick = absl::GetFlag(FLAGS_quick);
  Plan plan;
  plan.traces = Or(absl::GetFlag(FLAGS_traces),
                   quick ? Names{"markov"} : Names{"random", "markov", "gaussian"});
  plan.shapes = Or(absl::GetFlag(FLAGS_shapes), quick ? Names{"gqa"} : Names{"gqa", "mha"});
  plan.strategies =
      Or(absl::GetFlag(FLAGS_strategies), {"llms", "lmk", "swap", "vllm-s", "vllm-sq", "cake"});
  std::erase(plan.strategies, "withy");
  plan.strategies.insert(plan.strategies.begin(), "withy");
  Names settings = absl::GetFlag(FLAGS_settings);
  if (settings.empty() && quick) settings = {"8:25:0", "8:25:300", "8:25:40"};
  if (settings.empty()) {
    for (const char* contexts : {"2", "4", "6", "8", "12", "16"}) {
      for (const char* budget : {"12.5", "25", "37.5"}) {
        for (const char* disk : {"0", "300", "40"}) {
          settings.push_back(absl::StrCat(contexts, ":", budget, ":", disk));
        }
      }
    }
  }
  for (const std::string& text : settings) {
    WITHY_ASSIGN_OR_RETURN(plan.settings.emplace_back(), ParseSetting(text));
  }
  for (const std::string& name : plan.traces) {
    WITHY_RETURN_IF_ERROR(FindSwitchPattern(name).status());
  }
  for (const std::string& name : plan.shapes) {
    WITHY_RETURN_IF_ERROR(FindContextShape(name).status());
  }
  for (const std::string& name : plan.strategies) {
    WITHY_RETURN_IF_ERROR(FindContestant(name).status());
  }
  WITHY_RETURN_IF_ERROR(
      CheckFlag("service_tokens", absl::GetFlag(FLAGS_service_tokens), 256, 1 << 20));
  WITHY_RETURN_IF_ERROR(CheckFlag("gain_tokens", absl::GetFlag(FLAGS_gain_tokens), 256, 32768));
  const int calls = absl::GetFlag(FLAGS_calls);
  WITHY_RETURN_IF_ERROR(CheckFlag("calls", calls, -1, 1'000'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("max_tokens", absl::GetFlag(FLAGS_max_tokens), 256, 32768));
  WITHY_RETURN_IF_ERROR(CheckFlag("seed", absl::GetFlag(FLAGS_seed), 0, INT32_MAX));
  if (!(absl::GetFlag(FLAGS_gap_s) >= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--gap_s is ", absl::GetFlag(FLAGS_gap_s), "; it must be at least 1"));
  }
  plan.calls = static_cast<uint32_t>(calls < 0 ? (quick ? 40 : 0) : calls);
  return plan;
}

std::string ModelsDirectory() {
  std::string models = absl::GetFlag(FLAGS_models);
  if (!models.empty()) return models;
  const auto binaries = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return (binaries / "../../bench").lexically_normal().string();
}

// From --recompute, or measured.
absl::StatusOr<RecomputeCost> CostOf(const ContextShape& shape, nlohmann::json* json) {
  for (const std::string& text : absl::GetFlag(FLAGS_recompute)) {
    const std::vector<std::string> parts = absl::StrSplit(text, absl::ByAnyChar("=:"));
    RecomputeCost cost;
    if (parts.size() != 3 || !absl::SimpleAtod(parts[1], &cost.row_ms) ||
        !absl::SimpleAtod(parts[2], &cost.position_ms) || cost.row_ms <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--recompute: \"", text, "\" is not SHAPE=ROW_MS:POSITION_MS"));
    }
    if (parts[0] == shape.name) return cost;
  }
  const auto threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  WITHY_ASSIGN_OR_RETURN(
      const MeasuredCost measured,
      MeasureRecompute(shape, ModelsDirectory(),
                       static_cast<uint32_t>(absl::GetFlag(FLAGS_max_tokens)), threads));
  std::fprintf(stderr,
               "%s: a recomputed row takes %.3f ms + %.3f us for each 1,000 tokens before it; a "
               "prefill took %.3f of what that says\n",
               shape.name.c_str(), measured.cost.row_ms, measured.cost.position_ms * 1e6,
               measured.executed_ms / measured.predicted_ms);
  (*json)[shape.name] = {{"row_ms", measured.cost.row_ms},
                         {"position_ms", measured.cost.position_ms},
                         {"executed_vs_predicted", measured.executed_ms / measured.predicted_ms}};
  return measured.cost;
}

void PrintHeader() {
  std::fprintf(stderr, "%-8s %-9s %8s %7s %6s  %-13s %9s %10s %10s %10s %10s %10s\n", "shape",
               "trace", "contexts", "arena %", "MB/s", "strategy", "switches", "mean ms", "p50 ms",
               "p99 ms", "loaded ms", "recomputed");
}

void PrintRow(const ContextSetting& s, const std::string& strategy, const ContextRunFigures& f) {
  std::fprintf(stderr, "%-8s %-9s %8u %7.4g %6u  %-13s %9zu %10.2f %10.2f %10.2f %10.2f %10.1f\n",
               s.shape.c_str(), s.pattern.c_str(), s.contexts, s.budget_percent, s.disk_mb_per_s,
               strategy.c_str(), f.switches.switches, f.switches.mean_ms, f.switches.p50_ms,
               f.switches.p99_ms, f.loads.mean_ms, f.recomputed_tokens);
}

nlohmann::json ToJson(const ContextSetting& s, const std::string& strategy,
                      const ContextRunFigures& f) {
  return {{"shape", s.shape},
          {"trace", s.pattern},
          {"contexts", s.contexts},
          {"arena_percent", s.budget_percent},
          {"disk_mb_per_s", s.disk_mb_per_s},
          {"strategy", strategy},
          {"switches", f.switches.switches},
          {"mean_ms", f.switches.mean_ms},
          {"p50_ms", f.switches.p50_ms},
          {"p99_ms", f.switches.p99_ms},
          {"loaded_mean_ms", f.loads.mean_ms},
          {"recomputed_tokens", f.recomputed_tokens}};
}

struct Results {
  ContextResults switches;
  ContextResults loads;  // until all KV is there
};

// All strategies of one setting, one after the other.
absl::Status RunSetting(const Plan& plan, const ContextSetting& setting, const ContextRun& run,
                        Results* results, nlohmann::json* rows) {
  for (const std::string& name : plan.strategies) {
    WITHY_ASSIGN_OR_RETURN(const Contestant contestant, FindContestant(name));
    const absl::StatusOr<ContextRunFigures> figures = RunContextTrace(setting, contestant, run);
    if (absl::IsResourceExhausted(figures.status())) {
      std::fprintf(stderr, "%-8s %-9s %8u %7.4g %6u  %-13s a context does not fit the arena\n",
                   setting.shape.c_str(), setting.pattern.c_str(), setting.contexts,
                   setting.budget_percent, setting.disk_mb_per_s, name.c_str());
      continue;
    }
    WITHY_RETURN_IF_ERROR(
        Annotate(figures.status(), absl::StrCat(name, ", ", DescribeSetting(setting))));
    PrintRow(setting, name, *figures);
    results->switches[setting][name] = figures->switches;
    results->loads[setting][name] = figures->loads;
    rows->push_back(ToJson(setting, name, *figures));
  }
  return absl::OkStatus();
}

absl::Status MeasureSingle(const ContextRun& run, nlohmann::json* json) {
  WITHY_ASSIGN_OR_RETURN(const ResidentSwitches measured,
                         MeasureResidentSwitches(run, kResidentRounds));
  const LatencySummary& resident = measured.switches;
  WITHY_ASSIGN_OR_RETURN(const ColdLoad cold, MeasureColdLoad(run, kColdRounds));
  for (const auto& [what, ms] : {std::pair{"switch to a resident context", resident},
                                 std::pair{"empty call of the store", measured.empty_calls}}) {
    std::fprintf(stderr, "%s: p50 %.3f ms, p99 %.3f ms, max %.3f ms\n", what, ms.p50_ms, ms.p99_ms,
                 ms.max_ms);
  }
  std::fprintf(stderr, "cold load, encrypted: %.0f MB/s, %.3f of a plain O_DIRECT read\n",
               cold.bytes_per_s / 1e6, cold.fraction);
  (*json)["resident_switch_ms_p50"] = resident.p50_ms;
  (*json)["resident_switch_ms_p99"] = resident.p99_ms;
  (*json)["resident_switch_ms_max"] = resident.max_ms;
  (*json)["empty_call_ms_max"] = measured.empty_calls.max_ms;
  (*json)["cold_load_mb_per_s"] = cold.bytes_per_s / 1e6;
  (*json)["cold_load_fraction_encrypted"] = cold.fraction;
  return absl::OkStatus();
}

absl::Status MeasureGain(const ContextRun& run, const std::string& shape, nlohmann::json* json) {
  const uint32_t tokens =
      std::min(run.max_tokens, static_cast<uint32_t>(absl::GetFlag(FLAGS_gain_tokens)));
  double least = 0, worst_of_best = 0;
  nlohmann::json rows = nlohmann::json::array();
  for (const double share : kReadShares) {
    WITHY_ASSIGN_OR_RETURN(const RecomputeGain gain, MeasureRecomputeGain(run, tokens, share));
    const double worst_ms = std::max({gain.planned.ms, gain.told_slow.ms, gain.told_fast.ms});
    std::fprintf(stderr,
                 "%s: read in %.0f ms, recomputed in %.0f ms, both at once %.0f ms (%.2f "
                 "recomputed), gain %.2f; recomputing told as 10 times as slow %.0f ms, as fast "
                 "%.0f ms; the best that is possible %.0f ms\n",
                 shape.c_str(), gain.read_ms, gain.recompute_ms, gain.planned.ms,
                 gain.planned.recomputed, gain.gain(), gain.told_slow.ms, gain.told_fast.ms,
                 gain.best_ms());
    least = rows.empty() ? gain.gain() : std::min(least, gain.gain());
    worst_of_best = std::max(worst_of_best, worst_ms / gain.best_ms());
    rows.push_back({{"read_ms", gain.read_ms},
                    {"recompute_ms", gain.recompute_ms},
                    {"ms", gain.planned.ms},
                    {"recomputed", gain.planned.recomputed},
                    {"gain", gain.gain()},
                    {"told_slow_ms", gain.told_slow.ms},
                    {"told_fast_ms", gain.told_fast.ms},
                    {"best_ms", gain.best_ms()}});
  }
  (*json)["recompute_gain_when_close"] = least;
  (*json)["load_vs_best_wrong_costs"] = worst_of_best;
  (*json)["recompute_gain"] = std::move(rows);
  return absl::OkStatus();
}

// The paper's Figure 10: how many contexts can be switched between in 10 and in 25 ms.
void AddContextsWithin(const ContextResults& results, nlohmann::json* json) {
  for (const double limit_ms : {10.0, 25.0}) {
    nlohmann::json rows = nlohmann::json::array();
    std::fprintf(stderr, "active contexts with a mean switch of at most %.0f ms\n", limit_ms);
    for (const auto& [setting, by_strategy] : ContextsWithin(results, limit_ms)) {
      std::fprintf(stderr, "  %s, %s, arena %.4g %%, %u MB/s:", setting.shape.c_str(),
                   setting.pattern.c_str(), setting.budget_percent, setting.disk_mb_per_s);
      nlohmann::json row = {{"shape", setting.shape},
                            {"trace", setting.pattern},
                            {"arena_percent", setting.budget_percent},
                            {"disk_mb_per_s", setting.disk_mb_per_s}};
      for (const auto& [strategy, contexts] : by_strategy) {
        std::fprintf(stderr, " %s %u", strategy.c_str(), contexts);
        row["contexts"][strategy] = contexts;
      }
      std::fprintf(stderr, "\n");
      rows.push_back(std::move(row));
    }
    (*json)[absl::StrCat("contexts_within_", limit_ms, "_ms")] = std::move(rows);
  }
}

absl::Status MeasureService(const std::string& model, nlohmann::json* json) {
  const auto longest = static_cast<uint32_t>(absl::GetFlag(FLAGS_service_tokens));
  WITHY_ASSIGN_OR_RETURN(const std::vector<RestartGain> gains,
                         MeasureRestart(model, {longest / 8, longest / 2, longest}));
  double least = gains.front().gain();
  for (const RestartGain& gain : gains) {
    std::fprintf(stderr,
                 "after a restart, %u tokens: first token in %.0f ms, recomputed in %.0f ms, %.1f "
                 "times as long\n",
                 gain.context_tokens, gain.with_kv_ms, gain.without_ms, gain.gain());
    least = std::min(least, gain.gain());
  }
  (*json)["restart_tokens"] = gains.back().context_tokens;
  (*json)["restart_ttft_gain"] = gains.back().gain();
  (*json)["restart_ttft_gain_min"] = least;
  WITHY_ASSIGN_OR_RETURN(const double decode, MeasureDecodeRatio(model, longest / 2, kDecodePairs));
  std::fprintf(stderr, "decoding over compressed KV: %.3f of the speed over 8 bits\n", decode);
  (*json)["decode_with_store_ratio"] = decode;
  return absl::OkStatus();
}

// `suffix`: of the keys' names.
void AddKeys(const ContextResults& results, const char* suffix, nlohmann::json* json) {
  const ContextKeys keys = CompareStrategies(results);
  const auto add = [&](const char* key, const std::optional<double>& value) {
    if (!value.has_value()) return;
    const std::string name = absl::StrCat(key, suffix);
    (*json)[name] = *value;
    std::fprintf(stderr, "%-32s %.3f\n", name.c_str(), *value);
  };
  add("lmk_speedup", keys.lmk_speedup);
  add("swap_speedup", keys.swap_speedup);
  add("vllm_sq_speedup", keys.vllm_sq_speedup);
  add("vllm_sq_speedup_best", keys.vllm_sq_speedup_best);
  add("worst_vs_best_baseline", keys.worst_vs_best_baseline);
  if (keys.worst_vs_best_baseline.has_value()) {
    (*json)[absl::StrCat("worst_setting", suffix)] = keys.worst_setting;
    std::fprintf(stderr, "%-32s %s\n", "  there", keys.worst_setting.c_str());
  }
}

absl::Status Main() {
  WITHY_ASSIGN_OR_RETURN(const Plan plan, MakePlan());
  nlohmann::json json, recompute = nlohmann::json::object(), rows = nlohmann::json::array();
  Results results;
  ContextRun run{.kv = {},
                 .recompute = {},
                 .max_tokens = static_cast<uint32_t>(absl::GetFlag(FLAGS_max_tokens)),
                 .calls = plan.calls,
                 .seed = static_cast<uint64_t>(absl::GetFlag(FLAGS_seed)),
                 .mean_gap_s = absl::GetFlag(FLAGS_gap_s),
                 .await_idle = !absl::GetFlag(FLAGS_hurry)};
  for (size_t s = 0; s < plan.shapes.size(); ++s) {
    WITHY_ASSIGN_OR_RETURN(const ContextShape shape, FindContextShape(plan.shapes[s]));
    WITHY_ASSIGN_OR_RETURN(run.recompute, CostOf(shape, &recompute));
    run.kv = shape.kv();
    if (s == 0 && absl::GetFlag(FLAGS_single)) WITHY_RETURN_IF_ERROR(MeasureSingle(run, &json));
    if (s == 0 && absl::GetFlag(FLAGS_gain)) {
      WITHY_RETURN_IF_ERROR(MeasureGain(run, shape.name, &json));
    }
    PrintHeader();
    for (const std::string& trace : plan.traces) {
      for (ContextSetting setting : plan.settings) {
        setting.shape = shape.name;
        setting.pattern = trace;
        WITHY_RETURN_IF_ERROR(RunSetting(plan, setting, run, &results, &rows));
      }
    }
  }
  if (absl::GetFlag(FLAGS_service)) {
    std::string model = absl::GetFlag(FLAGS_service_model);
    if (model.empty()) {
      WITHY_ASSIGN_OR_RETURN(const ContextShape shape, FindContextShape("gqa"));
      WITHY_ASSIGN_OR_RETURN(model, ShapeFile(shape, ModelsDirectory()));
    }
    WITHY_RETURN_IF_ERROR(MeasureService(model, &json));
  }
  AddContextsWithin(results.switches, &json);
  AddKeys(results.switches, "", &json);
  AddKeys(results.loads, "_until_loaded", &json);
  json["recompute"] = std::move(recompute);
  json["rows"] = std::move(rows);
  std::printf("%s\n", json.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "Time to switch between contexts, against other ways to keep KV.\n"
      "usage: withy-bench-contexts [--quick] [--settings 8:25:0] [--traces markov] [--shapes gqa]",
      argc, argv, withy::bench::Main);
}
