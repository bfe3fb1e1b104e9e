#include "serving/call/scheduler.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/thread_role.h"
#include "policy/constants.h"

namespace withy::serving {
namespace {

// Work of the engine thread that takes longer than this hangs.
constexpr int64_t kHangNs = 20 * kNanosPerSecond;

// Times of the levels from those of the full model.
std::vector<policy::LevelPace> GuessLevelPaces(const engine::ModelInfo& info,
                                               const engine::StepCost& cost) {
  std::vector<policy::LevelCost> levels;
  for (const engine::LevelInfo& level : info.levels) {
    const engine::DepthCost depth =
        engine::DepthCostOf(cost, info.levels.front().percent, level.percent);
    levels.push_back({.percent = static_cast<uint32_t>(level.percent),
                      .weight_bytes = static_cast<double>(level.weight_bytes),
                      .flops = static_cast<double>(level.flops_per_token),
                      .depth = policy::DepthCost{depth.prefill_us, depth.decode_us}});
  }
  // Where nothing was measured, the levels' times still compare.
  policy::CostParameters full;
  full.prefill_us_per_token = std::max(cost.prefill_us_per_token, 1.0);
  full.decode_us_per_token = std::max(cost.decode_us, 1.0);
  full.decode_us_per_extra_row = cost.decode_us_per_extra;
  std::vector<policy::LevelPace> paces;
  for (const policy::LevelCost& level : levels) {
    paces.push_back(policy::LevelPaceOf(policy::CostOfLevel(full, levels, level.percent)));
  }
  return paces;
}

StepRunnerOptions RunnerOptions(const engine::Model& model, const SessionEnv& env,
                                const engine::StepCost& cost, const SchedulerOptions& options) {
  const engine::ModelInfo& info = model.info();
  StepRunnerOptions runner{.max_batch = options.max_batch,
                           .learner = {},
                           .rows_without_answers = env.prompt_rows,
                           .levels = options.paces,
                           .speculation = options.speculation};
  if (runner.levels.empty()) runner.levels = GuessLevelPaces(info, cost);
  runner.learner = {.us_per_row = cost.prefill_us_per_token,
                    .full_row_ms = runner.levels.back().row_ms,
                    .piece_ms = options.prefill_piece_ms,
                    .max_rows = std::max(options.max_piece_rows, env.prompt_rows)};
  if (model.weight_stats().streams()) {
    const double pass_ms = cost.decode_us / 1e3;
    runner.learner.piece_ms = std::max(
        runner.learner.piece_ms, static_cast<int32_t>(policy::kStreamedStepsInPiece * pass_ms));
  }
  return runner;
}

}  // namespace

Scheduler::Scheduler(engine::Model& model, const SessionEnv& env, LeaseSource& leases,
                     const engine::StepCost& cost, const SchedulerOptions& options, Clock& clock,
                     telemetry::Recorder& recorder)
    : model_(model),
      clock_(clock),
      rest_after_(options.rest_after),
      computed_ns_(clock.SteadyNanos()),
      commit_grace_(options.commit_grace),
      metrics_(recorder),
      inbox_(clock),
      registry_(
          options, clock,
          [this](std::unique_ptr<Call> call) {
            const bool interrupts = !call->request.rebuild;
            inbox_.Post(
                [this, call = std::move(call)]() mutable { lifecycle_.Enqueue(std::move(call)); },
                interrupts);
          }),
      lifecycle_(model, env, leases, options, RunnerOptions(model, env, cost, options),
                 {.registry = registry_, .inbox = inbox_, .clock = clock, .metrics = metrics_}),
      scorer_(clock),
      embedder_(clock, recorder),
      engine_thread_([this] { RunEngineThread(); }) {}

Scheduler::~Scheduler() {
  Drain(absl::ZeroDuration());
  lifecycle_.leases().Detach();
  inbox_.Stop();
  engine_thread_.join();
  lifecycle_.FailRemaining(Draining());
}

void Scheduler::RunEngineThread() {
  SetThreadRole(ThreadRole::kComputes);
  model_.PinThreads();
  bool computed = false;
  const auto wait = [&] {
    const absl::Duration rest = RestIfIdle(computed);
    return computed
               ? absl::ZeroDuration()
               : std::min({lifecycle_.IdleWait(), scorer_.IdleWait(), embedder_.IdleWait(), rest});
  };
  while (inbox_.Run(wait())) {
    const bool stepped = lifecycle_.RunRound();
    const bool idle = !stepped && !inbox_.ResetInterrupt();
    const EngineUse use = stepped ? EngineUse::kSteps
                          : idle  ? EngineUse::kIdle
                                  : EngineUse::kInterrupted;
    const bool embedded = embedder_.Round(use, inbox_.interrupt());
    const bool scored = scorer_.Round(/*may_compute=*/idle && !embedded, inbox_.interrupt());
    computed = stepped || embedded || scored;
  }
  lifecycle_.runner().AbandonStep();
  CloseTexts(Draining());
}

absl::Duration Scheduler::RestIfIdle(bool computed) {
  const SchedulerLoad load = registry_.load();
  if (computed || load.running + load.queued > 0) computed_ns_ = clock_.SteadyNanos();
  if (computed_ns_ == 0 || rest_after_ == absl::InfiniteDuration()) return absl::InfiniteDuration();
  const absl::Duration idle = absl::Nanoseconds(clock_.SteadyNanos() - computed_ns_);
  if (idle < rest_after_) return rest_after_ - idle;
  if (model_.Rest()) metrics_.Rested();
  computed_ns_ = 0;
  return absl::InfiniteDuration();
}

absl::StatusOr<Ticket> Scheduler::Submit(CallRequest request, std::shared_ptr<CallSink> sink) {
  return registry_.Admit(std::move(request), std::move(sink));
}

void Scheduler::SubmitRebuild(const std::string& app_id, const std::string& context_id,
                              const std::shared_ptr<CallSink>& sink) {
  const absl::Status admitted = registry_.AdmitRebuild(app_id, context_id, sink);
  if (!admitted.ok()) sink->Failed(admitted);
}

bool Scheduler::AwaitQuiet(absl::Duration quiet, uint64_t* calls_seen) {
  return registry_.AwaitQuiet(quiet, calls_seen);
}

void Scheduler::Cancel(Ticket ticket) { BreakOff(ticket, absl::OkStatus()); }

void Scheduler::BreakOff(Ticket ticket, absl::Status why) {
  inbox_.Post([this, ticket, why = std::move(why)] { lifecycle_.Stop(ticket, why); });
}

void Scheduler::CancelCall(uint64_t call_id, std::function<void(bool found)> done) {
  inbox_.Post([this, call_id, done = std::move(done)] { done(lifecycle_.CancelCall(call_id)); });
}

void Scheduler::ForgetContext(std::string app_id, std::string context_id,
                              std::function<void()> done) {
  inbox_.Post([this, app_id = std::move(app_id), context_id = std::move(context_id),
               done = std::move(done)] {
    lifecycle_.runner().speculator().ForgetContext(app_id, context_id);
    done();
  });
}

void Scheduler::Score(std::unique_ptr<engine::TextScorer> scorer, std::shared_ptr<ScoreSink> sink) {
  inbox_.Post([this, scorer = std::move(scorer), sink = std::move(sink)]() mutable {
    scorer_.Start(std::move(scorer), std::move(sink));
  });
}

void Scheduler::Embed(std::unique_ptr<TextEmbedder> embedder, std::shared_ptr<EmbedSink> sink) {
  inbox_.Post([this, embedder = std::move(embedder), sink = std::move(sink)]() mutable {
    embedder_.Start(std::move(embedder), std::move(sink));
  });
}

void Scheduler::CloseTexts(const absl::Status& status) {
  scorer_.Close(status);
  embedder_.Close(status);
}

void Scheduler::FailLeases(const absl::Status& status) {
  absl::Notification failed;
  inbox_.Post([&] {
    lifecycle_.FailLeased(status);
    failed.Notify();
  });
  failed.WaitForNotification();
  lifecycle_.leases().AwaitIdle();  // what it had begun with those calls is over, too
}

void Scheduler::Abandon(const absl::Status& status) {
  registry_.BeginDrain();
  inbox_.Post([this, status] { CloseTexts(status); });
  FailLeases(status);
}

void Scheduler::Drain(absl::Duration grace) {
  registry_.BeginDrain();
  inbox_.Post([this] {
    lifecycle_.CancelRebuilds();
    CloseTexts(Draining());
  });
  if (!registry_.AwaitEmpty(grace)) {
    inbox_.Post([this] { lifecycle_.StopAll(Draining()); });
    registry_.AwaitEmpty(commit_grace_);
  }
  // What is left waits for a store that hangs; its callers' streams would keep the server.
  FailLeases(Draining());
}

bool Scheduler::MakesProgress() const { return PieceNanos() < kHangNs; }

}  // namespace withy::serving
