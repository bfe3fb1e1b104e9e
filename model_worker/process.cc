#include "model_worker/process.h"

#include <grpcpp/impl/service_type.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/board.h"
#include "base/clock.h"
#include "base/compute_baton.h"
#include "base/keep_in_memory.h"
#include "base/status.h"
#include "base/thread_role.h"
#include "engine/head/draft_head.h"
#include "engine/model/bundle.h"
#include "engine/session/conversation.h"
#include "engine/session/kernel_spans.h"
#include "engine/session/served_model.h"
#include "engine/session/weight_guard.h"
#include "model_worker/draft_client.h"
#include "model_worker/model_change.h"
#include "model_worker/service.h"
#include "model_worker/upgrader.h"
#include "policy/kv/kv_admission.h"
#include "rpc/open_streams.h"
#include "rpc/server.h"
#include "rpc/start_wait.h"
#include "serving/call/scheduler.h"
#include "serving/session/chunk_identity.h"
#include "serving/session/leases_ahead.h"
#include "serving/session/public_prompts.h"
#include "serving/session/session.h"
#include "store_client/lease_client.h"
#include "telemetry/about.h"
#include "telemetry/recorder.h"
#include "wire/calibration.h"
#include "wire/speculation.h"
#include "wire/wire.h"
#include "wire/worker_cost.h"

namespace withy::model_worker {
namespace {

engine::KvGeometry GeometryOf(const engine::KvInfo& kv) {
  return {.layers = kv.layers, .kv_heads = kv.kv_heads, .head_dim = kv.head_dim};
}

// KV of before weights were found damaged has another one, and KV of other RoPE frequencies.
std::string KvModelId(const engine::ModelInfo& info) {
  std::string id = info.id;
  if (info.kv_epoch != 0) absl::StrAppend(&id, "-", info.kv_epoch);
  if (!info.kv_variant.empty()) absl::StrAppend(&id, "-", info.kv_variant);
  return id;
}

serving::SchedulerOptions OptionsOf(const proto::ModelConfig& config, const WorkerHooks& hooks) {
  return {.max_batch = static_cast<int32_t>(config.max_batch()),
          .queue_limit = static_cast<int32_t>(config.queue_limit()),
          .prefill_piece_ms = static_cast<int32_t>(config.prefill_piece_ms()),
          .rest_after = config.idle_release_s() == 0 ? absl::InfiniteDuration()
                                                     : absl::Seconds(config.idle_release_s()),
          .speculation = {.enabled = true,
                          .always = hooks.speculate_always,
                          .windows = !config.speculation_windows_off(),
                          .max_tree_rows = static_cast<int32_t>(config.tree_rows())}};
}

// What draft_worker computes by while steps wait for streamed weights.
std::optional<ComputeBaton> BatonFor(const proto::Config& config, const engine::Model& model) {
  if (!model.weight_stats().streams() || config.model().speculation_windows_off()) return {};
  auto baton = ComputeBaton::Open(ComputeBaton::PathIn(config.run_dir()));
  if (baton.ok()) return *std::move(baton);
  spdlog::warn("the draft model does not draft while steps wait for weights: {}",
               std::string(baton.status().message()));
  return {};
}

// Kernel spans of a small model come fast, and the agent reads them every profiler.poll_ms.
constexpr uint32_t kRingCapacity = 16384;

absl::StatusOr<std::unique_ptr<engine::ServedModel>> OpenModel(
    const proto::Config& config, engine::KernelSpans& kernels, engine::PackedFileMetrics& packed,
    std::function<void(const absl::Status&)> on_lost) {
  engine::ServedModelOptions options = engine::OptionsFromWire(config.model(), config.state_dir());
  options.model.kernel_observer = &kernels;
  rpc::StartReport report("model_worker", config);
  options.model.progress = [&, told = -1](double done, std::string_view) mutable {
    const int percent = static_cast<int>(done * 100);
    if (std::exchange(told, percent) == percent) return;
    report.Tell(absl::StrCat("packs ", options.path, ": ", percent, " %"));
    if (percent % 10 == 0) {
      spdlog::info("packing {} into {}: {} %", options.path, options.model.cache_dir, percent);
    }
  };
  options.model.on_damage = [&](const absl::Status& damage) {
    packed.Damaged();
    spdlog::warn("{}: packing {} again", std::string(damage.message()), options.path);
  };
  options.model.on_device = [](std::string_view line) { spdlog::info("{}", line); };
  options.model.on_lost = std::move(on_lost);
  const int64_t started = Clock::Real().SteadyNanos();
  WITHY_ASSIGN_OR_RETURN(auto model, engine::OpenServedModel(options));
  for (const std::string& note : model->bundle.text.notes) spdlog::info("{}", note);
  for (const std::string& warning : model->bundle.text.warnings) spdlog::warn("{}", warning);
  kernels.set_layers(model->bundle.model->info().layers);
  spdlog::info("opened {} in {} ms ({} kernels, {} threads)", options.path,
               (Clock::Real().SteadyNanos() - started) / kNanosPerMilli,
               std::string(model->bundle.model->target()), model->bundle.model->threads());
  return model;
}

// The model's draft head; null: the configuration names none.
absl::StatusOr<std::unique_ptr<engine::DraftHead>> OpenHead(const proto::ModelConfig& config,
                                                            const engine::Model& model) {
  if (config.head_path().empty()) return nullptr;
  WITHY_ASSIGN_OR_RETURN(auto head, engine::DraftHead::Open(config.head_path(), model));
  spdlog::info("opened the draft head {}: {}; {:.1f} MiB", config.head_path(),
               engine::DescribeHead(head->shape()),
               static_cast<double>(head->info().weight_bytes) / (1 << 20));
  return head;
}

// Says how weights are kept under a budget.
void LogWeights(const engine::WeightStreamStats& weights) {
  if (!weights.streams()) return;
  constexpr double kMib = 1 << 20;
  spdlog::info(
      "weights: {:.1f} MiB resident and {:.1f} MiB of buffers, of a budget of {:.1f} MiB; {:.1f} "
      "MiB are read for each pass ({}{}); {:.1f} MiB are locked",
      static_cast<double>(weights.resident_bytes) / kMib,
      static_cast<double>(weights.buffer_bytes) / kMib,
      static_cast<double>(weights.budget_bytes) / kMib,
      static_cast<double>(weights.pass_bytes) / kMib, weights.uring ? "io_uring" : "threads",
      weights.direct ? ", O_DIRECT" : "", static_cast<double>(weights.locked_bytes) / kMib);
  if (!weights.direct) {
    spdlog::warn(
        "the file system of the packed model has no O_DIRECT: weights are read through the page "
        "cache, which is slower and takes memory beside the budget; set state_dir to another file "
        "system");
  }
  if (weights.locked_bytes < weights.resident_bytes + weights.buffer_bytes) {
    spdlog::info("weights that are not locked may be swapped: LimitMEMLOCK is too low");
  }
}

absl::StatusOr<engine::WorkerCost> FindCost(engine::Model& model, const proto::Config& config) {
  WITHY_ASSIGN_OR_RETURN(
      engine::WorkerCost cost,
      engine::FindWorkerCost(model, config.model().path(), engine::PackedDir(config.state_dir()),
                             ReadBoard(), Clock::Real()));
  if (!cost.calibrated() && !absl::IsNotFound(cost.calibration)) {
    spdlog::warn("going on with a measurement at start-up: {}",
                 std::string(cost.calibration.message()));
  }
  spdlog::info(
      "{} ({}): prefill {:.1f} us a token, decode {:.1f} us a step and {:.1f} us for each "
      "further call; 1,000 tokens of context add {:.1f} us to a prompt's token and {:.1f} us to a "
      "step",
      model.info().name, engine::Describe(cost), cost.step.prefill_us_per_token,
      cost.step.decode_us, cost.step.decode_us_per_extra, 1e3 * cost.step.depth.prefill_us,
      1e3 * cost.step.depth.decode_us);
  return cost;
}

absl::StatusOr<std::vector<serving::Identity>> FindPublicChunks(const proto::Config& config,
                                                                const serving::SessionEnv& env) {
  const proto::StoreConfig& store = config.store();
  const std::vector<std::string> files(store.public_system_prompt_files().begin(),
                                       store.public_system_prompt_files().end());
  WITHY_ASSIGN_OR_RETURN(std::vector<std::string> prompts, serving::ReadPublicPrompts(files));
  prompts.insert(prompts.end(), store.public_system_prompts().begin(),
                 store.public_system_prompts().end());
  WITHY_ASSIGN_OR_RETURN(std::vector<serving::Identity> chunks,
                         serving::NamePublicChunks(env, prompts));
  constexpr size_t kMostChunks = 1 << 16;
  if (chunks.size() > kMostChunks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "store.public_system_prompts: they take ", chunks.size(), " chunks of ",
        engine::kChunkTokens, " tokens at all levels of the model; at most ", kMostChunks));
  }
  return chunks;
}

class ModelWorker final : public rpc::Process {
 public:
  explicit ModelWorker(const WorkerHooks& hooks) : hooks_(hooks) {}
  ~ModelWorker() override {
    if (leases_ != nullptr) leases_->Stop();
  }

  absl::Status Start(const proto::Config& config) {
    WITHY_ASSIGN_OR_RETURN(recorder_,
                           telemetry::Recorder::Open(config.run_dir() + "/rings", "model_worker",
                                                     {.ring_capacity = kRingCapacity}));
    telemetry::RecordBuild(*recorder_);
    kernels_ = std::make_unique<engine::KernelSpans>(*recorder_);
    kernels_->Watch(false);  // not while the board is measured
    packed_metrics_.emplace(*recorder_);
    const auto open = [&]() -> absl::StatusOr<std::unique_ptr<engine::ServedModel>> {
      WITHY_ASSIGN_OR_RETURN(auto model,
                             OpenModel(config, *kernels_, *packed_metrics_,
                                       [this](const absl::Status& why) { StartAnew(why); }));
      WITHY_ASSIGN_OR_RETURN(head_, OpenHead(config.model(), *model->bundle.model));
      return model;
    };
    WITHY_ASSIGN_OR_RETURN(model_, OpenChosen(config, open));
    WITHY_ASSIGN_OR_RETURN(const engine::WorkerCost cost, FindCost(*model_->bundle.model, config));
    kernels_->set_share(engine::KernelSpanShare(config.profiler()));
    kernels_->Watch(true);
    const engine::ModelInfo& info = model_->bundle.model->info();
    telemetry::RecordModel(*recorder_, {.name = info.name,
                                        .device = model_->bundle.model->target(),
                                        .calibrated_unix_s = cost.measured_unix_s});
    const engine::WeightStreamStats weights = model_->bundle.model->weight_stats();
    LogWeights(weights);
    const uint64_t weight_bytes = weights.streams() ? weights.resident_bytes + weights.buffer_bytes
                                                    : static_cast<uint64_t>(info.weight_bytes);
    const auto head_bytes =
        static_cast<uint64_t>(head_ == nullptr ? 0 : head_->info().weight_bytes);
    if (!KeepInMemory(weight_bytes + head_bytes) && !weights.streams()) {
      spdlog::info(
          "weights may be paged out: they take more than half of the memory, or LimitMEMLOCK is "
          "finite");
    }
    SetThreadRole(ThreadRole::kCarries);  // and all that this one starts; those that compute say so

    WITHY_RETURN_IF_ERROR(PrepareLeases(config, cost));
    StartScheduler(config, cost);
    GuardWeights(config);
    return Serve(config, cost);
  }

  void Drain(absl::Duration grace) override {
    draining_ = true;
    change_->End();
    server_->SetServing(false);
    scheduler_->Drain(grace);
    leases_->Stop();
    server_->Shutdown(absl::Seconds(1));
  }

  std::vector<std::string> addresses() const override { return server_->addresses(); }

  bool MakesProgress() override {
    return model_->bundle.model->Wakes() || scheduler_->MakesProgress();
  }
  int64_t PieceNanos() override { return scheduler_->PieceNanos(); }
  std::string MustBeginAnew() override { return change_->wish(); }
  absl::Status MustRestart() override {
    const absl::MutexLock lock(&restart_mutex_);
    return restart_;
  }

 private:
  void StartAnew(const absl::Status& why) {
    const absl::MutexLock lock(&restart_mutex_);
    restart_ = why;
  }

  void GuardWeights(const proto::Config& config) {
    engine::WeightGuardOptions options =
        engine::GuardOptionsFromWire(config.model(), config.state_dir());
    options.busy = [this] {
      const serving::SchedulerLoad load = scheduler_->load();
      return load.running + load.queued > 0;
    };
    options.on_harmless = [](const absl::Status& damage) {
      spdlog::error("{}", std::string(damage.message()));
    };
    options.on_unusable = [this](const absl::Status& why) {
      scheduler_->Abandon(why);
      StartAnew(why);
    };
    guard_.emplace(*model_->bundle.model, std::move(options), *packed_metrics_);
  }

  absl::Status PrepareLeases(const proto::Config& config, const engine::WorkerCost& cost) {
    const engine::ModelInfo& info = model_->bundle.model->info();
    const serving::Identity identity = serving::ModelIdentity(KvModelId(info), GeometryOf(info.kv),
                                                              model_->bundle.model->target());
    namer_.emplace(identity, /*lora_id=*/"", engine::KvFormat::kQ8);
    env_.emplace(
        serving::SessionEnv{.model = info,
                            .encoder = model_->encoder,
                            .namer = *namer_,
                            .window = model_->window,
                            .draft_slots = static_cast<int32_t>(config.model().tree_rows()),
                            .prompt_rows = model_->bundle.model->piece_rows(),
                            .recorder = recorder_.get()});
    WITHY_ASSIGN_OR_RETURN(std::vector<serving::Identity> public_chunks,
                           FindPublicChunks(config, *env_));
    leases_ = std::make_unique<store_client::LeaseClient>(
        store_client::LeaseClientOptions{.store_address = config.store().listen(),
                                         .model_id = identity,
                                         .kv = info.kv,
                                         .model_name = info.name,
                                         .kv_costs = engine::KvCostsOf(cost),
                                         .public_chunks = std::move(public_chunks),
                                         .window = env_->window},
        *model_->bundle.tokenizer);
    ahead_ = std::make_unique<serving::LeasesAhead>(*leases_, kLeasesAhead);
    most_begun_ = static_cast<int32_t>(config.model().max_batch() + kLeasesAhead);
    return absl::OkStatus();
  }

  void StartScheduler(const proto::Config& config, const engine::WorkerCost& cost) {
    serving::SchedulerOptions options = OptionsOf(config.model(), hooks_);
    for (const engine::LevelTimes& level : cost.levels) {
      options.paces.push_back(policy::LevelPaceOf(engine::CostOf(level)));
    }
    options.speculation.row_costs = engine::RowCostsOf(cost);
    drafts_ = std::make_unique<DraftClient>(config.draft().listen(),
                                            model_->bundle.tokenizer->fingerprint(), Clock::Real(),
                                            BatonFor(config, *model_->bundle.model));
    options.speculation.draft = drafts_.get();
    options.speculation.head = head_.get();
    scheduler_ = std::make_unique<serving::Scheduler>(
        *model_->bundle.model, *env_, *ahead_, cost.step, options, Clock::Real(), *recorder_);
  }

  absl::Status Serve(const proto::Config& config, const engine::WorkerCost& cost) {
    const engine::ModelInfo& info = model_->bundle.model->info();
    const engine::AnswerDefaults defaults =
        engine::DefaultsFor(config.model(), model_->recommended, info.vocab_size);
    for (const std::string& key : model_->recommended.ignored)
      spdlog::warn("{}: {} is ignored", config.model().path(), key);
    spdlog::info("calls that do not say it get {}", engine::Describe(defaults.sampling));
    std::vector<std::string> warnings = model_->bundle.text.warnings;
    std::string refused = RefusedChoice(config);
    if (!refused.empty()) warnings.push_back(refused);
    change_.emplace(
        ModelChange::Parts{.config = config, .answers = answers_, .running_calls = [this] {
                             return static_cast<uint32_t>(scheduler_->load().running);
                           }});
    service_ =
        MakeModelWorkerService({.scheduler = *scheduler_,
                                .leases = *leases_,
                                .env = *env_,
                                .model = *model_->bundle.model,
                                .cost = cost,
                                .defaults = defaults,
                                .speculation = wire::ModeFromWire(config.model().speculation()),
                                .answers = answers_,
                                .change = *change_,
                                .model_path = config.model().path(),
                                .refused_model = std::move(refused),
                                .warning = absl::StrJoin(warnings, "; "),
                                .trust_weights = [this] { return guard_->Trust(); }});
    WITHY_ASSIGN_OR_RETURN(server_, rpc::Server::Start({.name = "model_worker",
                                                        .listen = {config.model().listen()},
                                                        .answers = &answers_},
                                                       {service_.get()}));
    if (info.levels.size() > 1 && config.model().idle_upgrade_s() > 0) {
      upgrader_ = std::make_unique<Upgrader>(*scheduler_, *leases_,
                                             absl::Seconds(config.model().idle_upgrade_s()));
    }
    leases_->Start(
        {.on_change =
             [this](bool attached) {
               server_->SetServing(attached && !draining_);
               if (attached) ahead_->Refill(ChunksAhead());
             },
         .release_blocks = [this](const absl::Status& status) { scheduler_->FailLeases(status); }});
    return absl::OkStatus();
  }

  int32_t ChunksAhead() const {
    constexpr int32_t kChunk = engine::kChunkTokens;
    const int32_t window = (env_->window + kChunk - 1) / kChunk;
    return policy::ChunksAhead(leases_->arena_chunks(), window, most_begun_);
  }

  static constexpr uint32_t kLeasesAhead = 2;

  const WorkerHooks hooks_;
  std::atomic<bool> draining_{false};
  int32_t most_begun_ = 0;  // leases that have claimed chunks before they said what they need
  // Destroyed from last to first: calls need the scheduler, leases need their client.
  std::unique_ptr<telemetry::Recorder> recorder_;
  std::optional<engine::PackedFileMetrics> packed_metrics_;
  std::unique_ptr<engine::KernelSpans> kernels_;
  std::unique_ptr<engine::ServedModel> model_;
  std::unique_ptr<engine::DraftHead> head_;
  std::optional<serving::ChunkNamer> namer_;
  std::optional<serving::SessionEnv> env_;
  std::unique_ptr<store_client::LeaseClient> leases_;
  std::unique_ptr<serving::LeasesAhead> ahead_;
  std::unique_ptr<DraftClient> drafts_;
  std::unique_ptr<serving::Scheduler> scheduler_;
  absl::Mutex restart_mutex_;
  absl::Status restart_ ABSL_GUARDED_BY(restart_mutex_);
  std::optional<engine::WeightGuard> guard_;
  std::unique_ptr<Upgrader> upgrader_;
  rpc::OpenStreams answers_;
  std::optional<ModelChange> change_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<rpc::Process>> StartModelWorker(const proto::Config& config,
                                                               const WorkerHooks& hooks) {
  auto worker = std::make_unique<ModelWorker>(hooks);
  WITHY_RETURN_IF_ERROR(worker->Start(config));
  return worker;
}

}  // namespace withy::model_worker
