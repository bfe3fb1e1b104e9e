// withy-elasticize: makes a plain GGUF elastic.
//   withy-elasticize --model=plain-f32.gguf --out=elastic.gguf --hours=3
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
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "engine/weights/levels.h"
#include "offline/elastic/job.h"
#include "offline/elastic/text/inputs.h"
#include "offline/train/runtime.h"

ABSL_FLAG(std::string, model, "",
          "plain GGUF; F32, F16 or BF16 for the best result, so that weights are quantised once");
ABSL_FLAG(std::string, out, "", "elastic GGUF to write");
ABSL_FLAG(
    std::string, type, "auto",
    "type of its matrices: q8_0, q4_0, q4_1, f16, bf16, f32, or auto: each as in the model, or the "
    "nearest of these for K-quants and 5 bits, q8_0 for floats");
ABSL_FLAG(std::string, text, "own",
          "text for measuring importance and training LoRA: own (as the model itself writes), a "
          "plain text file, or corpus (the project's)");
ABSL_FLAG(
    std::string, learn, "teacher",
    "what levels learn of a text: teacher (the whole model's probabilities) or text (its next "
    "token)");
ABSL_FLAG(absl::optional<double>, hours, absl::nullopt,
          "time that the run may take: as many --recovery_batches of text as an eighth of it "
          "writes, and as many --recovery_steps as the rest allows; 0: as those say; default: 3, "
          "quick: 0.5, or 0 if --recovery_steps is given");
ABSL_FLAG(std::string, overlay, "",
          "overlay to write, a small file that makes the same plain GGUF elastic elsewhere "
          "(withyctl models overlay); default: in --work");
ABSL_FLAG(std::string, work, "", "directory for saved progress; default: OUT.work");
ABSL_FLAG(bool, estimate, false, "only estimate the run time");
ABSL_FLAG(bool, quick, false,
          "half an hour, for a first look: the defaults marked `quick`. Levels lose more than with "
          "the defaults, and there are none below 50 %");
ABSL_FLAG(absl::optional<std::string>, levels, absl::nullopt,
          "levels in per cent, ascending; default: 30,50,70,90; quick: 50,70,90");
ABSL_FLAG(absl::optional<int64_t>, calibration_batches, absl::nullopt,
          "batches for measuring importance; default: 16; quick: 8");
ABSL_FLAG(int64_t, recovery_batches, 6400, "batches for training LoRA, at most");
ABSL_FLAG(absl::optional<int64_t>, recovery_steps, absl::nullopt,
          "steps of LoRA training at 50 %; other levels scale with the ratio of cut to kept: four "
          "times as much at 20 %, a ninth at 90 %; 0: no LoRA; default: by --hours");
ABSL_FLAG(int64_t, recoveries, 1, "recoveries per level, each on other text; the best is kept");
ABSL_FLAG(int64_t, trial_steps, 60,
          "as --recovery_steps, for each candidate of a level with --cuts measured or alike");
ABSL_FLAG(int64_t, batch_tokens, 1024, "tokens per batch");
ABSL_FLAG(double, rate, 1e-2,
          "LoRA's learning rate for levels up to 50 %; above, it falls with the share that is cut");
ABSL_FLAG(int64_t, rank, 8, "LoRA's rank");
ABSL_FLAG(std::string, order, "importance",
          "order of units: importance (per level) or, for comparison, computed once: "
          "gradient (of the loss), magnitude or random");
ABSL_FLAG(bool, anchors, true, "whether the most important layers are not cut first");
ABSL_FLAG(std::string, cuts, "estimated",
          "what a level cuts: estimated (where least is lost, by the loss of leaving out each "
          "layer's attention or MLP and by the units' importance), measured (the same, every cut "
          "measured, and splits that all layers share are tried: many times the time), or alike "
          "(such splits alone)");
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

absl::StatusOr<bool> IsTaught(const std::string& name) {
  if (name == "teacher") return true;
  if (name == "text") return false;
  return absl::InvalidArgumentError(absl::StrCat("--learn=", name, ": there are teacher and text"));
}

absl::StatusOr<Cuts> FindCuts(const std::string& name) {
  if (name == "estimated") return Cuts::kEstimated;
  if (name == "measured") return Cuts::kMeasured;
  if (name == "alike") return Cuts::kAlike;
  return absl::InvalidArgumentError(
      absl::StrCat("--cuts=", name, ": there are estimated, measured and alike"));
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
  if (!(options.hours >= 0 && options.hours <= 1000)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--hours is ", options.hours, "; it must be between 0 and 1000"));
  }
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
  options.overlay = absl::GetFlag(FLAGS_overlay);
  if (options.overlay.empty()) options.overlay = options.work + "/overlay.gguf";
  WITHY_ASSIGN_OR_RETURN(options.type, FindMatrixType(absl::GetFlag(FLAGS_type)));
  WITHY_ASSIGN_OR_RETURN(options.taught, IsTaught(absl::GetFlag(FLAGS_learn)));
  WITHY_ASSIGN_OR_RETURN(options.cuts, FindCuts(absl::GetFlag(FLAGS_cuts)));
  WITHY_ASSIGN_OR_RETURN(options.percents,
                         ParseLevels(Given<std::string>(FLAGS_levels, "30,50,70,90", "50,70,90")));
  options.calibration_batches = Given<int64_t>(FLAGS_calibration_batches, 16, 8);
  options.recovery_batches = absl::GetFlag(FLAGS_recovery_batches);
  const absl::optional<int64_t> steps = absl::GetFlag(FLAGS_recovery_steps);
  options.recovery_steps = steps.value_or(1);
  options.hours =
      steps.has_value() ? absl::GetFlag(FLAGS_hours).value_or(0) : Given(FLAGS_hours, 3.0, 0.5);
  options.recoveries = absl::GetFlag(FLAGS_recoveries);
  options.trial_steps = absl::GetFlag(FLAGS_trial_steps);
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
      "Makes a plain GGUF elastic in --hours, which stages take how long is said before it begins\n"
      "(--estimate: only that). May be interrupted; resumes from --work.\n"
      "usage: withy-elasticize --model plain.gguf --out elastic.gguf [--hours 3] [--quick] "
      "[--estimate] [--text FILE.txt]",
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
