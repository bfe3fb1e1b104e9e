// withy-elasticize: makes a plain GGUF elastic.
//   withy-elasticize --model=plain-f32.gguf --out=elastic.gguf --text=calibration.txt
// Estimates its time before it begins. May be interrupted: progress is saved in --work and not
// repeated.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "engine/weights/levels.h"
#include "offline/elastic/inputs.h"
#include "offline/elastic/job.h"
#include "offline/elastic/schedule.h"
#include "offline/train/runtime.h"

ABSL_FLAG(std::string, model, "",
          "plain GGUF; F32, F16 or BF16 for the best result, so that weights are quantised once");
ABSL_FLAG(std::string, out, "", "elastic GGUF to write");
ABSL_FLAG(
    std::string, type, "auto",
    "type of its matrices: q8_0, q4_0, q4_1, f16, bf16, f32, or auto: each as in the model, or the "
    "nearest of these for K-quants and 5 bits, q8_0 for floats");
ABSL_FLAG(std::string, text, "",
          "plain text for measuring importance and training LoRA; default: the project's corpus");
ABSL_FLAG(std::string, work, "", "directory for saved progress; default: OUT.work");
ABSL_FLAG(bool, estimate, false, "only estimate the run time");
ABSL_FLAG(
    bool, quick, false,
    "at most a tenth of the time, for a first look: uses the defaults marked `quick`. "
    "Levels lose more than with the defaults, at 50 % at least twice as much, and there are none "
    "below (docs/method-elastic.md has figures)");
ABSL_FLAG(absl::optional<std::string>, levels, absl::nullopt,
          "levels in per cent, ascending; default: 20,30,40,50,60,70,80,90; quick: 50,70,90");
ABSL_FLAG(absl::optional<int64_t>, calibration_batches, absl::nullopt,
          "batches for measuring importance; default: 32; quick: 8");
ABSL_FLAG(absl::optional<int64_t>, recovery_batches, absl::nullopt,
          "batches for training LoRA; default: 6400; quick: 400");
ABSL_FLAG(absl::optional<int64_t>, recovery_steps, absl::nullopt,
          "steps of LoRA training at 50 %; other levels scale with the ratio of cut to kept: four "
          "times as much at 20 %, a ninth at 90 %; 0: no LoRA; default: 400; quick: 100");
ABSL_FLAG(absl::optional<int64_t>, recoveries, absl::nullopt,
          "recoveries per level, each on other text; the best is kept; default: "
          "2; quick: 1");
ABSL_FLAG(absl::optional<int64_t>, trial_steps, absl::nullopt,
          "as --recovery_steps, for each candidate of a level; default: 60; "
          "quick: 10");
ABSL_FLAG(int64_t, batch_tokens, 1024, "tokens per batch");
ABSL_FLAG(double, rate, 1e-2,
          "LoRA's learning rate for levels up to 50 %; above, it falls with the share that is cut");
ABSL_FLAG(int64_t, rank, 8, "LoRA's rank");
ABSL_FLAG(std::string, order, "importance",
          "order of units: importance (per level) or, for comparison, computed once: "
          "gradient (of the loss), magnitude or random");
ABSL_FLAG(bool, anchors, true, "whether the most important layers are not cut first");
ABSL_FLAG(absl::optional<bool>, measured, absl::nullopt,
          "whether to also try measured cuts of single layers for a level, beside splits "
          "that all layers share; default: true; quick: false");
ABSL_FLAG(uint64_t, seed, 1, "random seed");
ABSL_FLAG(int, threads, 0, "threads; 0: one per core; the result does not depend on it");
ABSL_FLAG(double, checkpoint_s, 60,
          "seconds between saves of an unfinished stage, the most that a kill loses; "
          "0: after every step");

namespace withy::elastic {
namespace {

absl::StatusOr<std::vector<int32_t>> ParseLevels(const std::string& text) {
  std::vector<int32_t> levels;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int32_t level = 0;
    if (!absl::SimpleAtoi(part, &level)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--levels=", text, ": \"", part, "\" is not a number"));
    }
    levels.push_back(level);
  }
  return levels;
}

// The value of a flag, else its default.
template <typename T>
T Given(const absl::Flag<absl::optional<T>>& flag, T usual, T quick) {
  const absl::optional<T> value = absl::GetFlag(flag);
  if (value.has_value()) return *value;
  return absl::GetFlag(FLAGS_quick) ? quick : usual;
}

// Detects mistyped options that would otherwise show after hours or in a crash.
absl::Status CheckOptions(const JobOptions& options) {
  constexpr int64_t kMany = 1'000'000;
  WITHY_RETURN_IF_ERROR(CheckFlag("calibration_batches", options.calibration_batches, 1, kMany));
  WITHY_RETURN_IF_ERROR(CheckFlag("recovery_batches", options.recovery_batches, 1, kMany));
  WITHY_RETURN_IF_ERROR(CheckFlag("recovery_steps", options.recovery_steps, 0, kMany));
  WITHY_RETURN_IF_ERROR(CheckFlag("recoveries", options.recoveries, 1, 100));
  WITHY_RETURN_IF_ERROR(CheckFlag("trial_steps", options.trial_steps, 0, kMany));
  WITHY_RETURN_IF_ERROR(CheckFlag("batch_tokens", options.batch_tokens, 64, kMany));
  WITHY_RETURN_IF_ERROR(CheckFlag("rank", options.rank, 1, engine::kMaxLoraRank));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", absl::GetFlag(FLAGS_threads), 0, 1024));
  if (!(options.rate > 0 && options.rate <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rate is ", options.rate, "; it must be above 0 and at most 1"));
  }
  if (!(options.checkpoint_s >= 0 && options.checkpoint_s <= 86400)) {
    return absl::InvalidArgumentError(absl::StrCat("--checkpoint_s is ", options.checkpoint_s,
                                                   "; it must be between 0 and 86400"));
  }
  for (const char* order : {"importance", "gradient", "magnitude", "random"}) {
    if (options.order == order) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--order=", options.order, ": there are importance, gradient, magnitude and random"));
}

absl::StatusOr<JobOptions> OptionsFromFlags() {
  JobOptions options;
  options.model = absl::GetFlag(FLAGS_model);
  options.out = absl::GetFlag(FLAGS_out);
  if (options.model.empty() || options.out.empty()) {
    return absl::InvalidArgumentError("needs --model=FILE.gguf and --out=FILE.gguf");
  }
  options.text = absl::GetFlag(FLAGS_text);
  options.work = absl::GetFlag(FLAGS_work);
  if (options.work.empty()) options.work = options.out + ".work";
  WITHY_ASSIGN_OR_RETURN(options.type, FindMatrixType(absl::GetFlag(FLAGS_type)));
  const ScheduleOptions quick = QuickSchedule();
  WITHY_ASSIGN_OR_RETURN(options.percents,
                         ParseLevels(Given<std::string>(FLAGS_levels, "20,30,40,50,60,70,80,90",
                                                        absl::StrJoin(quick.percents, ","))));
  options.calibration_batches =
      Given<int64_t>(FLAGS_calibration_batches, 32, quick.calibration_batches);
  options.recovery_batches = Given<int64_t>(FLAGS_recovery_batches, 6400, 400);
  options.recovery_steps = Given<int64_t>(FLAGS_recovery_steps, 400, quick.recovery_steps);
  options.recoveries = Given<int64_t>(FLAGS_recoveries, 2, quick.recoveries);
  options.trial_steps = Given<int64_t>(FLAGS_trial_steps, 60, quick.trial_steps);
  options.measured = Given<bool>(FLAGS_measured, true, quick.measured);
  options.batch_tokens = absl::GetFlag(FLAGS_batch_tokens);
  options.rate = absl::GetFlag(FLAGS_rate);
  options.rank = absl::GetFlag(FLAGS_rank);
  options.order = absl::GetFlag(FLAGS_order);
  options.anchors = absl::GetFlag(FLAGS_anchors);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.checkpoint_s = absl::GetFlag(FLAGS_checkpoint_s);
  options.estimate_only = absl::GetFlag(FLAGS_estimate);
  WITHY_RETURN_IF_ERROR(CheckOptions(options));
  options.threads = absl::GetFlag(FLAGS_threads);
  if (options.threads == 0) {
    options.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  options.say = [](const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  };
  return options;
}

absl::Status Run() {
  WITHY_ASSIGN_OR_RETURN(const JobOptions options, OptionsFromFlags());
  train::TuneRuntime();
  return RunJob(options);
}

}  // namespace
}  // namespace withy::elastic

int main(int argc, char** argv) {
  withy::ParseProgramFlags(
      "Makes a plain GGUF elastic. Estimates the time before it begins (--estimate: only that): "
      "hours\nwith the defaults, at most a tenth with --quick. May be interrupted; resumes "
      "from --work.\n"
      "usage: withy-elasticize --model plain.gguf --out elastic.gguf [--quick] [--estimate] "
      "[--text "
      "FILE.txt]",
      argc, argv);
  absl::Status status;
  try {
    status = withy::elastic::Run();
  } catch (const std::exception& error) {
    status = withy::elastic::FromLibTorch(error);
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "withy-elasticize: %s\n", std::string(status.message()).c_str());
  return 1;
}
