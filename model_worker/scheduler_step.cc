// The engine thread's steps: which rows go together, what comes of them.
// Neighbours: scheduler.cc brings the calls and takes them away; policy/step_plan.h decides.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "model_worker/scheduler_call.h"

namespace withy::model_worker {
namespace {

// Rows of an answer whose blocks are claimed before they are computed.
constexpr int32_t kTokensAhead = engine::kChunkTokens / 2;

double Millis(int64_t ns) { return static_cast<double>(ns) / kNanosPerMilli; }

}  // namespace

bool Scheduler::Step() {
  if (under_way_ == nullptr) {
    for (Task& task : std::exchange(after_step_, {})) task();
    std::unique_ptr<Batch> batch = PlanBatch();
    FlushWhoWaits(*batch);
    if (batch->plan.empty()) return false;
    under_way_ = std::move(batch);
  } else if (GiveWay()) {
    return true;
  }
  stop_step_ = false;
  // Whoever left word before could not stop the step.
  if (HasPosted()) return true;
  if (!Compute(*under_way_, logits_, &stop_step_)) {
    if (under_way_ != nullptr && under_way_->given_up) under_way_.reset();
    return true;
  }
  const std::unique_ptr<Batch> batch = std::move(under_way_);
  AfterStep(*batch, logits_);
  return true;
}

// Lets urgent prompts and tokens go in between, if there are any; once where answers wait for the
// step.
bool Scheduler::GiveWay() {
  std::unique_ptr<Batch> between = PlanBatch();
  if (between->plan.empty()) return false;
  under_way_->preempted = true;
  const auto compute = [&] {
    FlushWhoWaits(*between);
    return Compute(*between, between_logits_, nullptr);
  };
  bool computed = compute();
  while (between->given_up) {
    between = PlanBatch();
    computed = !between->plan.empty() && compute();
  }
  if (computed) AfterStep(*between, between_logits_);
  FlushWhoWaits(*under_way_);
  return true;
}

// Whose next token is not one decode step away is told what was kept back for it.
void Scheduler::FlushWhoWaits(const Batch& next) {
  for (const auto& entry : calls_) {
    const Call& call = *entry.second;
    if (call.phase != Phase::kRunning || !call.session->decoding()) continue;
    const bool follows = !next.plan.has_prefill() &&
                         std::any_of(next.parts.begin(), next.parts.end(),
                                     [&](const Batch::Part& part) { return part.call == &call; });
    if (!follows) call.sink->Flush();
  }
}

// Begins or goes on with a batch; true once it is computed. A batch that the engine refuses ends
// its calls.
bool Scheduler::Compute(Batch& batch, std::vector<float>& logits, const std::atomic<bool>* stop) {
  const int64_t now = clock_.SteadyNanos();
  if (batch.pass == nullptr) {
    batch.started_ns = now;
    logits.resize(std::max(logits.size(), static_cast<size_t>(batch.logits_rows) * vocab_));
    auto pass = model_.Begin({.rows = batch.rows, .contexts = batch.views}, logits.data());
    if (!pass.ok()) {
      const std::vector<Batch::Part> parts = batch.parts;  // failing one of them ends the batch
      for (const Batch::Part& part : parts) Fail(*part.call, Annotate(pass.status(), "engine"));
      return false;
    }
    batch.pass = *std::move(pass);
    if (NeedsWatch(batch, now)) batch.watch.emplace();
  }
  while (batch.watch.has_value() && batch.watch->next_look() < 1) {
    const double look = batch.watch->next_look();
    const bool computed = RunPass(batch, stop, look);
    if (computed || batch.pass->Done() < look) return computed;
    batch.watch->Look(batch.pass->Done(), Millis(batch.computed_ns));
    if (batch.watch->next_look() == 1 && RestartsAtLowerLevel(batch)) return false;
  }
  return RunPass(batch, stop, 1);
}

bool Scheduler::RunPass(Batch& batch, const std::atomic<bool>* stop, double until) {
  const int64_t started = clock_.SteadyNanos();
  const bool computed = batch.pass->Run(stop, until);
  batch.computed_ns += clock_.SteadyNanos() - started;
  if (computed) metrics_.StepDone();
  return computed;
}

bool Scheduler::NeedsWatch(const Batch& batch, int64_t now_ns) const {
  const Batch::Part* prompt = batch.OnlyPrompt();
  if (prompt == nullptr) return false;
  const std::optional<size_t> level = LevelOf(*prompt->call);
  return level.has_value() &&
         policy::SlowStepWatch::IsNeeded(paces_, PromptOf(*prompt->call, *level),
                                         learner_.slowdown(), now_ns);
}

// Whether the prompt of a batch that turns out slow goes on at a lower level, and the batch is
// given up.
bool Scheduler::RestartsAtLowerLevel(Batch& batch) {
  const Batch::Part& part = *batch.OnlyPrompt();
  const std::optional<size_t> level = LevelOf(*part.call);
  if (!level.has_value()) return false;
  const size_t restart = batch.watch->RestartLevel(paces_, PromptOf(*part.call, *level), part.rows,
                                                   batch.plan.expected_ms, clock_.SteadyNanos());
  LowerLevel(*part.call, *level, restart);
  batch.given_up = restart != *level;
  return batch.given_up;
}

bool Scheduler::UnderWay(const Call& call) const {
  return under_way_ != nullptr &&
         std::any_of(under_way_->parts.begin(), under_way_->parts.end(),
                     [&](const Batch::Part& part) { return part.call == &call; });
}

// Notes whose reader is behind; a step under way is none of its calls' readers' time.
void Scheduler::UpdatePause(Call& call, int64_t now_ns) {
  const bool room = call.sink->HasRoom();
  if (room && call.paused_since_ns != 0) call.pacer.SkipReaderPause(now_ns - call.paused_since_ns);
  call.paused_since_ns = room ? 0 : (call.paused_since_ns != 0 ? call.paused_since_ns : now_ns);
}

policy::StepCall Scheduler::StepCallOf(const Call& call) const {
  int32_t under_way_rows = 0;
  if (under_way_ != nullptr) {
    for (const Batch::Part& part : under_way_->parts) {
      if (part.call == &call) under_way_rows = part.rows;
    }
  }
  return {.order = call.order,
          .pacer = &call.pacer,
          .level = LevelOf(call),
          .decoding = call.session->decoding(),
          .pending_rows = call.session->pending_rows(),
          .ready_rows = call.session->ready_rows(),
          .depth = call.session->computed(),
          .begun = call.steps > 0,
          .reader_behind = call.paused_since_ns != 0,
          .under_way_rows = under_way_rows};
}

// The next step, or, while one is under way, the step that preempts it.
std::unique_ptr<Scheduler::Batch> Scheduler::PlanBatch() {
  const int64_t now = clock_.SteadyNanos();
  std::vector<policy::StepCall> running;
  std::vector<Call*> calls;
  for (const auto& [ticket, call] : calls_) {
    if (call->phase != Phase::kRunning) continue;
    if (!UnderWay(*call)) UpdatePause(*call, now);
    running.push_back(StepCallOf(*call));
    calls.push_back(call.get());
  }
  std::optional<policy::StepUnderWay> under_way;
  if (under_way_ != nullptr) {
    under_way = {.expected_ms = under_way_->plan.expected_ms,
                 .computed_ms = Millis(under_way_->computed_ns),
                 .done = under_way_->pass != nullptr ? under_way_->pass->Done() : 0,
                 .preempted = under_way_->preempted};
  }
  auto batch = std::make_unique<Batch>();
  batch->plan = policy::PlanStep({.levels = paces_,
                                  .calls = running,
                                  .under_way = under_way,
                                  .slowdown = learner_.slowdown(),
                                  .sizer = learner_.sizer(),
                                  .now_ns = now});
  for (const policy::LevelChange& change : batch->plan.level_changes) {
    LowerLevel(*calls[change.call], change.from, change.to);
  }
  for (const policy::StepEntry& entry : batch->plan.entries) {
    Call* call = calls[entry.call];
    const auto context = static_cast<int32_t>(batch->views.size());
    batch->views.push_back(call->session->View());
    const int32_t logits_rows = call->session->AppendRows(entry.rows, context, &batch->rows);
    batch->parts.push_back(
        {.call = call, .rows = entry.rows, .decode = entry.decode, .logits_rows = logits_rows});
    batch->logits_rows += logits_rows;
  }
  return batch;
}

void Scheduler::AfterStep(const Batch& batch, std::span<const float> logits) {
  const double share = learner_.Observe(batch.plan, Millis(batch.computed_ns));
  const int64_t ended_ns = clock_.SteadyNanos();
  size_t first = 0;  // of a part's logits
  bool first_tokens = false, urgent = false;
  std::vector<Call*> going_on;
  for (const Batch::Part& part : batch.parts) {
    Call& call = *part.call;
    metrics_.Step(call.request.call_id, part.decode, part.rows, call.steps++, batch.started_ns,
                  ended_ns);
    call.session->Advance(part.rows);
    if (part.logits_rows > 0) {
      const bool begins = call.times.first_token_ns == 0;
      first_tokens = first_tokens || begins;
      if (begins) call.pacer.OnPromptStep(share);
      urgent = urgent || (begins && call.pacer.FirstTokenIsUrgent(ended_ns));
      const size_t size = static_cast<size_t>(part.logits_rows) * vocab_;
      const bool taken = TakeTokens(call, logits.subspan(first, size));
      first += size;
      if (!taken) continue;
    } else if (call.request.report_progress && !part.decode) {
      const int32_t tokens = call.session->prefill_tokens();
      call.sink->Progress(tokens - call.session->pending_rows(), tokens);
    }
    going_on.push_back(&call);
  }
  // Every token has been told by now; what is next for their calls makes work for other threads.
  const auto threads = static_cast<unsigned>(model_.threads());
  if (first_tokens && threads >= std::thread::hardware_concurrency()) {
    std::this_thread::sleep_for(std::chrono::microseconds(policy::FirstTokenLeadUs(urgent)));
  }
  for (Call* call : going_on) GoOn(*call);
}

// Picks a call's next tokens and tells them; false: the call has failed and is gone.
bool Scheduler::TakeTokens(Call& call, std::span<const float> logits) {
  const int64_t started = clock_.SteadyNanos();
  const auto deltas = call.session->TakeLogits(logits);
  const int64_t now = clock_.SteadyNanos();
  if (!deltas.ok()) {
    Fail(call, Annotate(deltas.status(), "sampling"));
    return false;
  }
  metrics_.Sampling(call.request.call_id, deltas->size(), started, now);
  if (call.times.first_token_ns == 0) {
    call.times.first_token_ns = now;
    call.times.prefill = now - call.phase_since_ns;
  }
  call.times.last_token_ns = now;
  const auto tokens = std::count_if(deltas->begin(), deltas->end(),
                                    [](const auto& delta) { return delta.token.has_value(); });
  if (tokens > 0) {
    call.pacer.OnTokens(now, static_cast<int32_t>(tokens));
    if (std::exchange(call.level_changed, false)) {
      call.sink->LevelChanged(call.session->level_percent());
    }
  }
  for (const engine::AnswerDelta& delta : *deltas) {
    if (delta.token.has_value() || !delta.text.empty()) call.sink->Delta(delta);
  }
  if (call.session->finished()) call.sink->Flush();  // the record comes first
  return true;
}

// What comes after a call's rows.
void Scheduler::GoOn(Call& call) {
  if (call.session->finished()) {
    Commit(call);
  } else if (call.request.rebuild && call.session->pending_rows() == 0) {
    call.unanswered = true;
    Commit(call);
  } else {
    if (call.session->decoding()) {
      KeepPace(call);
      DraftNext(call);
    }
    ClaimAhead(call);
  }
}

policy::PromptTurn Scheduler::PromptOf(const Call& call, size_t level) {
  return {.pacer = &call.pacer,
          .order = call.order,
          .rows = call.session->pending_rows(),
          .level = level,
          .depth = call.session->computed()};
}

void Scheduler::KeepPace(Call& call) {
  const std::optional<size_t> level = LevelOf(call);
  if (level.has_value()) {
    LowerLevel(call, *level, call.pacer.Choose(paces_, *level, call.session->computed()));
  }
}

// Index of a call's level among the model's; none: the model has no such level.
std::optional<size_t> Scheduler::LevelOf(const Call& call) const {
  const int32_t index = engine::LevelIndex(model_.info(), call.session->level_percent());
  return index < 0 ? std::nullopt : std::optional(static_cast<size_t>(index));
}

void Scheduler::LowerLevel(Call& call, size_t from, size_t to) {
  if (to == from) return;
  call.session->LowerLevel(model_.info().levels[to].percent);
  call.level_changed = true;
  metrics_.LevelDropped();
}

void Scheduler::DraftNext(Call& call) {
  if (options_.drafts == nullptr) return;
  // A draft that is refused costs speed alone: the step decodes plainly.
  call.session->Draft(options_.drafts->Draft(call.request.call_id, call.session->tokens()))
      .IgnoreError();
}

void Scheduler::ClaimAhead(Call& call) {
  const int32_t ahead = call.session->decoding() ? kTokensAhead : kPromptAhead;
  if (const auto range = call.session->NextClaim(ahead)) {
    call.lease->Claim(range->first, range->count);
  }
}

}  // namespace withy::model_worker
