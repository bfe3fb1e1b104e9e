#include "offline/elastic/job.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/progress_line.h"
#include "base/status.h"
#include "base/time_left.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/split.h"
#include "engine/weights/levels.h"
#include "offline/elastic/export.h"
#include "offline/elastic/importance.h"
#include "offline/elastic/job_progress.h"
#include "offline/elastic/network.h"
#include "offline/elastic/plan.h"
#include "offline/elastic/recovery.h"
#include "offline/elastic/reorder.h"
#include "offline/elastic/schedule.h"
#include "offline/elastic/step_times.h"
#include "offline/elastic/text/batches.h"
#include "offline/elastic/text/inputs.h"
#include "offline/elastic/text/text_source.h"
#include "offline/elastic/trial.h"
#include "offline/elastic/values.h"
#include "offline/elastic/work.h"
#include "offline/train/runtime.h"
#include "offline/train/workers.h"

namespace withy::elastic {
namespace {

class Job {
 public:
  explicit Job(const JobOptions& options) : options_(options) {}

  absl::Status Run() {
    const bool file_text = options_.text != kOwnText && options_.text != kCorpusText;
    std::vector<std::string> files = engine::GgufPartPaths(options_.model);
    if (file_text) files.push_back(options_.text);
    WITHY_RETURN_IF_ERROR(CheckOutput(options_.out, files));
    WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(options_.model));
    const torch::Device device = torch::cuda::is_available() ? torch::kCUDA : torch::kCPU;
    WITHY_ASSIGN_OR_RETURN(Network network, Network::FromGguf(file, device));
    WITHY_RETURN_IF_ERROR(
        Annotate(engine::CheckPercents(network.shape(), options_.percents),
                 absl::StrCat("--levels=", absl::StrJoin(options_.percents, ","))));
    Say(DescribeTypes(file, options_.type));
    // Refuses another run's directory before minutes of reading and measuring.
    WITHY_ASSIGN_OR_RETURN(const RunInputs inputs, CollectInputs());
    if (options_.estimate_only) {
      WITHY_ASSIGN_OR_RETURN(work_, RunDirectory::Peek(options_.work, inputs));
    } else {
      WITHY_ASSIGN_OR_RETURN(
          work_, RunDirectory::Open(options_.work, inputs, options_.checkpoint_s, *options_.clock));
    }
    // Pieces run in parallel on one thread each, so that sums do not depend on their number.
    train::ComputeOnOneThread();
    network.set_products(train::FastestProducts(network.device()));
    if (options_.order == "importance") network.RoundWeights();
    WITHY_ASSIGN_OR_RETURN(source_, TextSource::Open({.model = options_.model,
                                                      .text = options_.text,
                                                      .taught = options_.taught,
                                                      .cache_dir = PackedDirectory(),
                                                      .threads = options_.threads}));
    WITHY_RETURN_IF_ERROR(ReadCalibration(file));
    WITHY_RETURN_IF_ERROR(Estimate(file, network));
    if (options_.estimate_only) return absl::OkStatus();
    WITHY_RETURN_IF_ERROR(ReadRecoveryText(file));
    WITHY_RETURN_IF_ERROR(MeasureImportance(&network));
    WITHY_RETURN_IF_ERROR(MakeLevels(&network));
    return Write(file, network);
  }

 private:
  void Say(const std::string& line) const {
    if (progress_ != nullptr) progress_->EndLine();
    if (options_.say) options_.say(line);
  }

  const char* Measure() const { return options_.taught ? "divergence" : "loss"; }

  // The inputs that saved results depend on. Files are identified by content, not by path.
  absl::StatusOr<RunInputs> CollectInputs() const {
    WITHY_ASSIGN_OR_RETURN(const std::string model, FileDigest(options_.model));
    std::string text = options_.text;
    if (text != kOwnText && text != kCorpusText) {
      WITHY_ASSIGN_OR_RETURN(text, FileDigest(options_.text));
    }
    const auto number = [](const auto& value) { return absl::StrCat(value); };
    return RunInputs{{"version", "7"},
                     {"--model", model},
                     {"--text", text},
                     {"--learn", options_.taught ? "teacher" : "text"},
                     {"--hours", number(options_.hours)},
                     {"--levels", absl::StrJoin(options_.percents, ",")},
                     {"--calibration_batches", number(options_.calibration_batches)},
                     {"--recovery_batches", number(options_.recovery_batches)},
                     {"--recovery_steps", number(options_.recovery_steps)},
                     {"--recoveries", number(options_.recoveries)},
                     {"--trial_steps", number(options_.trial_steps)},
                     {"--batch_tokens", number(options_.batch_tokens)},
                     {"--rate", number(options_.rate)},
                     {"--rank", number(options_.rank)},
                     {"--seed", number(options_.seed)},
                     {"--order", options_.order},
                     {"--anchors", number(options_.anchors)},
                     {"--cuts", number(static_cast<int>(options_.cuts))}};
  }

  // Beside the saved progress, so that it goes with it; an estimate alone leaves it to the cache.
  std::string PackedDirectory() const {
    return options_.estimate_only ? std::string() : options_.work;
  }

  BatchOptions TextOptions(const std::string& flag, int64_t count, uint64_t seed) const {
    BatchOptions options;
    options.batch_tokens = options_.batch_tokens;
    options.count = count;
    options.seed = seed;
    options.progress = [flag, line = std::make_shared<StepProgress>(*options_.clock)](int64_t done,
                                                                                      int64_t all) {
      line->Show(flag, absl::StrCat("reading text, --", flag), done, all);
    };
    return options;
  }

  absl::Status ReadCalibration(const engine::GgufFile& file) {
    const std::string name = kCalibrationText;
    if (work_ != nullptr && work_->LoadText(name, &calibration_, &times_.text_s)) {
      return absl::OkStatus();
    }
    const BatchOptions text =
        TextOptions("calibration_batches", options_.calibration_batches, options_.seed);
    StepProgress line(*options_.clock);
    const auto show = [&](int64_t done) {
      if (source_->slow()) line.Show(name, "text to measure with", done, text.count);
    };
    show(0);
    const int64_t start = options_.clock->SteadyNanos();
    int64_t made = 0;
    WITHY_ASSIGN_OR_RETURN(calibration_, source_->Read(file, "calibration_batches", text, 1,
                                                       {.advance = [&](double batches) {
                                                         made += std::llround(batches);
                                                         show(std::min(made, text.count));
                                                       }}));
    line.End();
    if (!source_->slow()) return absl::OkStatus();
    times_.text_s = static_cast<double>(options_.clock->SteadyNanos() - start) /
                    (kNanosPerSecond * static_cast<double>(std::max<int64_t>(1, made)));
    if (options_.estimate_only) return absl::OkStatus();
    return work_->SaveText(name, calibration_, times_.text_s);
  }

  // Another text than the one to measure with, unless a text file provides only one.
  absl::Status ReadRecoveryText(const engine::GgufFile& file) {
    const std::string name = kRecoveryText;
    const BatchOptions text =
        TextOptions("recovery_batches", schedule_.text_batches, options_.seed + 1000);
    if (!source_->slow()) {
      WITHY_ASSIGN_OR_RETURN(recovery_text_, source_->Read(file, "recovery_batches", text, 0, {}));
      return absl::OkStatus();
    }
    double batch_s = 0;
    if (work_->LoadText(name, &recovery_text_, &batch_s)) return absl::OkStatus();
    progress_->Begin(StageKind::kText, 100, static_cast<double>(text.count) * times_.text_s,
                     times_.text_s * static_cast<double>(source_->AtOnce(text)));
    const StageState stage_state(work_.get(), name);
    WITHY_ASSIGN_OR_RETURN(recovery_text_,
                           source_->Read(file, "recovery_batches", text, times_.text_s,
                                         progress_->CheckpointerOf(stage_state)));
    WITHY_RETURN_IF_ERROR(work_->SaveText(name, recovery_text_, times_.text_s));
    stage_state.Remove();
    progress_->End();
    return absl::OkStatus();
  }

  // Measures the steps, fits the run to the time given and prints how long it will take.
  absl::Status Estimate(const engine::GgufFile& file, const Network& network) {
    StepProgress line(*options_.clock);
    const double text_s = times_.text_s;
    times_ = MeasureSteps(network, calibration_, options_.rank, options_.threads, *options_.clock,
                          [&](int64_t done, int64_t all) {
                            line.Show("measuring", "measuring one step of each kind", done, all);
                          });
    times_.text_s = text_s;
    line.End();
    schedule_ = {
        .percents = options_.percents,
        .calibration_batches = std::ssize(calibration_),
        .recovery_steps = options_.recovery_steps,
        .recoveries = options_.recoveries,
        .trial_steps = options_.trial_steps,
        .growth = options_.hours > 0 ? StepGrowth::kCut : StepGrowth::kRatio,
        .order = options_.order,
        .cuts = options_.cuts,
        .text_batches = options_.recovery_batches,
        .threads = WorkersFor(network).threads(),
    };
    WITHY_RETURN_IF_ERROR(FitToTime(network));
    ScheduleOptions planned = schedule_;
    if (!source_->slow()) planned.text_batches = 0;
    const std::vector<PlannedStage> stages = PlanStages(network.shape(), planned, times_);
    std::vector<double> done;
    for (const PlannedStage& stage : stages) done.push_back(IsDone(stage) ? 1 : 0);
    Say(absl::StrCat(EstimateText(stages, done, schedule_.threads), "; ", schedule_.recovery_steps,
                     " steps of recovery at 50 %"));
    if (const double least_s = TotalCost(stages);
        options_.hours > 0 && schedule_.recovery_steps == 1 && least_s > options_.hours * 3600) {
      Say(absl::StrCat("warning: --hours ", options_.hours, " leaves no time for recovery: give ",
                       std::ceil(least_s / 1800), " or more"));
    }
    progress_ = std::make_unique<JobProgress>(stages, *options_.clock);
    for (size_t i = 0; i < stages.size(); ++i) {
      if (done[i] == 1) progress_->Skip(stages[i].kind, stages[i].percent);
    }
    return absl::OkStatus();
  }

  // An interrupted run keeps what it was fitted to, whatever it measures now.
  absl::Status FitToTime(const Network& network) {
    if (options_.hours == 0) return absl::OkStatus();
    if (work_ != nullptr && work_->LoadPlan(&schedule_.text_batches, &schedule_.recovery_steps)) {
      return absl::OkStatus();
    }
    schedule_ = FitToHours(network.shape(), schedule_, times_, options_.hours);
    if (options_.estimate_only) return absl::OkStatus();
    return work_->SavePlan(schedule_.text_batches, schedule_.recovery_steps);
  }

  // Whether an earlier run completed the stage. Stages after an incomplete one are done again.
  bool IsDone(const PlannedStage& stage) const {
    if (work_ == nullptr) return false;
    switch (stage.kind) {
      case StageKind::kText:
        return work_->Has(kRecoveryText);
      case StageKind::kUnits:
        return work_->Has(RunDirectory::UnitsName(stage.percent));
      case StageKind::kLayers:
        return work_->Has(RunDirectory::LayersName());
      case StageKind::kCuts:
      case StageKind::kSplits:
        return work_->Has(RunDirectory::ChoiceName(stage.percent));
      case StageKind::kRecovery:
        return work_->Has(RunDirectory::LoraName(stage.percent));
      case StageKind::kLosses:
        return work_->Has(RunDirectory::LossesName(stage.percent));
      case StageKind::kWrite:
        return false;
    }
    return false;
  }

  absl::Status MeasureImportance(Network* network) {
    if (options_.order == "magnitude") {
      findings_.units = MeasureMagnitude(*network);
    } else if (options_.order == "random") {
      findings_.units = DrawImportance(*network, options_.seed);
    } else if (options_.order == "gradient") {
      WITHY_ASSIGN_OR_RETURN(findings_.units, Gradients(network));
    } else {
      WITHY_ASSIGN_OR_RETURN(findings_.units, UnitsOf(*network, Whole(*network), {}));
    }
    Reorder(*network, findings_.units);
    WITHY_RETURN_IF_ERROR(Layers(*network));
    if (options_.anchors && !findings_.layers.empty())
      findings_.anchors = AnchorOrder(findings_.layers);
    Say(absl::StrFormat("%s of the whole model %.4f", Measure(), findings_.whole_loss));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<UnitImportance>> Gradients(Network* network) const {
    const engine::LevelSpec whole = Whole(*network);
    std::vector<UnitImportance> units;
    if (work_->LoadUnits(*network, whole, &units)) return units;
    const double cost_s = progress_->CostOf(StageKind::kUnits, 100);
    const double item_s = cost_s / static_cast<double>(calibration_.size());
    progress_->Begin(StageKind::kUnits, 100, cost_s, item_s);
    const Checkpointer checkpointer = progress_->CheckpointerOf({});
    units = MeasureGradients(*network, calibration_, [&] { checkpointer.advance(item_s); });
    progress_->End();
    WITHY_RETURN_IF_ERROR(work_->SaveUnits(whole, units));
    return units;
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
    const double batch_s = times_.units.At(level.percent);
    progress_->Begin(StageKind::kUnits, level.percent,
                     batch_s * static_cast<double>(calibration_.size()), batch_s);
    const StageState stage_state(work_.get(), RunDirectory::UnitsName(level.percent));
    WITHY_ASSIGN_OR_RETURN(
        units, MeasureUnits(network, calibration_, level, lora, WorkersFor(network), batch_s,
                            progress_->CheckpointerOf(stage_state)));
    WITHY_RETURN_IF_ERROR(work_->SaveUnits(level, units));
    stage_state.Remove();
    progress_->End();
    return units;
  }

  // Losses of all calibration batches for each of `rows` views, row by row.
  absl::StatusOr<std::vector<double>> LossTable(const Network& network, int64_t rows,
                                                const std::function<View(int64_t row)>& view_of,
                                                double batch_s,
                                                const StageState& stage_state) const {
    const auto batches = static_cast<int64_t>(calibration_.size());
    return ComputeValues(
        rows * batches,
        [&](int64_t i) {
          torch::NoGradGuard no_grad;
          const Batch& batch = calibration_[static_cast<size_t>(i % batches)];
          return Judge(network, batch, view_of(i / batches)).item<double>();
        },
        WorkersFor(network), batch_s, progress_->CheckpointerOf(stage_state));
  }

  // The mean of one row of a table.
  double RowMean(const std::vector<double>& table, int64_t row) const {
    return Mean(std::span(table).subspan(static_cast<size_t>(row) * calibration_.size(),
                                         calibration_.size()));
  }

  // The full model's loss, and the increase when each layer is dropped, if anchors are needed.
  absl::Status Layers(const Network& network) {
    const int64_t layers = options_.cuts == Cuts::kEstimated ? 0 : network.shape().layers;
    if (work_->LoadLayers(layers, &findings_.whole_loss, &findings_.layers)) {
      return absl::OkStatus();
    }
    const double batch_s = times_.loss.full_s;
    const int64_t rows = layers + 1;
    progress_->Begin(StageKind::kLayers, 100,
                     batch_s * static_cast<double>(rows) * static_cast<double>(calibration_.size()),
                     batch_s);
    const StageState stage_state(work_.get(), RunDirectory::LayersName());
    WITHY_ASSIGN_OR_RETURN(
        const std::vector<double> losses,
        LossTable(
            network, rows,
            [](int64_t row) { return View{.without_layer = static_cast<int32_t>(row) - 1}; },
            batch_s, stage_state));
    findings_.whole_loss = RowMean(losses, 0);
    for (int64_t row = 1; row < rows; ++row) {
      findings_.layers.push_back(RowMean(losses, row) - findings_.whole_loss);
    }
    WITHY_RETURN_IF_ERROR(work_->SaveLayers(findings_.whole_loss, findings_.layers));
    stage_state.Remove();
    progress_->End();
    return absl::OkStatus();
  }

  RecoveryOptions OptionsOf(int32_t percent, int64_t steps_at_50) const {
    return {.rank = options_.rank,
            .steps = StepsAt(percent, steps_at_50, schedule_.growth),
            .rate = options_.rate * std::min(1.0, 2 - percent / 50.0),
            .seed = options_.seed};
  }

  // From the highest level down, so that the limits of a low level cost higher ones nothing and
  // each level starts from the LoRA of the one above. From scratch the lowest levels need several
  // times the steps, and their result depends on the seed. Importance changes when other units are
  // removed, so the units of the level above are reordered before a level is cut from it.
  absl::Status MakeLevels(Network* network) {
    const size_t all = options_.percents.size();
    levels_.resize(all);
    findings_.losses.resize(all);
    findings_.lora_losses.resize(all);
    for (size_t left = all; left > 0; --left) {
      const size_t i = left - 1;
      if (left < all && options_.order == "importance") {
        const std::span<ElasticLevel> done(levels_.begin() + static_cast<ptrdiff_t>(left),
                                           levels_.end());
        WITHY_ASSIGN_OR_RETURN(units_, UnitsOf(*network, done.front().spec, done.front().lora));
        Reorder(*network, units_, done);
      } else if (left == all) {
        units_ = findings_.units;
      }
      WITHY_ASSIGN_OR_RETURN(const LevelChoice choice, Choose(*network, i));
      levels_[i].spec = choice.spec;
      WITHY_RETURN_IF_ERROR(Recover(*network, i));
      WITHY_RETURN_IF_ERROR(MeasureLosses(*network, i));
      Say(absl::StrFormat("level %d %%: %s, %s %.4f, with LoRA %.4f", options_.percents[i],
                          choice.head_share == 0
                              ? "the cuts that lose least"
                              : absl::StrFormat("heads' share %.1f", choice.head_share),
                          Measure(), findings_.losses[i], findings_.lora_losses[i]));
    }
    return absl::OkStatus();
  }

  const ElasticLevel* Above(size_t i) const {
    return i + 1 < levels_.size() ? &levels_[i + 1] : nullptr;
  }

  absl::StatusOr<LevelChoice> Choose(const Network& network, size_t i) const {
    const int32_t percent = options_.percents[i];
    LevelChoice choice;
    if (work_->LoadChoice(network, percent, &choice)) return choice;
    const ElasticLevel* above = Above(i);
    engine::LevelSpec least;
    if (options_.cuts != Cuts::kAlike) {
      WITHY_ASSIGN_OR_RETURN(least, LeastCuts(network, percent, above));
    }
    if (MaxTrials(options_.cuts) == 0) {
      choice = {.spec = least, .head_share = 0};
      StageState(work_.get(), RunDirectory::CutsName(percent)).Remove();
      WITHY_RETURN_IF_ERROR(work_->SaveChoice(choice));
      return choice;
    }
    std::vector<LevelChoice> tried = LevelCandidates(network.shape(), percent, findings_.anchors,
                                                     above == nullptr ? nullptr : &above->spec,
                                                     least.layers.empty() ? nullptr : &least);
    WITHY_RETURN_IF_ERROR(Try(network, percent, above, &tried));
    choice = BestChoice(tried);
    WITHY_RETURN_IF_ERROR(work_->SaveChoice(choice));
    StageState(work_.get(), RunDirectory::CutsName(percent)).Remove();
    for (size_t t = 0; t < tried.size(); ++t) {
      StageState(work_.get(), RunDirectory::TrialName(percent, t)).Remove();
    }
    return choice;
  }

  // Losses of the candidates after a short recovery, computed in parallel: small products occupy
  // one thread, not two.
  absl::Status Try(const Network& network, int32_t percent, const ElasticLevel* above,
                   std::vector<LevelChoice>* tried) const {
    const RecoveryOptions trial =
        OptionsOf(percent, schedule_.recovery_steps == 0 ? 0 : options_.trial_steps);
    const train::Workers workers = WorkersFor(network);
    const int64_t count = std::ssize(*tried);
    const double step_s =
        ParallelSeconds(times_.train.At(percent) * times_.train_threads, count, workers.threads());
    const double loss_s =
        ParallelSeconds(times_.loss.At(percent) * workers.threads(), count, workers.threads());
    progress_->Begin(
        StageKind::kSplits, percent,
        static_cast<double>(count) * (static_cast<double>(trial.steps) * step_s +
                                      static_cast<double>(calibration_.size()) * loss_s),
        step_s * workers.threads());
    std::vector<absl::Status> statuses(tried->size());
    workers.Run(count, [&](int64_t t) {
      LevelChoice& choice = (*tried)[static_cast<size_t>(t)];
      const TrialSetup setup{.network = network,
                             .level = choice.spec,
                             .text = recovery_text_,
                             .calibration = calibration_,
                             .above = above == nullptr ? nullptr : &above->lora,
                             .step_cost_s = step_s,
                             .loss_cost_s = loss_s};
      const StageState stage_state(work_.get(),
                                   RunDirectory::TrialName(percent, static_cast<size_t>(t)));
      const auto result = RunTrial(setup, trial, progress_->CheckpointerOf(stage_state));
      statuses[static_cast<size_t>(t)] = result.status();
      if (result.ok()) choice.loss = result->loss;
    });
    for (const absl::Status& status : statuses) WITHY_RETURN_IF_ERROR(status);
    progress_->End();
    return absl::OkStatus();
  }

  // The recovered level above with the cuts that lose least.
  absl::StatusOr<engine::LevelSpec> LeastCuts(const Network& network, int32_t percent,
                                              const ElasticLevel* above) const {
    const engine::ModelShape& shape = network.shape();
    const engine::LevelSpec from = above == nullptr ? Whole(network) : above->spec;
    const std::vector<Lora> none;
    const std::vector<Lora>& learnt = above == nullptr ? none : above->lora;
    std::vector<LayerCut> cuts = PossibleCuts(shape, percent, from);
    std::vector<size_t> measured = DeepestCuts(from, cuts);
    if (options_.cuts == Cuts::kMeasured) {
      measured.resize(cuts.size());
      std::iota(measured.begin(), measured.end(), size_t{0});
    }
    const int64_t batches = CutBatches(std::ssize(calibration_));
    const int64_t count = (std::ssize(measured) + 1) * batches;  // the last ones are for `from`
    const double batch_s = times_.loss.At(from.percent);
    progress_->Begin(StageKind::kCuts, percent, static_cast<double>(count) * batch_s, batch_s);
    const StageState stage_state(work_.get(), RunDirectory::CutsName(percent));
    WITHY_ASSIGN_OR_RETURN(
        const std::vector<double> losses,
        ComputeValues(
            count,
            [&](int64_t i) {
              torch::NoGradGuard no_grad;
              engine::LevelSpec spec = from;
              if (const auto row = static_cast<size_t>(i / batches); row < measured.size()) {
                const LayerCut& cut = cuts[measured[row]];
                spec.layers[cut.layer] = cut.extent;
              }
              const std::vector<Lora> lora = InheritLora(shape, learnt, spec);
              return Judge(network, calibration_[static_cast<size_t>(i % batches)],
                           {.extents = &spec.layers, .lora = &lora})
                  .item<double>();
            },
            WorkersFor(network), batch_s, progress_->CheckpointerOf(stage_state)));
    const auto mean = [&](size_t row) {
      const auto width = static_cast<size_t>(batches);
      return Mean(std::span(losses).subspan(row * width, width));
    };
    for (size_t i = 0; i < measured.size(); ++i) cuts[measured[i]].loss = mean(i);
    progress_->End();
    const double whole = mean(measured.size());
    if (options_.cuts == Cuts::kEstimated) {
      EstimateCuts(shape, from, InOrder(units_, shape), whole, cuts);
    }
    return ApplyBestCuts(shape, percent, from, whole, cuts);
  }

  // Parallel workers if LibTorch computes on the CPU.
  train::Workers WorkersFor(const Network& network) const {
    return train::Workers(network.device().is_cpu() ? options_.threads : 1);
  }

  // The result of a low level partly depends on chance, so each is recovered more than once.
  // Training may worsen a level that has lost almost nothing, so its initial LoRA is evaluated,
  // too.
  absl::Status Recover(const Network& network, size_t i) {
    ElasticLevel& level = levels_[i];
    const int32_t percent = level.spec.percent;
    const RecoveryOptions options = OptionsOf(percent, schedule_.recovery_steps);
    if (options.steps == 0 || work_->LoadLora(network, level.spec, options.rank, &level.lora)) {
      return absl::OkStatus();
    }
    const TrialSetup setup{.network = network,
                           .level = level.spec,
                           .text = recovery_text_,
                           .calibration = calibration_,
                           .above = Above(i) == nullptr ? nullptr : &Above(i)->lora,
                           .workers = WorkersFor(network),
                           .step_cost_s = times_.train.At(percent),
                           .loss_cost_s = times_.loss.At(percent)};
    progress_->Begin(StageKind::kRecovery, percent,
                     progress_->CostOf(StageKind::kRecovery, percent), setup.step_cost_s);
    std::optional<Trial> best;
    for (int64_t r = -1; r < options_.recoveries; ++r) {
      RecoveryOptions other = options;
      if (r < 0) {
        other.steps = 0;
      } else {
        other.seed += static_cast<uint64_t>(r) * 1000;
        other.first_batch = r * std::ssize(recovery_text_) / options_.recoveries;
      }
      const StageState stage_state(work_.get(), RunDirectory::RecoveryName(percent, r + 1));
      WITHY_ASSIGN_OR_RETURN(Trial trial,
                             RunTrial(setup, other, progress_->CheckpointerOf(stage_state)));
      if (!best.has_value() || trial.loss < best->loss) best = std::move(trial);
    }
    level.lora = std::move(best->lora);
    WITHY_RETURN_IF_ERROR(work_->SaveLora(level.spec, level.lora));
    for (int64_t r = 0; r <= options_.recoveries; ++r) {
      StageState(work_.get(), RunDirectory::RecoveryName(percent, r)).Remove();
    }
    progress_->End();
    return absl::OkStatus();
  }

  // Losses without and with the level's LoRA.
  absl::Status MeasureLosses(const Network& network, size_t i) {
    const ElasticLevel& level = levels_[i];
    const int32_t percent = level.spec.percent;
    if (work_->LoadLosses(percent, &findings_.losses[i], &findings_.lora_losses[i])) {
      return absl::OkStatus();
    }
    const double batch_s = times_.loss.At(percent);
    progress_->Begin(StageKind::kLosses, percent,
                     2 * batch_s * static_cast<double>(calibration_.size()), batch_s);
    const StageState stage_state(work_.get(), RunDirectory::LossesName(percent));
    WITHY_ASSIGN_OR_RETURN(
        const std::vector<double> losses,
        LossTable(
            network, 2,
            [&](int64_t row) {
              return View{.extents = &level.spec.layers,
                          .lora = row == 0 || level.lora.empty() ? nullptr : &level.lora};
            },
            batch_s, stage_state));
    findings_.losses[i] = RowMean(losses, 0);
    findings_.lora_losses[i] = RowMean(losses, 1);
    WITHY_RETURN_IF_ERROR(
        work_->SaveLosses(percent, findings_.losses[i], findings_.lora_losses[i]));
    stage_state.Remove();
    progress_->End();
    return absl::OkStatus();
  }

  absl::Status Write(const engine::GgufFile& file, const Network& network) {
    progress_->Begin(StageKind::kWrite, 100, times_.write_s, times_.write_s);
    WITHY_RETURN_IF_ERROR(ExportElastic(file, network, levels_, static_cast<int32_t>(options_.rank),
                                        findings_, options_.type, options_.overlay, options_.out));
    progress_->End();
    Say(absl::StrFormat(
        "%s: %d levels in %s", options_.out, std::ssize(levels_),
        DurationText(static_cast<double>(options_.clock->SteadyNanos() - start_ns_) /
                     static_cast<double>(kNanosPerSecond))));
    return absl::OkStatus();
  }

  const JobOptions& options_;
  const int64_t start_ns_ = options_.clock->SteadyNanos();
  std::unique_ptr<RunDirectory> work_;  // null: nothing is saved
  std::unique_ptr<TextSource> source_;
  ScheduleOptions schedule_;
  std::vector<Batch> calibration_;
  std::vector<Batch> recovery_text_;
  StepTimes times_;
  std::unique_ptr<JobProgress> progress_;
  Findings findings_;
  std::vector<UnitImportance> units_;  // of the level that the next one is cut from
  std::vector<ElasticLevel> levels_;
};

}  // namespace

absl::Status RunJob(const JobOptions& options) { return Job(options).Run(); }

}  // namespace withy::elastic
