// The engine thread's steps: which rows go together, what comes of them.
// Neighbours: scheduler.cc brings the calls and takes them away; plan.h decides.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/status.h"
#include "model_worker/scheduler_call.h"

namespace withy::model_worker {
namespace {

// Rows of an answer whose blocks are claimed before they are computed.
constexpr int32_t kTokensAhead = engine::kChunkTokens / 2;
// How long the cores are left to a first token that hurries, and to another one. Three processes
// carry it to the app, with cold caches and beside threads that take all of the memory's bandwidth:
// that takes them a millisecond longer than alone, and once in a while as long as the answer lasts
// where they do not get to run before the next step begins.
constexpr std::chrono::microseconds kHurriedLead{300};
constexpr std::chrono::microseconds kFirstTokenLead{100};

}  // namespace

bool Scheduler::Step() {
  if (under_way_ == nullptr) {
    for (Task& task : std::exchange(after_step_, {})) task();
    std::unique_ptr<Batch> batch = PlanBatch();
    FlushWhoWaits(*batch);
    if (batch->rows.empty()) return false;
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
  if (under_way_->has_decode && under_way_->gave_way) return false;
  std::unique_ptr<Batch> between = PlanBatch();
  if (between->rows.empty()) return false;
  under_way_->gave_way = true;
  const auto compute = [&] {
    FlushWhoWaits(*between);
    return Compute(*between, between_logits_, nullptr);
  };
  bool computed = compute();
  while (between->given_up) {
    between = PlanBatch();
    computed = !between->rows.empty() && compute();
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
    const bool follows = !next.has_prefill &&
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
    auto pass = model_.Begin({.rows = batch.rows, .contexts = batch.views}, logits.data());
    if (!pass.ok()) {
      const std::vector<Batch::Part> parts = batch.parts;  // failing one of them ends the batch
      for (const Batch::Part& part : parts) Fail(*part.call, Annotate(pass.status(), "engine"));
      return false;
    }
    batch.pass = *std::move(pass);
    if (MayBeginAgain(batch, now)) batch.young.emplace();
  }
  while (batch.young.has_value() && batch.young->next_look() < 1) {
    const double look = batch.young->next_look();
    const bool computed = RunPass(batch, stop, look);
    if (computed || batch.pass->Done() < look) return computed;
    batch.young->Look(batch.pass->Done(), static_cast<double>(batch.computed_ns) / 1e6);
    if (batch.young->next_look() == 1 && BeginsAgain(batch)) return false;
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

// Whether the prompt of a batch would be late if the board were half as fast as it was lately, and
// has a level to fall to.
bool Scheduler::MayBeginAgain(const Batch& batch, int64_t now_ns) const {
  constexpr double kHalfAsFast = 2;
  const Batch::Part* prompt = batch.OnlyPrompt();
  if (prompt == nullptr) return false;
  const Call& call = *prompt->call;
  const std::optional<size_t> level = LevelOf(call);
  if (level.value_or(0) == 0 || !call.pacer.may_fall()) return false;
  const double ms = paces_[*level].RowsMs(call.session->pending_rows(), call.session->computed()) *
                    slowdown_.value();
  return call.pacer.PromptSpareMs(kHalfAsFast * ms, now_ns) < 0;
}

// Whether the prompt of a batch that turns out slow falls to a lower level, and the batch is given
// up.
bool Scheduler::BeginsAgain(Batch& batch) {
  const Batch::Part& part = *batch.OnlyPrompt();
  const std::optional<size_t> level = LevelOf(*part.call);
  const double whole_ms = batch.young->WholeMs();
  if (!level.has_value() || whole_ms <= 0) return false;
  const size_t again =
      BeginsAgainAt(paces_, TurnOf(*part.call, *level), part.rows, batch.young->LeftMs(),
                    whole_ms / batch.expected_ms, clock_.SteadyNanos());
  Fall(*part.call, *level, again);
  batch.given_up = again != *level;
  return batch.given_up;
}

bool Scheduler::UnderWay(const Call& call) const {
  return under_way_ != nullptr &&
         std::any_of(under_way_->parts.begin(), under_way_->parts.end(),
                     [&](const Batch::Part& part) { return part.call == &call; });
}

// Whether a call without rows in the step under way may go on before its end.
bool Scheduler::MayGoBetween(const Call& call, int64_t now_ns) const {
  if (UnderWay(call)) return false;
  if (!call.session->decoding()) {
    std::vector<CallOrder> prompts;
    for (const Batch::Part& part : under_way_->parts) {
      if (!part.decode) prompts.push_back(part.call->order);
    }
    return GoesBetween(call.order, call.steps > 0, prompts, now_ns);
  }
  const std::optional<size_t> level = LevelOf(call);
  if (under_way_->has_decode || !level.has_value()) return false;
  std::vector<PromptTurn> prompts;
  for (const Batch::Part& part : under_way_->parts) {
    const std::optional<size_t> own = LevelOf(*part.call);
    if (!own.has_value()) return false;
    prompts.push_back(TurnOf(*part.call, *own));
    prompts.back().rows -= part.rows;
    prompts.back().depth += part.rows;
  }
  return TokenGoesBetween(paces_, AnswerTurnOf(call, *level), prompts, LeftOfStepMs(),
                          slowdown_.value(), now_ns);
}

// What the step under way still takes: by how fast it has been, once it has told, since a pass may
// take half as long again as the one before.
double Scheduler::LeftOfStepMs() const {
  constexpr double kTells = 0.1;
  const double taken_ms = static_cast<double>(under_way_->computed_ns) / 1e6;
  const double done = under_way_->pass != nullptr ? under_way_->pass->Done() : 0;
  if (done >= kTells) return taken_ms * (1 - done) / done;
  return std::max(0.0, under_way_->expected_ms * slowdown_.value() - taken_ms);
}

void Scheduler::ObservePrefill(const Batch& batch) {
  const double ms = static_cast<double>(batch.computed_ns) / 1e6;
  if (batch.has_decode) sizer_.Observe(batch.expected_ms / paces_.back().row_ms, ms * 1e3);
  if (batch.rows.size() >= Slowdown::kManyRows) slowdown_.Observe(ms, batch.expected_ms);
}

// The next step, or, while one is under way, what goes in between.
std::unique_ptr<Scheduler::Batch> Scheduler::PlanBatch() {
  const int64_t now = clock_.SteadyNanos();
  KeepPromptsInTime(now);
  std::vector<RunningCall> running;
  std::vector<Call*> candidates;
  int32_t decode_rows = 0;
  for (const auto& [ticket, call] : calls_) {
    if (call->phase != Phase::kRunning) continue;
    if (under_way_ != nullptr && !MayGoBetween(*call, now)) continue;
    const bool decoding = call->session->decoding();
    const bool room = call->sink->HasRoom();
    if (room && call->paused_since_ns != 0) call->pacer.Skip(now - call->paused_since_ns);
    call->paused_since_ns = room ? 0 : (call->paused_since_ns != 0 ? call->paused_since_ns : now);
    running.push_back({.order = call->order,
                       .decoding = decoding,
                       .pending_rows = call->session->pending_rows(),
                       .ready_rows = call->session->ready_rows(),
                       .paused = !room});
    candidates.push_back(call.get());
    if (decoding && room) ++decode_rows;
  }
  auto batch = std::make_unique<Batch>();
  const int32_t piece_rows = PieceRows(candidates, decode_rows, now);
  for (const PlannedRows& planned : PlanStep(running, piece_rows, now)) {
    Call* call = candidates[planned.call];
    const auto context = static_cast<int32_t>(batch->views.size());
    batch->views.push_back(call->session->View());
    const bool decode = running[planned.call].decoding;
    const bool wants_logits = call->session->AppendRows(planned.rows, context, &batch->rows);
    batch->parts.push_back(
        {.call = call, .rows = planned.rows, .decode = decode, .wants_logits = wants_logits});
    batch->has_prefill = batch->has_prefill || !decode;
    batch->has_decode = batch->has_decode || decode;
  }
  for (const engine::Row& row : batch->rows) {  // a negative level is the full model
    batch->expected_ms += (row.level < 0 ? paces_.back() : paces_[static_cast<size_t>(row.level)])
                              .RowsMs(1, row.position);
  }
  return batch;
}

// Rows of prompts in the next step, of `calls`, or in what goes in between.
int32_t Scheduler::PieceRows(std::span<Call* const> calls, int32_t decode_rows, int64_t now_ns) {
  if (decode_rows == 0 && under_way_ == nullptr) return kQuietRows;
  std::vector<AnswerTurn> answers;
  std::vector<PromptTurn> prompts;
  for (const Call* call : calls) {
    const size_t level = LevelOf(*call).value_or(paces_.size() - 1);
    if (call->session->decoding()) {
      if (call->paused_since_ns == 0) answers.push_back(AnswerTurnOf(*call, level));
    } else {
      prompts.push_back(TurnOf(*call, level));
    }
  }
  if (under_way_ != nullptr) {  // whose tokens come later by what goes in between
    for (const Batch::Part& part : under_way_->parts) {
      if (!part.decode) continue;
      ++decode_rows;
      answers.push_back(AnswerTurnOf(*part.call, LevelOf(*part.call).value_or(paces_.size() - 1)));
    }
  }
  const int32_t at_most = sizer_.Rows(decode_rows, RowShare(paces_, prompts));
  return RowsBeside(paces_, answers, prompts, at_most, slowdown_.value(), now_ns);
}

// What a step took of what it was expected to, as steps were lately; 1 where that says nothing.
double Scheduler::ShareOfExpected(const Batch& batch) const {
  if (!batch.has_prefill || batch.rows.size() < Slowdown::kManyRows) return 1;
  return static_cast<double>(batch.computed_ns) / 1e6 / (batch.expected_ms * slowdown_.value());
}

void Scheduler::AfterStep(const Batch& batch, std::span<const float> logits) {
  const double share = ShareOfExpected(batch);
  if (batch.has_prefill) ObservePrefill(batch);
  const int64_t ended_ns = clock_.SteadyNanos();
  const auto vocab = static_cast<size_t>(model_.info().vocab_size);
  size_t next_logits = 0;
  bool first_tokens = false, hurried = false;
  std::vector<Call*> going_on;
  for (const Batch::Part& part : batch.parts) {
    Call& call = *part.call;
    metrics_.Step(call.request.call_id, part.decode, part.rows, call.steps++, batch.started_ns,
                  ended_ns);
    call.session->Advance(part.rows);
    if (part.wants_logits) {
      const bool first = call.times.first_token_ns == 0;
      first_tokens = first_tokens || first;
      if (first) call.pacer.OnPrompt(share);
      hurried = hurried || (first && call.pacer.FirstTokenHurries(ended_ns));
      if (!TakeToken(call, logits.subspan(next_logits++ * vocab, vocab))) continue;
    } else if (call.request.report_progress && !part.decode) {
      const int32_t tokens = call.session->prefill_tokens();
      call.sink->Progress(tokens - call.session->pending_rows(), tokens);
    }
    going_on.push_back(&call);
  }
  // Every token has been told by now; what is next for their calls makes work for other threads.
  const auto threads = static_cast<unsigned>(model_.threads());
  if (first_tokens && threads >= std::thread::hardware_concurrency()) {
    std::this_thread::sleep_for(hurried ? kHurriedLead : kFirstTokenLead);
  }
  for (Call* call : going_on) GoOn(*call);
}

// Picks a call's next token and tells it; false: the call has failed and is gone.
bool Scheduler::TakeToken(Call& call, std::span<const float> logits) {
  const int64_t started = clock_.SteadyNanos();
  const auto delta = call.session->TakeLogits(logits);
  const int64_t now = clock_.SteadyNanos();
  if (!delta.ok()) {
    Fail(call, Annotate(delta.status(), "sampling"));
    return false;
  }
  metrics_.Sampling(call.request.call_id, started, now);
  if (call.times.first_token_ns == 0) {
    call.times.first_token_ns = now;
    call.times.prefill = now - call.phase_since_ns;
  }
  call.times.last_token_ns = now;
  if (delta->token.has_value()) {
    call.pacer.OnToken(now);
    if (std::exchange(call.level_changed, false)) {
      call.sink->LevelChanged(call.session->level_percent());
    }
  }
  if (delta->token.has_value() || !delta->text.empty()) call.sink->Delta(*delta);
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
    if (call.session->decoding()) KeepPace(call);
    ClaimAhead(call);
  }
}

void Scheduler::KeepPromptsInTime(int64_t now_ns) {
  std::vector<Call*> calls;
  std::vector<PromptTurn> prompts;
  for (const auto& [ticket, call] : calls_) {
    if (call->phase != Phase::kRunning || call->session->decoding() || UnderWay(*call)) continue;
    const std::optional<size_t> level = LevelOf(*call);
    if (!level.has_value()) continue;
    calls.push_back(call.get());
    prompts.push_back(TurnOf(*call, *level));
  }
  const std::vector<size_t> kept = KeepPrompts(paces_, prompts, slowdown_.value(), now_ns);
  for (size_t i = 0; i < kept.size(); ++i) Fall(*calls[i], prompts[i].level, kept[i]);
}

PromptTurn Scheduler::TurnOf(const Call& call, size_t level) const {
  return {.pacer = &call.pacer,
          .order = call.order,
          .rows = call.session->pending_rows(),
          .level = level,
          .depth = call.session->computed()};
}

AnswerTurn Scheduler::AnswerTurnOf(const Call& call, size_t level) {
  return {.pacer = &call.pacer, .level = level, .depth = call.session->computed()};
}

void Scheduler::KeepPace(Call& call) {
  const std::optional<size_t> level = LevelOf(call);
  if (level.has_value()) {
    Fall(call, *level, call.pacer.Choose(paces_, *level, call.session->computed()));
  }
}

// Index of a call's level among the model's; none: the model has no such level.
std::optional<size_t> Scheduler::LevelOf(const Call& call) const {
  const int32_t index = engine::LevelIndex(model_.info(), call.session->level_percent());
  return index < 0 ? std::nullopt : std::optional(static_cast<size_t>(index));
}

void Scheduler::Fall(Call& call, size_t from, size_t to) {
  if (to == from) return;
  call.session->LowerLevel(model_.info().levels[to].percent);
  call.level_changed = true;
  metrics_.LevelDropped();
}

void Scheduler::ClaimAhead(Call& call) {
  const int32_t ahead = call.session->decoding() ? kTokensAhead : kPromptAhead;
  if (const auto range = call.session->NextClaim(ahead)) {
    call.lease->Claim(range->first, range->count);
  }
}

}  // namespace withy::model_worker
