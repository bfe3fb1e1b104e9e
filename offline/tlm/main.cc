// withy-train-tlm: trains the TLM that decides prompt and model level for an elastic model.
//   withy-train-tlm --model=elastic.gguf --out=withy-pocket-tlm-q8_0.gguf --run=DIR
// May be interrupted: progress is saved in --run and not repeated.

#include <cstdio>
#include <string>
#include <thread>

#include "absl/flags/flag.h"
#include "base/files.h"
#include "base/program_flags.h"
#include "base/progress_line.h"
#include "base/status.h"
#include "engine/model/synth.h"
#include "offline/tlm/job.h"
#include "offline/train/runtime.h"

ABSL_FLAG(std::string, model, "", "elastic GGUF of the model to decide for");
ABSL_FLAG(std::string, out, "", "TLM to write");
ABSL_FLAG(std::string, run, "", "directory for saved progress; default: OUT.run");
ABSL_FLAG(
    std::string, prompts, "",
    "JSON lines with a user's own prompts, {\"prompt\": \"...\"} or {\"messages\": [...]}: for "
    "any elastic model, whose own answers are what levels are held against. Default: the "
    "corpus, for models that were trained on it");
ABSL_FLAG(int64_t, records, 3000, "prompts at most; the last tenth is for evaluation only");
ABSL_FLAG(int64_t, steps, 300, "training steps of the decision head");
ABSL_FLAG(int64_t, score_steps, 2000, "training steps of the score head");
ABSL_FLAG(int64_t, batch, 16, "prompts per step");
ABSL_FLAG(double, rate, 1e-3, "learning rate");
ABSL_FLAG(
    std::string, labels, "",
    "JSON lines with word labels for the score head; default: labels from the model's own loss");
ABSL_FLAG(std::string, from, "",
          "TLM to start from, or directory of Hugging Face's MobileBERT (config.json, vocab.txt, "
          "model.safetensors); its bottom stays frozen. Default: a new pocket TLM");
ABSL_FLAG(int32_t, width, 128, "width of a new TLM, a multiple of 32");
ABSL_FLAG(int32_t, shared_layers, 2, "layers of a new TLM, of 4, that feed both heads");
ABSL_FLAG(std::string, stage, "all", "score, decision or all");
ABSL_FLAG(int64_t, variants, 32, "maximum runs of a prompt with words dropped");
ABSL_FLAG(std::string, type, "q8_0", "type of the matrices: q8_0, f16, bf16 or f32");
ABSL_FLAG(std::string, cache, "", "directory of the packed model; default: the service's");
ABSL_FLAG(uint64_t, seed, 1, "random seed");
ABSL_FLAG(int, threads, 0, "threads; 0: one per core");

namespace withy::tlm {
namespace {

// The types that engine::WriteTlm supports.
absl::StatusOr<engine::GgmlType> FindType(const std::string& name) {
  if (name == "q8_0" || name == "f16" || name == "bf16" || name == "f32") {
    return engine::FindSynthType(name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--type=", name, ": there are q8_0, f16, bf16 and f32"));
}

absl::StatusOr<JobOptions> OptionsFromFlags() {
  JobOptions options;
  options.model = absl::GetFlag(FLAGS_model);
  options.out = absl::GetFlag(FLAGS_out);
  if (options.model.empty() || options.out.empty()) {
    return absl::InvalidArgumentError("needs --model=ELASTIC.gguf and --out=FILE.gguf");
  }
  options.run = absl::GetFlag(FLAGS_run);
  if (options.run.empty()) options.run = options.out + ".run";
  const std::string stage = absl::GetFlag(FLAGS_stage);
  if (stage != "score" && stage != "decision" && stage != "all") {
    return absl::InvalidArgumentError(
        absl::StrCat("--stage=", stage, ": there are score, decision and all"));
  }
  options.score = stage != "decision";
  options.decision = stage != "score";
  WITHY_ASSIGN_OR_RETURN(options.type, FindType(absl::GetFlag(FLAGS_type)));
  options.prompts = absl::GetFlag(FLAGS_prompts);
  options.labels = absl::GetFlag(FLAGS_labels);
  options.from = absl::GetFlag(FLAGS_from);
  WITHY_RETURN_IF_ERROR(
      CheckOutput(options.out, {options.model, options.prompts, options.labels, options.from}));
  options.size = {.width = absl::GetFlag(FLAGS_width),
                  .shared_layers = absl::GetFlag(FLAGS_shared_layers)};
  if (options.size.width < 32 || options.size.width > 1024 || options.size.width % 32 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--width=", options.size.width, ": limits 32 to 1024, a multiple of 32"));
  }
  if (options.size.shared_layers < 0 || options.size.shared_layers > 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shared_layers=", options.size.shared_layers, ": limits 0 to 4"));
  }
  options.records = absl::GetFlag(FLAGS_records);
  options.score_steps = absl::GetFlag(FLAGS_score_steps);
  options.decision_steps = absl::GetFlag(FLAGS_steps);
  options.batch = absl::GetFlag(FLAGS_batch);
  for (const auto& [name, value] : {std::pair<const char*, int64_t>{"records", options.records},
                                    {"score_steps", options.score_steps},
                                    {"steps", options.decision_steps},
                                    {"batch", options.batch},
                                    {"variants", absl::GetFlag(FLAGS_variants)}}) {
    if (value >= 1 && value <= 1000000) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, "=", value, ": limits 1 to 1000000"));
  }
  options.rate = absl::GetFlag(FLAGS_rate);
  options.max_variants = static_cast<int32_t>(absl::GetFlag(FLAGS_variants));
  options.seed = absl::GetFlag(FLAGS_seed);
  options.threads = absl::GetFlag(FLAGS_threads);
  if (options.threads < 1) {
    options.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  options.model_options.cache_dir = absl::GetFlag(FLAGS_cache);
  return options;
}

absl::Status Run() {
  WITHY_ASSIGN_OR_RETURN(JobOptions options, OptionsFromFlags());
  StepProgress line;
  options.progress = [&line](const std::string& what, int64_t done, int64_t all) {
    line.Show(what.substr(0, what.find(',')), what, done, all);
  };
  options.say = [&line](const std::string& text) {
    line.End();
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  };
  return RunJob(options);
}

}  // namespace
}  // namespace withy::tlm

int main(int argc, char** argv) {
  withy::ParseProgramFlags(
      "Trains the TLM of an elastic model. May be interrupted; resumes from --run.\n"
      "usage: withy-train-tlm --model elastic.gguf --out tlm.gguf --run DIR",
      argc, argv);
  withy::train::TuneRuntime();
  const absl::Status status = withy::tlm::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "\nwithy-train-tlm: %s\n", std::string(status.message()).c_str());
  return 1;
}
