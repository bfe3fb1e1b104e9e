// withy-bench-elastic: measures the cost and gain of elastic levels in the engine, on models with
// random weights: time to switch, memory for all levels, speed against size, and rows of different
// levels in one pass. Prints a table on stderr and one JSON line last on stdout. Neighbours:
// quality.cc measures how good a trained model's levels are; engine_bench.h measures plain models.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/engine/engine_bench.h"
#include "bench/samples.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"

ABSL_FLAG(std::vector<std::string>, plain, {}, "plain GGUF files, one a weight type");
ABSL_FLAG(std::vector<std::string>, elastic, {}, "the same with levels and LoRA, in that order");
ABSL_FLAG(int, rounds, 9, "interleaved measurements of each figure");
ABSL_FLAG(int, threads, 2, "threads");

namespace withy::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kPromptTokens = 256;
constexpr int32_t kSteps = 16;
constexpr int kSpeedRounds = 2;   // times --rounds
constexpr int kSwitchRounds = 2;  // times --rounds
constexpr int kFirstJudged = 30;  // per cent; lower levels are shown but not judged
constexpr std::array<int32_t, 4> kNestedPercents = {20, 40, 70, 100};

double MillisSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Resident bytes of this process, mapped files included.
double ResidentBytes() {
  malloc_trim(0);
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// A model with levels, and KV blocks for each of four contexts.
class Levels {
 public:
  explicit Levels(engine::Model& model)
      : model_(model),
        logits_(static_cast<size_t>(model.info().vocab_size) * kNestedPercents.size()) {
    for (size_t i = 0; i < kNestedPercents.size(); ++i) {
      kv_.push_back(std::make_unique<engine::ScratchKv>(model.info(), kPromptTokens + 2 * kSteps));
    }
  }

  const engine::ModelInfo& info() const { return model_.info(); }
  int32_t count() const { return static_cast<int32_t>(info().levels.size()); }

  // The level closest to `percent`.
  int32_t Nearest(int32_t percent) const {
    int32_t best = 0;
    for (int32_t i = 0; i < count(); ++i) {
      const auto distance = [&](int32_t level) {
        return std::abs(info().levels[static_cast<size_t>(level)].percent - percent);
      };
      if (distance(i) < distance(best)) best = i;
    }
    return best;
  }

  // Milliseconds for a prompt at `level`, with logits of its last token.
  absl::StatusOr<double> Prompt(int32_t level) {
    std::vector<engine::Row> rows(kPromptTokens);
    for (int32_t i = 0; i < kPromptTokens; ++i) rows[static_cast<size_t>(i)] = RowAt(i, 0, level);
    for (size_t i = 0; i + 1 < rows.size(); ++i) rows[i].want_logits = false;
    return Run(rows, 1);
  }

  // Milliseconds for one pass that computes the next token of one context per entry of `levels`.
  absl::StatusOr<double> Step(const std::vector<int32_t>& levels) {
    std::vector<engine::Row> rows;
    for (size_t i = 0; i < levels.size(); ++i)
      rows.push_back(RowAt(kPromptTokens, static_cast<int32_t>(i), levels[i]));
    return Run(rows, levels.size());
  }

 private:
  engine::Row RowAt(int32_t position, int32_t context, int32_t level) const {
    return {.token = 100 + position % 1000,
            .position = position,
            .slot = position,
            .context = context,
            .level = level,
            .want_logits = true};
  }

  absl::StatusOr<double> Run(const std::vector<engine::Row>& rows, size_t contexts) {
    std::vector<engine::ContextView> views;
    for (size_t i = 0; i < contexts; ++i) views.push_back(kv_[i]->View());
    const Clock::time_point start = Clock::now();
    WITHY_RETURN_IF_ERROR(model_.Forward({.rows = rows, .contexts = views}, logits_.data()));
    return MillisSince(start);
  }

  engine::Model& model_;
  std::vector<std::unique_ptr<engine::ScratchKv>> kv_;
  std::vector<float> logits_;
};

struct Result {
  std::string type;
  double memory_ratio = 0;
  double switch_us_max = 0;
  double switch_share_max = 0;  // switch time as a share of a prompt's time
  double ttft_error_max = 0;
  double tpot_error_max = 0;
  double nested_cost_vs_full = 0;
  double nested_gain_vs_separate = 0;
};

absl::StatusOr<std::unique_ptr<engine::Model>> Open(const std::string& path) {
  engine::ModelOptions options;
  options.threads = absl::GetFlag(FLAGS_threads);
  return engine::Model::Open(path, options);
}

// Memory of the model once every level has run, in bytes.
absl::StatusOr<double> MemoryOf(const std::string& path) {
  // Packs the file first if necessary, so that packing does not count.
  WITHY_RETURN_IF_ERROR(Open(path).status());
  const double before = ResidentBytes();
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Model> model, Open(path));
  Levels levels(*model);
  for (int32_t i = 0; i < levels.count(); ++i) {
    WITHY_RETURN_IF_ERROR(levels.Prompt(i).status());
    WITHY_RETURN_IF_ERROR(levels.Step({i}).status());
  }
  return ResidentBytes() - before;
}

// Operations of a prompt: the layers for every token, the output head once.
double PromptFlops(const engine::ModelInfo& info, const engine::LevelInfo& level) {
  const double head = 2.0 * info.vocab_size * info.d_model;
  return kPromptTokens * (static_cast<double>(level.flops_per_token) - head) + head;
}

// Times of one level per round, in milliseconds and as shares of the full level's time in the same
// round. A round in which the machine is slow does not change the shares.
struct Times {
  std::vector<double> ms, shares;
};

void AddShares(std::vector<Times>& levels) {
  for (Times& level : levels) level.shares.push_back(level.ms.back() / levels.back().ms.back());
}

// Prints a level's times beside its predicted share of the full level's. Returns the relative error
// of the prediction.
double ReportTimes(const Times& level, double predicted) {
  const Spread ms = Summarize(level.ms);
  const Spread share = Summarize(level.shares);
  std::fprintf(stderr, " %8.2f (%.2f–%.2f) %7.3f (%.3f–%.3f; %.3f)", ms.median, ms.low, ms.high,
               share.median, share.low, share.high, predicted);
  return std::abs(share.median / predicted - 1);
}

absl::Status MeasureSpeed(Levels& levels, Result* result) {
  const int32_t count = levels.count();
  std::vector<Times> ttft(static_cast<size_t>(count)), tpot(static_cast<size_t>(count));
  for (int round = 0; round < kSpeedRounds * absl::GetFlag(FLAGS_rounds); ++round) {
    for (int32_t level = 0; level < count; ++level) {
      WITHY_ASSIGN_OR_RETURN(const double ms, levels.Prompt(level));
      ttft[static_cast<size_t>(level)].ms.push_back(ms);
    }
    AddShares(ttft);
    for (int32_t level = 0; level < count; ++level) {
      std::vector<double> steps;
      for (int32_t step = 0; step < kSteps; ++step) {
        WITHY_ASSIGN_OR_RETURN(steps.emplace_back(), levels.Step({level}));
      }
      tpot[static_cast<size_t>(level)].ms.push_back(Summarize(steps).median);
    }
    AddShares(tpot);
  }
  const engine::ModelInfo& info = levels.info();
  std::fprintf(stderr, "%7s %25s %27s %25s %27s\n", "level", "TTFT ms (spread)",
               "of full (spread; said)", "TPOT ms (spread)", "of full (spread; said)");
  for (size_t i = 0; i < info.levels.size(); ++i) {
    const engine::LevelInfo& level = info.levels[i];
    std::fprintf(stderr, "%5d %%", level.percent);
    const double ttft_error =
        ReportTimes(ttft[i], PromptFlops(info, level) / PromptFlops(info, info.levels.back()));
    const double tpot_error =
        ReportTimes(tpot[i], static_cast<double>(level.weight_bytes) /
                                 static_cast<double>(info.levels.back().weight_bytes));
    std::fprintf(stderr, "\n");
    if (level.percent < kFirstJudged) continue;
    result->ttft_error_max = std::max(result->ttft_error_max, ttft_error);
    result->tpot_error_max = std::max(result->tpot_error_max, tpot_error);
  }
  return absl::OkStatus();
}

// Measures how much longer a step takes if the step before it ran at another level. Takes the
// median over all other levels, because the spread of a step hides a single pair's difference.
absl::Status MeasureSwitch(Levels& levels, Result* result) {
  double worst_share = 0;
  for (int32_t to = 0; to < levels.count(); ++to) {
    WITHY_ASSIGN_OR_RETURN(const double prompt_ms, levels.Prompt(to));
    std::vector<double> more;
    for (int round = 0; round < kSwitchRounds * absl::GetFlag(FLAGS_rounds); ++round) {
      for (int32_t from = 0; from < levels.count(); ++from) {
        if (from == to) continue;
        WITHY_RETURN_IF_ERROR(levels.Step({from}).status());
        WITHY_ASSIGN_OR_RETURN(const double switched, levels.Step({to}));
        WITHY_ASSIGN_OR_RETURN(const double stayed, levels.Step({to}));
        more.push_back(switched - stayed);
      }
    }
    const double ms = Summarize(more).median;
    result->switch_us_max = std::max(result->switch_us_max, 1e3 * ms);
    worst_share = std::max(worst_share, ms / prompt_ms);
  }
  result->switch_share_max = worst_share;
  std::fprintf(stderr, "switching, worst level: %.0f us, %.5f of a prompt's time\n",
               result->switch_us_max, worst_share);
  return absl::OkStatus();
}

absl::Status MeasureNested(Levels& levels, Result* result) {
  std::vector<int32_t> nested, full;
  for (const int32_t percent : kNestedPercents) {
    nested.push_back(levels.Nearest(percent));
    full.push_back(levels.count() - 1);
  }
  std::vector<double> cost, gain, step_ms;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    double nested_ms = 0, full_ms = 0, separate_ms = 0;
    for (int32_t step = 0; step < kSteps; ++step) {
      WITHY_ASSIGN_OR_RETURN(const double together, levels.Step(nested));
      WITHY_ASSIGN_OR_RETURN(const double all_full, levels.Step(full));
      nested_ms += together;
      full_ms += all_full;
      for (const int32_t level : nested) {
        WITHY_ASSIGN_OR_RETURN(const double alone, levels.Step({level}));
        separate_ms += alone;
      }
    }
    cost.push_back(nested_ms / full_ms);
    gain.push_back(separate_ms / nested_ms);
    step_ms.push_back(nested_ms / kSteps);
  }
  result->nested_cost_vs_full = Summarize(cost).median;
  result->nested_gain_vs_separate = Summarize(gain).median;
  std::fprintf(stderr,
               "rows at 20/40/70/100 %% in one pass: %.2f ms, %.3f of four full rows, %.2f times "
               "as fast as four passes\n",
               Summarize(step_ms).median, result->nested_cost_vs_full,
               result->nested_gain_vs_separate);
  return absl::OkStatus();
}

absl::StatusOr<Result> Measure(const std::string& plain, const std::string& elastic) {
  Result result;
  WITHY_ASSIGN_OR_RETURN(const double plain_bytes, MemoryOf(plain));
  WITHY_ASSIGN_OR_RETURN(const double elastic_bytes, MemoryOf(elastic));
  result.memory_ratio = elastic_bytes / plain_bytes;
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Model> model, Open(elastic));
  Levels levels(*model);
  if (levels.count() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(elastic,
                     " has no levels: make it with `withyctl models synth --levels "
                     "20,30,40,50,60,70,80,90`"));
  }
  result.type = model->info().quantisation;
  std::fprintf(stderr, "%s, %s: %.1f MB resident with all levels, %.4f of the plain model\n",
               elastic.c_str(), result.type.c_str(), elastic_bytes / 1e6, result.memory_ratio);
  WITHY_RETURN_IF_ERROR(MeasureSpeed(levels, &result));
  WITHY_RETURN_IF_ERROR(MeasureSwitch(levels, &result));
  WITHY_RETURN_IF_ERROR(MeasureNested(levels, &result));
  return result;
}

absl::Status Main() {
  const std::vector<std::string> plain = absl::GetFlag(FLAGS_plain);
  const std::vector<std::string> elastic = absl::GetFlag(FLAGS_elastic);
  Result worst;
  worst.nested_gain_vs_separate = HUGE_VAL;
  std::string memory;
  for (size_t i = 0; i < plain.size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(const Result result, Measure(plain[i], elastic[i]));
    absl::StrAppend(&memory, i == 0 ? "" : ", ", "\"", result.type, "\": ", result.memory_ratio);
    worst.switch_us_max = std::max(worst.switch_us_max, result.switch_us_max);
    worst.switch_share_max = std::max(worst.switch_share_max, result.switch_share_max);
    worst.ttft_error_max = std::max(worst.ttft_error_max, result.ttft_error_max);
    worst.tpot_error_max = std::max(worst.tpot_error_max, result.tpot_error_max);
    worst.nested_cost_vs_full = std::max(worst.nested_cost_vs_full, result.nested_cost_vs_full);
    worst.nested_gain_vs_separate =
        std::min(worst.nested_gain_vs_separate, result.nested_gain_vs_separate);
  }
  std::printf(
      "{\"switch_us_max\": %.1f, \"switch_share_of_ttft_max\": %.5f, \"memory_ratio_all_levels\": "
      "{%s}, \"ttft_error_max\": %.4f, \"tpot_error_max\": %.4f, \"nested_cost_vs_full\": %.4f, "
      "\"nested_gain_vs_separate\": %.3f}\n",
      worst.switch_us_max, worst.switch_share_max, memory.c_str(), worst.ttft_error_max,
      worst.tpot_error_max, worst.nested_cost_vs_full, worst.nested_gain_vs_separate);
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "What elastic levels cost and bring; ./withy bench elastic makes the files.\n"
      "usage: withy-bench-elastic --plain A.gguf,B.gguf --elastic A-elastic.gguf,B-elastic.gguf",
      argc, argv, withy::bench::Main, [] {
        const size_t files = absl::GetFlag(FLAGS_plain).size();
        return files > 0 && files == absl::GetFlag(FLAGS_elastic).size() &&
               absl::GetFlag(FLAGS_rounds) >= 1;
      });
}
