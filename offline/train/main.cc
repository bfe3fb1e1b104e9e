// withy-train: trains or evaluates a pocket model.
//   withy-train --model=target --out=DIR [--steps=N] [--threads=N] [--from=FILE.gguf --from_step=N]
//   withy-train --model=target --out=DIR --evaluate=2400 [--draft=DIR]
//   withy-train --model=target --out=DIR --export=FILE.gguf [--type=f32]
#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "offline/train/checkpoint.h"
#include "offline/train/copying.h"
#include "offline/train/evaluate.h"
#include "offline/train/export.h"
#include "offline/train/import.h"
#include "offline/train/runtime.h"
#include "offline/train/trainer.h"

ABSL_FLAG(std::string, model, "target", "which pocket model: target or draft");
ABSL_FLAG(std::string, out, "", "directory of the run: checkpoint.pt, curve.csv");
ABSL_FLAG(int64_t, steps, 4000, "optimizer steps in total");
ABSL_FLAG(double, decay_share, 0.4,
          "final share of the steps, in which the rates fall and records have garbled wordings and "
          "dropped words");
ABSL_FLAG(int64_t, batch_tokens, 1536, "tokens per batch");
ABSL_FLAG(int64_t, batches_a_step, 4, "batches per step");
ABSL_FLAG(int64_t, echo_batches, 100,
          "number of initial batches of which every other only teaches copying");
ABSL_FLAG(int64_t, exercise_ramp_batches, 12000,
          "batches over which the exercises (every other batch) get harder; 0: no exercises");
ABSL_FLAG(int64_t, easy_windows, 12, "initial windows of 480 records with easy questions only");
ABSL_FLAG(int, shortened_percent, withy::train::kShortenedPercent,
          "per cent of records with dropped words, besides the exercises");
ABSL_FLAG(double, matrix_rate, 0.02, "Muon's rate");
ABSL_FLAG(double, vector_rate, 0.005, "AdamW's rate");
ABSL_FLAG(double, prompt_weight, 0.02, "weight of prompt tokens in the loss");
ABSL_FLAG(int64_t, validate_steps, 200, "steps between two evaluations");
ABSL_FLAG(int64_t, checkpoint_steps, 100,
          "maximum steps between two checkpoints; at most a minute");
ABSL_FLAG(int, threads, 2, "threads");
ABSL_FLAG(std::string, products, "auto",
          "type that matrices are rounded to before multiplication: f32, bf16, or auto (bf16 if "
          "the processor is faster with it)");
ABSL_FLAG(uint64_t, seed, 1, "seed of the initial weights");
ABSL_FLAG(std::string, from, "",
          "GGUF file: a new run starts with its weights, as if it had reached --from_step; "
          "--evaluate evaluates them, --export writes them");
ABSL_FLAG(int64_t, from_step, 0, "with --from: number of steps its weights were trained for");
ABSL_FLAG(uint64_t, evaluate, 0,
          "do not train: print the accuracy over this many held-out records");
ABSL_FLAG(bool, on_training, false,
          "with --evaluate: use records of the training corpus, to distinguish what was not learnt "
          "from what does not generalise");
ABSL_FLAG(std::string, export, "",
          "do not train: write the checkpoint (or the file of --from) as this GGUF file");
ABSL_FLAG(std::string, type, "q8_0", "with --export: q8_0 or f32");
ABSL_FLAG(std::string, draft, "",
          "with --evaluate: run directory of a draft, to measure its agreement");

namespace withy::train {
namespace {

torch::Device BestDevice() {
  return torch::cuda::is_available() ? torch::Device(torch::kCUDA) : torch::Device(torch::kCPU);
}

void Print(const Accuracy& accuracy) {
  std::printf("accuracy %s\n", accuracy.Summary().c_str());
  for (int t = 0; t < corpus::kTaskCount; ++t) {
    std::printf("%-8s", std::string(corpus::kTaskNames[static_cast<size_t>(t)]).c_str());
    for (const Share& share : accuracy.by_difficulty[static_cast<size_t>(t)])
      std::printf(" %.3f", share.value());
    std::printf("\n");
  }
  std::printf("without examples %.3f, with %.3f\n", accuracy.by_shots[0].value(),
              accuracy.by_shots[1].value());
  if (accuracy.draft_agreement.count > 0)
    std::printf("draft agreement %.4f\n", accuracy.draft_agreement.value());
}

std::string Checkpoint(const std::string& directory) { return directory + "/checkpoint.pt"; }

// Loads the run's weights, unless --from has already set them.
absl::Status LoadWeights(Model& model) {
  if (!absl::GetFlag(FLAGS_from).empty()) return absl::OkStatus();
  return LoadCheckpoint(Checkpoint(absl::GetFlag(FLAGS_out)), model, nullptr, nullptr);
}

absl::Status Judge(Model& model, const ChatEncoder& encoder) {
  WITHY_RETURN_IF_ERROR(LoadWeights(model));
  std::unique_ptr<Model> draft;
  if (const std::string directory = absl::GetFlag(FLAGS_draft); !directory.empty()) {
    draft = std::make_unique<Model>(DraftShape(model.shape().vocab_size), 1, model.device());
    WITHY_RETURN_IF_ERROR(LoadCheckpoint(Checkpoint(directory), *draft, nullptr, nullptr));
  }
  const corpus::Spec spec =
      absl::GetFlag(FLAGS_on_training) ? corpus::TrainSpec() : corpus::HeldOutSpec();
  Print(Evaluate(model, spec, absl::GetFlag(FLAGS_evaluate), encoder,
                 Workers(absl::GetFlag(FLAGS_threads)), draft.get()));
  return absl::OkStatus();
}

absl::Status Export(Model& model, const vocab::BpeVocabulary& vocabulary) {
  const std::string type = absl::GetFlag(FLAGS_type);
  if (type != "q8_0" && type != "f32") {
    return absl::InvalidArgumentError(absl::StrCat("--type=", type, ": types are q8_0 and f32"));
  }
  WITHY_RETURN_IF_ERROR(LoadWeights(model));
  const std::string name =
      absl::GetFlag(FLAGS_model) == "target" ? "withy pocket" : "withy pocket draft";
  return ExportGguf(model, vocabulary, name,
                    type == "f32" ? engine::GgmlType::kF32 : engine::GgmlType::kQ8_0,
                    absl::GetFlag(FLAGS_export));
}

absl::StatusOr<Products> ProductsFromFlag(torch::Device device) {
  const std::string name = absl::GetFlag(FLAGS_products);
  if (name == "auto") return FastestProducts(device);
  if (name == "f32") return Products::kF32;
  if (name == "bf16") return Products::kBf16;
  return absl::InvalidArgumentError(
      absl::StrCat("--products=", name, ": there are f32, bf16 and auto"));
}

TrainOptions OptionsFromFlags() {
  TrainOptions options;
  options.directory = absl::GetFlag(FLAGS_out);
  options.first_step = absl::GetFlag(FLAGS_from_step);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.decay_share = absl::GetFlag(FLAGS_decay_share);
  options.batches_a_step = absl::GetFlag(FLAGS_batches_a_step);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.prompt_weight = absl::GetFlag(FLAGS_prompt_weight);
  options.validate_steps = absl::GetFlag(FLAGS_validate_steps);
  options.checkpoint_steps = absl::GetFlag(FLAGS_checkpoint_steps);
  options.batches.spec = corpus::TrainSpec();
  options.batches.echo_batches = absl::GetFlag(FLAGS_echo_batches);
  options.batches.exercise_ramp_batches = absl::GetFlag(FLAGS_exercise_ramp_batches);
  options.batches.easy_windows = absl::GetFlag(FLAGS_easy_windows);
  options.batches.shortened_percent = absl::GetFlag(FLAGS_shortened_percent);
  // Noise begins with the decay of the rates: the model first learns from undisturbed sentences.
  options.batches.noise_from_batch =
      static_cast<int64_t>((1 - options.decay_share) * static_cast<double>(options.steps)) *
      options.batches_a_step;
  options.batches.passages_from_batch = options.batches.noise_from_batch / 2;
  options.batches.tokens = absl::GetFlag(FLAGS_batch_tokens);
  options.optimizer.matrix_rate = absl::GetFlag(FLAGS_matrix_rate);
  options.optimizer.vector_rate = absl::GetFlag(FLAGS_vector_rate);
  return options;
}

absl::Status Run() {
  const std::string name = absl::GetFlag(FLAGS_model);
  const std::string directory = absl::GetFlag(FLAGS_out);
  if ((name != "target" && name != "draft") || directory.empty()) {
    return absl::InvalidArgumentError("needs --out=DIR and --model=target or --model=draft");
  }
  ComputeOnOneThread();  // threads process whole batches, see workers.h
  TuneRuntime();
  const vocab::BpeVocabulary vocabulary = LearnPocketVocabulary();
  WITHY_ASSIGN_OR_RETURN(const ChatEncoder encoder, MakePocketEncoder(vocabulary, directory));
  const Shape shape =
      name == "target" ? TargetShape(vocabulary.size()) : DraftShape(vocabulary.size());
  Model model(shape, absl::GetFlag(FLAGS_seed), BestDevice());
  StartWithCopying(model, absl::GetFlag(FLAGS_seed));
  WITHY_ASSIGN_OR_RETURN(const Products products, ProductsFromFlag(model.device()));
  model.set_products(products);
  std::printf("%s: %lld parameters, vocabulary of %d\n", name.c_str(),
              static_cast<long long>(shape.parameters()), vocabulary.size());
  std::fflush(stdout);
  if (const std::string from = absl::GetFlag(FLAGS_from); !from.empty()) {
    WITHY_RETURN_IF_ERROR(ImportGguf(from, model));
  }
  if (!absl::GetFlag(FLAGS_export).empty()) return Export(model, vocabulary);
  if (absl::GetFlag(FLAGS_evaluate) > 0) return Judge(model, encoder);
  return Train(OptionsFromFlags(), model, encoder);
}

}  // namespace
}  // namespace withy::train

int main(int argc, char** argv) {
  withy::ParseProgramFlags(
      "Trains a pocket model, evaluates one, or writes it as GGUF; ./withy train pocket does all "
      "of "
      "it.\n"
      "usage: withy-train --model target --out DIR [--steps N] [--from FILE.gguf --from_step N]\n"
      "       withy-train --model target --out DIR --evaluate 2400 [--draft DIR]\n"
      "       withy-train --model target --out DIR --export FILE.gguf [--type f32]",
      argc, argv);
  const absl::Status status = withy::train::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "withy-train: %s\n", std::string(status.message()).c_str());
  return 1;
}
