// withy-elasticize: makes a plain GGUF elastic.
//   withy-elasticize --model=plain-f32.gguf --out=elastic.gguf --type=q8_0 --text=calibration.txt
// May be interrupted: what is done lies in --work and is not done again.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "elasticizer/elastic/batches.h"
#include "elasticizer/elastic/export.h"
#include "elasticizer/elastic/importance.h"
#include "elasticizer/elastic/inputs.h"
#include "elasticizer/elastic/network.h"
#include "elasticizer/elastic/plan.h"
#include "elasticizer/elastic/recovery.h"
#include "elasticizer/elastic/reorder.h"
#include "elasticizer/elastic/work.h"
#include "elasticizer/train/runtime.h"
#include "elasticizer/train/workers.h"
#include "engine/gguf/reader.h"
#include "engine/model/synth.h"
#include "engine/weights/levels.h"

ABSL_FLAG(std::string, model, "",
          "plain GGUF; F32, F16 or BF16, so that weights are quantised once");
ABSL_FLAG(std::string, out, "", "elastic GGUF to write");
ABSL_FLAG(std::string, type, "q8_0", "type of its matrices: q8_0, q4_0, f16, bf16 or f32");
ABSL_FLAG(std::string, text, "",
          "plain text to judge units and train LoRA on; default: the project's corpus");
ABSL_FLAG(std::string, work, "", "directory of what is done; default: OUT.work");
ABSL_FLAG(std::string, levels, "20,30,40,50,60,70,80,90", "levels in per cent, ascending");
ABSL_FLAG(int64_t, calibration_batches, 32, "batches that units and layers are judged on");
ABSL_FLAG(int64_t, recovery_batches, 6400, "batches that LoRA is trained on");
ABSL_FLAG(
    int64_t, recovery_steps, 400,
    "steps of LoRA training at 50 %; a level takes time by what it cuts for what it keeps: four "
    "times as much at 20 %, a ninth at 90 %; 0: no LoRA");
ABSL_FLAG(int64_t, recoveries, 2,
          "times that a level is recovered, each on other text; what loses least is kept");
ABSL_FLAG(int64_t, trial_steps, 60, "the same, for each of the extents that are tried for a level");
ABSL_FLAG(int64_t, batch_tokens, 1024, "tokens a batch");
ABSL_FLAG(double, rate, 1e-2,
          "LoRA's learning rate of levels up to 50 %, from there on falling with what is cut");
ABSL_FLAG(int64_t, rank, 8, "LoRA's rank");
ABSL_FLAG(std::string, order, "importance",
          "what units are ordered by: importance, level by level, or, to compare with, once by "
          "gradient (of the loss), magnitude or random");
ABSL_FLAG(bool, anchors, true, "whether the most important layers are spared at first");
ABSL_FLAG(bool, measured, true,
          "whether the cuts that lose least are tried for a level, layer by layer, beside splits "
          "that all layers share");
ABSL_FLAG(uint64_t, seed, 1, "seed of everything random");
ABSL_FLAG(int, threads, 0, "threads; 0: one a core");

namespace withy::elastic {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

absl::StatusOr<std::vector<int32_t>> ParseLevels(const std::string& text) {
  std::vector<int32_t> levels;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int32_t level = 0;
    if (!absl::SimpleAtoi(part, &level)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--levels=", text, ": \"", part, "\" is no number"));
    }
    levels.push_back(level);
  }
  return levels;
}

// A line that is written over itself.
void Show(const std::string& what, int64_t done, int64_t all, Clock::time_point start) {
  const double share = all == 0 ? 1 : static_cast<double>(done) / static_cast<double>(all);
  const double left = done == 0 ? 0 : SecondsSince(start) * (1 / share - 1);
  std::fprintf(stderr, "\r[%-20.*s] %-40s %3.0f %%, %.0f s left   %s", static_cast<int>(20 * share),
               "####################", what.c_str(), 100 * share, left, done == all ? "\n" : "");
}

// What a typing error would otherwise be found by after hours, or by a crash.
absl::Status CheckFlags() {
  constexpr int64_t kMany = 1'000'000;
  WITHY_RETURN_IF_ERROR(
      CheckFlag("calibration_batches", absl::GetFlag(FLAGS_calibration_batches), 1, kMany));
  WITHY_RETURN_IF_ERROR(
      CheckFlag("recovery_batches", absl::GetFlag(FLAGS_recovery_batches), 1, kMany));
  WITHY_RETURN_IF_ERROR(CheckFlag("recovery_steps", absl::GetFlag(FLAGS_recovery_steps), 0, kMany));
  WITHY_RETURN_IF_ERROR(CheckFlag("recoveries", absl::GetFlag(FLAGS_recoveries), 1, 100));
  WITHY_RETURN_IF_ERROR(CheckFlag("trial_steps", absl::GetFlag(FLAGS_trial_steps), 0, kMany));
  WITHY_RETURN_IF_ERROR(CheckFlag("batch_tokens", absl::GetFlag(FLAGS_batch_tokens), 64, kMany));
  WITHY_RETURN_IF_ERROR(CheckFlag("rank", absl::GetFlag(FLAGS_rank), 1, engine::kMaxLoraRank));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", absl::GetFlag(FLAGS_threads), 0, 1024));
  if (const double rate = absl::GetFlag(FLAGS_rate); !(rate > 0 && rate <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rate is ", rate, "; it must be above 0 and at most 1"));
  }
  const std::string order = absl::GetFlag(FLAGS_order);
  if (order == "importance" || order == "gradient" || order == "magnitude" || order == "random") {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--order=", order, ": there are importance, gradient, magnitude and random"));
}

class Job {
 public:
  explicit Job(int threads) : threads_(threads) {}

  absl::Status Run() {
    const Clock::time_point start = Clock::now();
    const std::string model = absl::GetFlag(FLAGS_model);
    out_ = absl::GetFlag(FLAGS_out);
    if (model.empty() || out_.empty()) {
      return absl::InvalidArgumentError("needs --model=FILE.gguf and --out=FILE.gguf");
    }
    WITHY_ASSIGN_OR_RETURN(percents_, ParseLevels(absl::GetFlag(FLAGS_levels)));
    WITHY_ASSIGN_OR_RETURN(type_, engine::FindSynthType(absl::GetFlag(FLAGS_type)));
    WITHY_RETURN_IF_ERROR(CheckOutput(out_, {model, absl::GetFlag(FLAGS_text)}));
    WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(model));
    WarnIfQuantised("withy-elasticize", file);
    WITHY_ASSIGN_OR_RETURN(
        Network network,
        Network::FromGguf(file, torch::cuda::is_available() ? torch::kCUDA : torch::kCPU));
    WITHY_RETURN_IF_ERROR(Annotate(engine::CheckPercents(network.shape(), percents_),
                                   absl::StrCat("--levels=", absl::GetFlag(FLAGS_levels))));
    WITHY_RETURN_IF_ERROR(ReadText(file));
    WITHY_ASSIGN_OR_RETURN(const std::string fingerprint, Fingerprint());
    WITHY_ASSIGN_OR_RETURN(work_, Work::Open(WorkDirectory(), fingerprint));
    WITHY_RETURN_IF_ERROR(Judge(&network));
    WITHY_RETURN_IF_ERROR(MakeLevels(&network));
    WITHY_RETURN_IF_ERROR(ExportElastic(file, network, levels_,
                                        static_cast<int32_t>(absl::GetFlag(FLAGS_rank)), findings_,
                                        type_, out_));
    std::printf("%s: %zu levels in %.2f hours\n", out_.c_str(), levels_.size(),
                SecondsSince(start) / 3600);
    return absl::OkStatus();
  }

 private:
  std::string WorkDirectory() const {
    const std::string work = absl::GetFlag(FLAGS_work);
    return work.empty() ? out_ + ".work" : work;
  }

  // What the kept results depend on; of files what is in them, wherever they lie.
  static absl::StatusOr<std::string> Fingerprint() {
    WITHY_ASSIGN_OR_RETURN(const std::string model, FileDigest(absl::GetFlag(FLAGS_model)));
    std::string text = "corpus";
    if (const std::string path = absl::GetFlag(FLAGS_text); !path.empty()) {
      WITHY_ASSIGN_OR_RETURN(text, FileDigest(path));
    }
    return absl::StrCat(
        "4 ", model, " ", text, " ", absl::GetFlag(FLAGS_levels), " ",
        absl::GetFlag(FLAGS_calibration_batches), " ", absl::GetFlag(FLAGS_recovery_batches), " ",
        absl::GetFlag(FLAGS_recovery_steps), " ", absl::GetFlag(FLAGS_recoveries), " ",
        absl::GetFlag(FLAGS_trial_steps), " ", absl::GetFlag(FLAGS_batch_tokens), " ",
        absl::GetFlag(FLAGS_rate), " ", absl::GetFlag(FLAGS_rank), " ", absl::GetFlag(FLAGS_seed),
        " ", absl::GetFlag(FLAGS_order), " ", absl::GetFlag(FLAGS_anchors), " ",
        absl::GetFlag(FLAGS_measured));
  }

  static absl::StatusOr<std::vector<Batch>> Batches(const engine::GgufFile& file,
                                                    const std::string& flag, int64_t count,
                                                    uint64_t seed) {
    BatchOptions options;
    options.batch_tokens = absl::GetFlag(FLAGS_batch_tokens);
    options.count = count;
    options.seed = seed;
    return ReadBatches("withy-elasticize", file, absl::GetFlag(FLAGS_text), flag, options);
  }

  // Two texts: levels are judged on one and trained on the other, unless a file has only its own.
  absl::Status ReadText(const engine::GgufFile& file) {
    const uint64_t seed = absl::GetFlag(FLAGS_seed);
    WITHY_ASSIGN_OR_RETURN(calibration_, Batches(file, "calibration_batches",
                                                 absl::GetFlag(FLAGS_calibration_batches), seed));
    WITHY_ASSIGN_OR_RETURN(
        recovery_text_,
        Batches(file, "recovery_batches", absl::GetFlag(FLAGS_recovery_batches), seed + 1000));
    return absl::OkStatus();
  }

  absl::Status Judge(Network* network) {
    const uint64_t seed = absl::GetFlag(FLAGS_seed);
    const std::string order = absl::GetFlag(FLAGS_order);
    if (order == "magnitude") {
      findings_.units = MeasureMagnitude(*network);
    } else if (order == "random") {
      findings_.units = DrawImportance(*network, seed);
    } else if (order == "gradient") {
      findings_.units = MeasureGradients(*network, calibration_);
    } else {
      WITHY_ASSIGN_OR_RETURN(findings_.units, UnitsOf(*network, Whole(*network), {}));
    }
    Reorder(*network, findings_.units);
    const Clock::time_point start = Clock::now();
    std::vector<double>& layers = findings_.layers;
    if (!work_->LoadLayers(*network, &layers)) {
      Show("importance of layers", 0, 1, start);
      layers = MeasureLayers(*network, calibration_);
      Show("importance of layers", 1, 1, start);
      WITHY_RETURN_IF_ERROR(work_->SaveLayers(layers));
    }
    if (absl::GetFlag(FLAGS_anchors)) findings_.anchors = AnchorOrder(layers);
    findings_.whole_loss = MeanLoss(*network, calibration_);
    return absl::OkStatus();
  }

  static engine::LevelSpec Whole(const Network& network) {
    const engine::ModelShape& shape = network.shape();
    return {.percent = 100,
            .layers = std::vector<engine::LayerExtent>(static_cast<size_t>(shape.layers),
                                                       {shape.heads, shape.d_ff})};
  }

  // Importance of the units that a level computes.
  absl::StatusOr<std::vector<UnitImportance>> UnitsOf(const Network& network,
                                                      const engine::LevelSpec& level,
                                                      const std::vector<Lora>& lora) const {
    std::vector<UnitImportance> units;
    if (work_->LoadUnits(network, level, &units)) return units;
    const Clock::time_point start = Clock::now();
    const std::string what = absl::StrCat("level ", level.percent, " %, importance of units");
    Show(what, 0, 1, start);
    units = MeasureUnits(network, calibration_, level, lora);
    Show(what, 1, 1, start);
    WITHY_RETURN_IF_ERROR(work_->SaveUnits(level, units));
    return units;
  }

  RecoveryOptions OptionsOf(int32_t percent, int64_t steps) const {
    return {.rank = absl::GetFlag(FLAGS_rank),
            .steps = steps * 50 * (100 - percent) / (percent * percent) + (steps > 0 ? 1 : 0),
            .rate = absl::GetFlag(FLAGS_rate) * std::min(1.0, 2 - percent / 50.0),
            .seed = absl::GetFlag(FLAGS_seed)};
  }

  // From the highest level down: what a low level lacks costs no higher one anything, and each
  // begins with what the one above has learnt. From nothing, the lowest levels need several times
  // the steps, and how well they end depends on the seed. What a unit is worth changes when others
  // are gone, so those of the level above are put in order again before a level is cut from it.
  absl::Status MakeLevels(Network* network) {
    network->set_products(train::FastestProducts(network->device()));
    std::printf("loss of the whole model %.4f\n", findings_.whole_loss);
    std::fflush(stdout);
    const size_t all = percents_.size();
    levels_.resize(all);
    findings_.losses.resize(all);
    findings_.lora_losses.resize(all);
    Progress progress{.start = Clock::now()};
    for (const int32_t percent : percents_) {
      progress.all += Recoveries() * RecoveryOf(percent).steps;
    }
    for (size_t left = all; left > 0; --left) {
      const size_t i = left - 1;
      if (left < all && absl::GetFlag(FLAGS_order) == "importance") {
        const std::span<ElasticLevel> done(levels_.begin() + static_cast<ptrdiff_t>(left),
                                           levels_.end());
        WITHY_ASSIGN_OR_RETURN(const std::vector<UnitImportance> units,
                               UnitsOf(*network, done.front().spec, done.front().lora));
        Reorder(*network, units, done);
      }
      WITHY_ASSIGN_OR_RETURN(const LevelChoice choice, ChooseSplit(*network, i, progress));
      WITHY_RETURN_IF_ERROR(RecoverLevel(*network, choice, i, &progress));
      std::printf("level %d %%: %s, loss %.4f, with LoRA %.4f\n", percents_[i],
                  choice.head_share == 0
                      ? "cut where least is lost"
                      : absl::StrFormat("heads' share %.1f", choice.head_share).c_str(),
                  findings_.losses[i], findings_.lora_losses[i]);
      std::fflush(stdout);
    }
    return absl::OkStatus();
  }

  struct Progress {
    Clock::time_point start;
    int64_t done = 0;  // steps
    int64_t all = 0;
  };

  RecoveryOptions RecoveryOf(int32_t percent) const {
    return OptionsOf(percent, absl::GetFlag(FLAGS_recovery_steps));
  }
  static int64_t Recoveries() { return absl::GetFlag(FLAGS_recoveries); }
  const ElasticLevel* Above(size_t i) const {
    return i + 1 < levels_.size() ? &levels_[i + 1] : nullptr;
  }

  absl::StatusOr<LevelChoice> ChooseSplit(const Network& network, size_t i,
                                          const Progress& progress) {
    const int32_t percent = percents_[i];
    LevelChoice choice;
    if (work_->LoadChoice(network, percent, &choice)) return choice;
    Show(absl::StrCat("level ", percent, " %, heads and neurons"), progress.done, progress.all,
         progress.start);
    const ElasticLevel* above = Above(i);
    const int64_t steps =
        absl::GetFlag(FLAGS_recovery_steps) == 0 ? 0 : absl::GetFlag(FLAGS_trial_steps);
    engine::LevelSpec least;
    if (absl::GetFlag(FLAGS_measured)) least = LeastLost(network, percent, above);
    choice = ChooseLevel(
        network.shape(), percent, findings_.anchors, above == nullptr ? nullptr : &above->spec,
        least.layers.empty() ? nullptr : &least,
        [&](const engine::LevelSpec& spec) {
          View view{.extents = &spec.layers};
          if (steps == 0) return MeanLoss(network, calibration_, view);
          const std::vector<Lora> lora =
              TrainLora(network, spec, recovery_text_, OptionsOf(percent, steps), train::Workers(1),
                        above == nullptr ? nullptr : &above->lora);
          view.lora = &lora;
          return MeanLoss(network, calibration_, view);
        },
        WorkersFor(network));
    WITHY_RETURN_IF_ERROR(work_->SaveChoice(choice));
    return choice;
  }

  // The level of the cuts that lose least of the one above, as recovered.
  engine::LevelSpec LeastLost(const Network& network, int32_t percent,
                              const ElasticLevel* above) const {
    const engine::ModelShape& shape = network.shape();
    const engine::LevelSpec from = above == nullptr ? Whole(network) : above->spec;
    const std::vector<Lora> none;
    const std::vector<Lora>& learnt = above == nullptr ? none : above->lora;
    const std::vector<Batch> text(calibration_.begin(),
                                  calibration_.begin() + (calibration_.size() + 3) / 4);
    const auto loss_of = [&](const engine::LevelSpec& spec) {
      const std::vector<Lora> lora = HandDown(shape, learnt, spec);
      return MeanLoss(network, text, {.extents = &spec.layers, .lora = &lora});
    };
    std::vector<LayerCut> cuts = PossibleCuts(shape, percent, from);
    WorkersFor(network).Run(static_cast<int64_t>(cuts.size()), [&](int64_t i) {
      LayerCut& cut = cuts[static_cast<size_t>(i)];
      engine::LevelSpec spec = from;
      spec.layers[cut.layer] = cut.extent;
      cut.loss = loss_of(spec);
    });
    return CutLeast(shape, percent, from, loss_of(from), cuts);
  }

  // Side by side where LibTorch computes on the CPU: small products keep one thread busy, not two.
  train::Workers WorkersFor(const Network& network) const {
    return train::Workers(network.device().is_cpu() ? threads_ : 1);
  }

  // How well a low level ends is chance in part, so each is recovered more than once; one that has
  // lost next to nothing may lose more by training.
  std::vector<Lora> BestLora(const Network& network, const engine::LevelSpec& spec,
                             const RecoveryOptions& options, const ElasticLevel* above,
                             Progress* progress) const {
    const std::vector<Lora>* learnt = above == nullptr ? nullptr : &above->lora;
    const auto loss_of = [&](const std::vector<Lora>& lora) {
      return MeanLoss(network, calibration_, {.extents = &spec.layers, .lora = &lora});
    };
    RecoveryOptions begin = options;
    begin.steps = 0;
    std::vector<Lora> best =
        TrainLora(network, spec, recovery_text_, begin, train::Workers(1), learnt);
    double least = loss_of(best);
    for (int64_t r = 0; r < Recoveries(); ++r) {
      RecoveryOptions other = options;
      other.seed += static_cast<uint64_t>(r) * 1000;
      other.first_batch = r * static_cast<int64_t>(recovery_text_.size()) / Recoveries();
      std::vector<Lora> lora = TrainLora(
          network, spec, recovery_text_, other, WorkersFor(network), learnt, [&](int64_t, double) {
            Show(absl::StrCat("level ", spec.percent, " %, recovery"), ++progress->done,
                 progress->all, progress->start);
          });
      const double loss = loss_of(lora);
      if (loss >= least) continue;
      least = loss;
      best = std::move(lora);
    }
    return best;
  }

  // Fills what there is of the level `i` in levels_ and findings_; the one above is there.
  absl::Status RecoverLevel(const Network& network, const LevelChoice& choice, size_t i,
                            Progress* progress) {
    ElasticLevel& level = levels_[i];
    level.spec = choice.spec;
    const RecoveryOptions options = RecoveryOf(level.spec.percent);
    const int64_t done = progress->done + Recoveries() * options.steps;
    if (options.steps > 0 && !work_->LoadLora(network, level.spec, options.rank, &level.lora)) {
      level.lora = BestLora(network, level.spec, options, Above(i), progress);
      WITHY_RETURN_IF_ERROR(work_->SaveLora(level.spec, level.lora));
    }
    progress->done = done;
    const View cut{.extents = &level.spec.layers};
    const View recovered{.extents = &level.spec.layers,
                         .lora = level.lora.empty() ? nullptr : &level.lora};
    findings_.losses[i] = MeanLoss(network, calibration_, cut);
    findings_.lora_losses[i] = MeanLoss(network, calibration_, recovered);
    return absl::OkStatus();
  }

  const int threads_;
  std::string out_;
  std::vector<int32_t> percents_;
  engine::GgmlType type_ = engine::GgmlType::kQ8_0;
  std::unique_ptr<Work> work_;
  std::vector<Batch> calibration_;
  std::vector<Batch> recovery_text_;
  Findings findings_;
  std::vector<ElasticLevel> levels_;
};

absl::Status Run() {
  WITHY_RETURN_IF_ERROR(CheckFlags());
  int threads = absl::GetFlag(FLAGS_threads);
  if (threads == 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  at::set_num_threads(threads);
  train::TuneRuntime();
  return Job(threads).Run();
}

}  // namespace
}  // namespace withy::elastic

int main(int argc, char** argv) {
  withy::ParseProgramFlags(
      "Makes a plain GGUF elastic. May be interrupted and goes on from --work.\n"
      "usage: withy-elasticize --model plain.gguf --out elastic.gguf [--type q8_0] [--text "
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
