#include "serving/call/step_runner.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace withy::serving {
namespace {

policy::PromptTurn PromptOf(const Call& call, size_t level) {
  return {.pacer = &call.pacer,
          .turn = call.turn,
          .rows = call.session->rows().pending(),
          .level = level,
          .depth = call.session->rows().computed()};
}

// Notes whether the call's reader is behind, and takes a pause that is over out of the call's time.
void UpdatePause(Call& call, int64_t now_ns) {
  const bool room = call.sink->HasRoom();
  if (room && call.paused_since_ns != 0) call.pacer.SkipReaderPause(now_ns - call.paused_since_ns);
  call.paused_since_ns = room ? 0 : (call.paused_since_ns != 0 ? call.paused_since_ns : now_ns);
}

}  // namespace

StepRunner::StepRunner(engine::Model& model, const StepRunnerOptions& options, const Calls& calls,
                       TaskInbox& inbox, StepResults& results, Clock& clock, WorkerMetrics& metrics)
    : model_(model),
      levels_(options.levels),
      calls_(calls),
      inbox_(inbox),
      results_(results),
      clock_(clock),
      metrics_(metrics),
      vocab_(static_cast<size_t>(model.info().vocab_size)),
      learner_(options.learner),
      rows_without_answers_(options.rows_without_answers),
      speculator_(model, options.speculation, levels_, clock, metrics),
      tokens_(model, learner_, speculator_, results, clock, metrics),
      logits_(static_cast<size_t>(options.max_batch) * vocab_),
      preempting_logits_(logits_.size()) {}

bool StepRunner::Step() {
  if (under_way_ == nullptr) {
    for (Task& task : std::exchange(deferred_, {})) task();
    std::unique_ptr<StepBatch> batch = PlanBatch();
    FlushThoseWhoWait(*batch);
    if (batch->plan.empty()) return false;
    under_way_ = std::move(batch);
  } else if (Preempt()) {
    return true;
  }
  if (inbox_.ResetInterrupt()) return true;
  if (!Compute(*under_way_, logits_, inbox_.interrupt())) {
    if (under_way_ != nullptr && under_way_->given_up) under_way_.reset();
    return !StandsStill();
  }
  const std::unique_ptr<StepBatch> batch = std::move(under_way_);
  Continue(tokens_.HandOut(*batch, logits_));
  return true;
}

// Whether the step under way waits for KV that is being read.
bool StepRunner::StandsStill() {
  if (under_way_ == nullptr || !under_way_->WaitsForKv()) return false;
  for (const StepBatch::Part& part : under_way_->parts) {
    part.call->session->kv().load().BeginWait(clock_.SteadyNanos());
  }
  return true;
}

// The time that a call's step stood still is time of its load.
void StepRunner::EndKvWait(StepBatch& batch) {
  if (batch.WaitsForKv()) return;
  const int64_t now = clock_.SteadyNanos();
  for (const StepBatch::Part& part : batch.parts) {
    Call& call = *part.call;
    const int64_t since = call.session->kv().load().EndWait();
    if (since == 0) continue;
    call.times.load += now - since;
    call.phase_since_ns += now - since;
    metrics_.KvAwaited(call.request.call_id, since, now);
  }
}

// Computes the step that preempts the one under way; false: there is none. Where weights are
// streamed, a step in between would read them all, and the rest of the one under way once more: new
// rows wait for the next step and share its reads.
bool StepRunner::Preempt() {
  if (StreamsWeights() && !under_way_->WaitsForKv()) return false;
  std::unique_ptr<StepBatch> batch = PlanBatch();
  if (batch->plan.empty()) return false;
  under_way_->preempted = true;
  const auto compute = [&] {
    FlushThoseWhoWait(*batch);
    return Compute(*batch, preempting_logits_, nullptr);
  };
  bool computed = compute();
  while (batch->given_up) {
    batch = PlanBatch();
    computed = !batch->plan.empty() && compute();
  }
  if (computed) Continue(tokens_.HandOut(*batch, preempting_logits_));
  FlushThoseWhoWait(*under_way_);
  return true;
}

// A call whose next token is not one decode step away is told the text that was kept back for it.
void StepRunner::FlushThoseWhoWait(const StepBatch& next) {
  for (const auto& [ticket, call] : calls_) {
    if (call->phase != CallPhase::kRunning || !call->session->decoding()) continue;
    const bool follows = !next.plan.has_prefill() && next.PartOf(*call) != nullptr;
    if (!follows) call->sink->Flush();
  }
}

// Begins or resumes a batch; true once it is computed. A batch that the engine refuses, or whose
// weights cannot be read, ends its calls.
bool StepRunner::Compute(StepBatch& batch, std::vector<float>& logits,
                         const std::atomic<bool>* interrupt) {
  if (batch.pass == nullptr && !Begin(batch, logits)) return false;
  EndKvWait(batch);
  const bool computed = ComputePass(batch, interrupt);
  if (!computed) Refuse(batch, batch.pass->status());
  return computed;
}

bool StepRunner::ComputePass(StepBatch& batch, const std::atomic<bool>* interrupt) {
  while (batch.watch.has_value() && batch.watch->next_look() < 1) {
    const double look = batch.watch->next_look();
    const bool computed = RunPass(batch, interrupt, look);
    if (computed || batch.pass->Done() < look) return computed;
    batch.watch->Look(batch.pass->Done(), Millis(batch.computed_ns));
    if (batch.watch->next_look() == 1 && RestartsAtLowerLevel(batch)) return false;
  }
  return RunPass(batch, interrupt, 1);
}

bool StepRunner::Begin(StepBatch& batch, std::vector<float>& logits) {
  batch.started_ns = clock_.SteadyNanos();
  logits.resize(std::max(logits.size(), static_cast<size_t>(batch.logits_rows) * vocab_));
  const uint64_t only_call = batch.parts.size() == 1 ? batch.parts[0].call->request.call_id : 0;
  engine::Batch rows{
      .rows = batch.rows, .contexts = batch.views, .tag = metrics_.pass_numbers().Next(only_call)};
  size_t first = 0;
  for (StepBatch::Part& part : batch.parts) {
    const std::span<engine::Row> of_part =
        std::span(batch.rows).subspan(first, static_cast<size_t>(part.rows));
    speculator_.AskFeatures(*part.call, of_part, &part.features);
    if (!part.features.empty()) rows.feature_layers = speculator_.feature_layers();
    first += of_part.size();
  }
  if (StreamsWeights()) {
    rows.meanwhile = [this, &batch](const std::atomic<bool>& arrived) {
      GrowMeanwhile(batch, arrived);
    };
    rows.resumed = [&batch] {
      if (batch.windows != nullptr) batch.windows->Close();
    };
  }
  auto pass = model_.Begin(rows, logits.data());
  if (!pass.ok()) {
    Refuse(batch, pass.status());
    return false;
  }
  batch.pass = *std::move(pass);
  if (NeedsWatch(batch)) batch.watch.emplace();
  return true;
}

// Ends the calls of a batch, and with them the batch, unless the status is OK.
void StepRunner::Refuse(StepBatch& batch, const absl::Status& status) {
  if (status.ok()) return;
  // The weights on the disk are damaged, and are packed again: the call can be made again.
  const absl::Status refused = Annotate(
      absl::IsDataLoss(status) ? absl::UnavailableError(status.message()) : status, "engine");
  const std::vector<StepBatch::Part> parts = std::move(batch.parts);
  if (under_way_.get() == &batch) under_way_ = nullptr;
  for (const StepBatch::Part& part : parts) results_.OnRefused(*part.call, refused);
}

bool StepRunner::RunPass(StepBatch& batch, const std::atomic<bool>* interrupt, double until) {
  const int64_t started = clock_.SteadyNanos();
  const bool computed = batch.pass->Run(interrupt, until);
  batch.computed_ns += clock_.SteadyNanos() - started;
  if (StreamsWeights()) metrics_.WeightsStreamed(model_.weight_stats(), started);
  if (computed) {
    metrics_.StepDone();
    batch.windows.reset();
  }
  return computed;
}

// The batch waits for its weights.
void StepRunner::GrowMeanwhile(StepBatch& batch, const std::atomic<bool>& arrived) {
  if (!batch.may_grow || arrived) return;
  if (batch.windows == nullptr) batch.windows = speculator_.OpenWindows(batch.calls());
  batch.may_grow = batch.windows != nullptr && batch.windows->Open(arrived);
}

bool StepRunner::NeedsWatch(const StepBatch& batch) const {
  const StepBatch::Part* prompt = batch.OnlyPrompt();
  if (prompt == nullptr) return false;
  const std::optional<size_t> level = LevelOf(model_.info(), *prompt->call);
  return level.has_value() &&
         policy::SlowStepWatch::IsNeeded(levels_, PromptOf(*prompt->call, *level),
                                         learner_.slowdown(batch.started_ns), batch.started_ns);
}

// Whether the prompt of a batch that turns out slow goes on at a lower level, and the batch is
// given up.
bool StepRunner::RestartsAtLowerLevel(StepBatch& batch) {
  const StepBatch::Part& part = *batch.OnlyPrompt();
  const std::optional<size_t> level = LevelOf(model_.info(), *part.call);
  if (!level.has_value()) return false;
  const size_t restart = batch.watch->RestartLevel(levels_, PromptOf(*part.call, *level), part.rows,
                                                   batch.plan.expected_ms, clock_.SteadyNanos());
  LowerLevel(*part.call, *level, restart);
  batch.given_up = restart != *level;
  return batch.given_up;
}

bool StepRunner::IsUnderWay(const Call& call) const {
  return under_way_ != nullptr && under_way_->PartOf(call) != nullptr;
}

bool StepRunner::SharesStepUnderWay(const Call& call) const {
  return IsUnderWay(call) && under_way_->parts.size() > 1;
}

void StepRunner::AbandonStepOf(const Call& call) {
  if (IsUnderWay(call)) under_way_ = nullptr;
}

policy::StepCall StepRunner::StepCallOf(const Call& call) const {
  const StepBatch::Part* part = under_way_ == nullptr ? nullptr : under_way_->PartOf(call);
  return {.turn = call.turn,
          .pacer = &call.pacer,
          .level = LevelOf(model_.info(), call),
          .decoding = call.session->decoding(),
          .pending_rows = call.session->rows().pending(),
          .ready_rows = call.session->rows().ready(),
          .depth = call.session->rows().computed(),
          .begun = call.steps > 0,
          .reader_behind = call.paused_since_ns != 0,
          .waits_for_kv = call.session->rows().waits_for_kv(),
          .under_way_rows = part == nullptr ? 0 : part->rows};
}

// The next step, or, while one is under way, the step that preempts it.
std::unique_ptr<StepBatch> StepRunner::PlanBatch() {
  const int64_t now = clock_.SteadyNanos();
  std::vector<policy::StepCall> running;
  std::vector<Call*> calls;
  for (const auto& [ticket, call] : calls_) {
    if (call->phase != CallPhase::kRunning) continue;
    if (!IsUnderWay(*call)) UpdatePause(*call, now);
    running.push_back(StepCallOf(*call));
    calls.push_back(call.get());
  }
  std::optional<policy::StepUnderWay> under_way;
  if (under_way_ != nullptr) {
    under_way = {.expected_ms = under_way_->plan.expected_ms,
                 .computed_ms = Millis(under_way_->computed_ns),
                 .done = under_way_->pass != nullptr ? under_way_->pass->Done() : 0,
                 .preempted = under_way_->preempted,
                 .waits_for_kv = under_way_->WaitsForKv()};
  }
  const int64_t start_ns = under_way_ != nullptr ? under_way_->started_ns : now;
  auto batch = std::make_unique<StepBatch>();
  batch->plan = policy::PlanStep({.levels = levels_,
                                  .calls = running,
                                  .under_way = under_way,
                                  .slowdown = learner_.slowdown(start_ns),
                                  .sizer = learner_.sizer(),
                                  .rows_without_answers = rows_without_answers_,
                                  .now_ns = now});
  for (const policy::LevelChange& change : batch->plan.level_changes) {
    LowerLevel(*calls[change.call], change.from, change.to);
  }
  for (const policy::StepEntry& entry : batch->plan.entries) {
    Call* call = calls[entry.call];
    const auto context = static_cast<int32_t>(batch->views.size());
    batch->views.push_back(call->session->rows().View());
    const int32_t logits_rows = call->session->rows().Append(entry.rows, context, &batch->rows);
    batch->parts.push_back(
        {.call = call, .rows = entry.rows, .decode = entry.decode, .logits_rows = logits_rows});
    batch->logits_rows += logits_rows;
  }
  return batch;
}

// Sets up the next step of these calls, but those that have ended.
void StepRunner::Continue(std::span<Call* const> calls) {
  std::vector<Call*> decoding;
  for (Call* call : calls) {
    if (!call->session->decoding() || call->session->answer().finished()) continue;
    if (const std::optional<size_t> level = LevelOf(model_.info(), *call)) {
      LowerLevel(*call, *level,
                 call->pacer.Choose(levels_, *level, call->session->rows().computed()));
    }
    decoding.push_back(call);
  }
  if (!decoding.empty()) DraftNext(decoding);
  for (Call* call : calls) results_.OnComputed(*call);
}

void StepRunner::DraftNext(std::span<Call* const> calls) {
  BesideCalls beside{.quiet = under_way_ == nullptr, .interrupt = inbox_.interrupt()};
  for (const auto& [ticket, other] : calls_) {
    if (other->phase != CallPhase::kRunning || other->session->answer().finished()) continue;
    if (std::find(calls.begin(), calls.end(), other.get()) != calls.end()) continue;
    if (other->session->decoding()) ++beside.other_rows;
    beside.quiet = false;
  }
  speculator_.Prepare(calls, beside);
}

void StepRunner::LowerLevel(Call& call, size_t from, size_t to) {
  if (to == from) return;
  call.session->LowerLevel(model_.info().levels[to].percent);
  call.level_changed = true;
  metrics_.LevelDropped();
}

}  // namespace withy::serving
