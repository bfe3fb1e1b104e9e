#include "draft_worker/process.h"

#include <grpcpp/impl/service_type.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/board.h"
#include "base/clock.h"
#include "base/compute_baton.h"
#include "base/config.h"
#include "base/config/defaults.h"
#include "base/keep_in_memory.h"
#include "base/status.h"
#include "draft_worker/answerer.h"
#include "draft_worker/draft_fit.h"
#include "draft_worker/service.h"
#include "engine/session/cost_probe.h"
#include "engine/session/kernel_spans.h"
#include "engine/session/weight_guard.h"
#include "rpc/open_streams.h"
#include "rpc/server.h"
#include "telemetry/about.h"
#include "telemetry/recorder.h"
#include "wire/calibration.h"
#include "wire/wire.h"
#include "wire/worker_cost.h"

namespace withy::draft_worker {
namespace {

// Rows per prefill piece of at most `piece_ms`. `useful`: as Model::piece_rows.
int32_t PieceRows(const engine::StepCost& cost, uint32_t piece_ms, int32_t useful) {
  constexpr double kMinRows = 8;
  constexpr double kMaxRows = 256;
  const double rows = piece_ms * 1e3 / std::max(cost.prefill_us_per_token, 0.001);
  return static_cast<int32_t>(std::clamp(rows, kMinRows, std::max<double>(kMaxRows, useful)));
}

// Kernel spans of a small model come fast, and the agent reads them every profiler.poll_ms.
constexpr uint32_t kRingCapacity = 16384;

class DraftWorker final : public rpc::Process {
 public:
  absl::Status Start(const proto::Config& config) {
    WITHY_ASSIGN_OR_RETURN(recorder_,
                           telemetry::Recorder::Open(config.run_dir() + "/rings", "draft_worker",
                                                     {.ring_capacity = kRingCapacity}));
    telemetry::RecordBuild(*recorder_);
    const std::string misfit = Misfit(config);
    if (!misfit.empty() && IsDefaultDraft(config)) {
      const std::string why =
          absl::StrCat("no draft: ", misfit, "; set draft.path to a model of that vocabulary");
      spdlog::warn("{}", why);
      service_ = MakeNoDraftService(why);
    } else {
      WITHY_RETURN_IF_ERROR(ServeModel(config, misfit));
    }
    WITHY_ASSIGN_OR_RETURN(server_, rpc::Server::Start({.name = "draft_worker",
                                                        .listen = {config.draft().listen()},
                                                        .answers = &answers_},
                                                       {service_.get()}));
    server_->SetServing(true);
    if (model_ != nullptr) GuardWeights(config);
    return absl::OkStatus();
  }

  void Drain(absl::Duration grace) override {
    server_->SetServing(false);
    if (answerer_ != nullptr) answerer_->Drain(grace);
    server_->Shutdown(absl::Seconds(1));
  }

  std::vector<std::string> addresses() const override { return server_->addresses(); }

  bool MakesProgress() override { return answerer_ == nullptr || answerer_->MakesProgress(); }
  int64_t PieceNanos() override { return answerer_ == nullptr ? 0 : answerer_->PieceNanos(); }
  absl::Status MustRestart() override {
    const absl::MutexLock lock(&restart_mutex_);
    return restart_;
  }

 private:
  void GuardWeights(const proto::Config& config) {
    engine::WeightGuardOptions options =
        engine::GuardOptionsFromWire(config.draft(), config.state_dir());
    options.busy = [this] {
      const AnswererLoad load = answerer_->load();
      return load.running + load.queued > 0;
    };
    options.on_harmless = [](const absl::Status& damage) {
      spdlog::error("{}", std::string(damage.message()));
    };
    options.on_unusable = [this](const absl::Status& why) {
      {
        const absl::MutexLock lock(&restart_mutex_);
        restart_ = why;
      }
      answerer_->Drain(absl::ZeroDuration());
    };
    guard_.emplace(*model_->bundle.model, std::move(options), *packed_metrics_);
  }

  // "" also if the target's file cannot be read here: it may be on another board.
  static std::string Misfit(const proto::Config& config) {
    const auto why = WhyNoDraftFor(config.draft().path(), config.model().path());
    if (why.ok()) return *why;
    spdlog::info("cannot compare the draft's vocabulary with the target's: {}",
                 std::string(why.status().message()));
    return "";
  }

  absl::Status ServeModel(const proto::Config& config, const std::string& misfit) {
    const proto::ModelConfig& draft = config.draft();
    std::string note;
    if (!misfit.empty()) {
      note = absl::StrCat("cannot draft for the target: ", misfit, "; it still answers on its own");
      spdlog::warn("{}", note);
    }
    kernels_ = std::make_unique<engine::KernelSpans>(*recorder_);
    kernels_->Watch(false);  // not while the board is measured
    engine::ServedModelOptions options = engine::OptionsFromWire(draft, config.state_dir());
    options.model.kernel_observer = kernels_.get();
    packed_metrics_.emplace(*recorder_);
    options.model.on_damage = [&](const absl::Status& damage) {
      packed_metrics_->Damaged();
      spdlog::warn("{}: packing {} again", std::string(damage.message()), draft.path());
    };
    options.model.on_device = [](std::string_view line) { spdlog::info("{}", line); };
    WITHY_ASSIGN_OR_RETURN(model_, engine::OpenServedModel(options));
    for (const std::string& text : model_->bundle.text.notes) spdlog::info("{}", text);
    for (const std::string& text : model_->bundle.text.warnings) spdlog::warn("{}", text);
    kernels_->set_layers(model_->bundle.model->info().layers);
    WITHY_ASSIGN_OR_RETURN(
        const engine::WorkerCost cost,
        engine::FindWorkerCost(*model_->bundle.model, draft.path(),
                               engine::PackedDir(config.state_dir()), ReadBoard(), Clock::Real()));
    telemetry::RecordModel(*recorder_, {.name = model_->bundle.model->info().name,
                                        .device = model_->bundle.model->target(),
                                        .calibrated_unix_s = cost.measured_unix_s});
    kernels_->set_share(engine::KernelSpanShare(config.profiler()));
    kernels_->Watch(true);
    KeepInMemory(static_cast<uint64_t>(model_->bundle.model->info().weight_bytes));
    if (!cost.calibrated() && !absl::IsNotFound(cost.calibration)) {
      spdlog::warn("using a measurement at start-up instead: {}",
                   std::string(cost.calibration.message()));
    }
    spdlog::info("opened {} ({}): prefill {:.1f} us a token, decode {:.1f} us a token",
                 draft.path(), engine::Describe(cost), cost.step.prefill_us_per_token,
                 cost.step.decode_us);
    answerer_ = std::make_unique<Answerer>(
        *model_,
        Answerer::Options{.queue_limit = draft.queue_limit(),
                          .piece_rows = PieceRows(cost.step, draft.prefill_piece_ms(),
                                                  model_->bundle.model->piece_rows())},
        Clock::Real(), *recorder_);
    absl::StatusOr<ComputeBaton> baton = ComputeBaton::Open(ComputeBaton::PathIn(config.run_dir()));
    if (baton.ok()) {
      baton_ = std::move(*baton);
    } else {
      spdlog::warn("no drafts while the target waits for its weights: {}",
                   std::string(baton.status().message()));
    }
    const engine::AnswerDefaults defaults =
        engine::DefaultsFor(draft, model_->recommended, model_->bundle.model->info().vocab_size);
    for (const std::string& key : model_->recommended.ignored)
      spdlog::warn("{}: {} is ignored", draft.path(), key);
    service_ = MakeDraftWorkerService(*answerer_, *model_, cost,
                                      {.queue_limit = draft.queue_limit(),
                                       .defaults = defaults,
                                       .note = note,
                                       .warning = absl::StrJoin(model_->bundle.text.warnings, "; "),
                                       .baton = baton_.has_value() ? &*baton_ : nullptr},
                                      answers_);
    return absl::OkStatus();
  }

  // Destroyed in reverse order. Without a draft there is no model and no answerer.
  std::unique_ptr<telemetry::Recorder> recorder_;
  std::optional<engine::PackedFileMetrics> packed_metrics_;
  std::unique_ptr<engine::KernelSpans> kernels_;
  std::unique_ptr<engine::ServedModel> model_;
  std::optional<ComputeBaton> baton_;
  std::unique_ptr<Answerer> answerer_;
  rpc::OpenStreams answers_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<rpc::Server> server_;
  absl::Mutex restart_mutex_;
  absl::Status restart_ ABSL_GUARDED_BY(restart_mutex_);
  std::optional<engine::WeightGuard> guard_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<rpc::Process>> StartDraftWorker(const proto::Config& config) {
  auto worker = std::make_unique<DraftWorker>();
  WITHY_RETURN_IF_ERROR(worker->Start(config));
  return worker;
}

}  // namespace withy::draft_worker
