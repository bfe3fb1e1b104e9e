#include "bench/slo_board.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "base/clock.h"
#include "model_worker/pace.h"
#include "model_worker/plan.h"
#include "policy/admission.h"
#include "policy/finished_call.h"

namespace withy::bench {
namespace {

using policy::Lane;

constexpr uint32_t kNoQueueLimit = 1u << 30;  // the queue of a benchmark is not bounded
constexpr size_t kTlmProbeBytes = 1024;

constexpr int64_t kStartNs = 1;  // 0 means "none"

int64_t Nanos(double ms) { return static_cast<int64_t>(ms * kNanosPerMilli); }
double Millis(int64_t ns) { return static_cast<double>(ns) / kNanosPerMilli; }

policy::AdmissionOptions OptionsOf(const BoardFacts& board, const Policy& policy) {
  const uint32_t slots = policy.family->switches() ? 1 : board.slots;
  return {.limit = kNoQueueLimit, .slots = {slots, slots}, .piece_ms = board.piece_ms};
}

// A call between its arrival and its end.
struct Session {
  size_t index = 0;  // of the calls given
  uint64_t id = 0;
  SloChoice choice;
  int64_t arrival_ns = 0;
  int64_t granted_ns = 0;
  int64_t first_token_ns = 0;
  int32_t computed = 0;  // tokens with KV
  int32_t prefill = 0;   // tokens of the prompt that is computed
  int32_t generated = 0;
  int32_t answer = 1;
  size_t variant = 0;        // now
  size_t first_variant = 0;  // of the first token
  model_worker::Pacer pacer;
  int32_t pass_rows = 0;  // in a pass that has begun

  bool in_pass() const { return pass_rows > 0; }
  bool decoding() const { return generated > 0; }
};

class BoardRun final : public DecidingBoard {
 public:
  BoardRun(const BoardFacts& board, const Policy& policy, std::span<const PromptFacts> prompts,
           std::span<const SloCall> calls, uint64_t seed)
      : board_(board),
        policy_(policy),
        prompts_(prompts),
        calls_(calls),
        admission_(OptionsOf(board, policy)),
        sizer_(board.cost.prefill_us_per_token, static_cast<int32_t>(board.piece_ms),
               board.max_piece_rows),
        rng_(seed),
        last_planned_(policy.family->variants.size() - 1),
        loaded_(last_planned_),
        outcomes_(calls.size()) {
    live_.overhead_ms = live_.idle.overhead_ms = board.overhead_ms;
    live_.tlm_us_per_byte = live_.tlm_start_us_per_byte =
        board.tlm.Ms(kTlmProbeBytes) * 1e3 / kTlmProbeBytes;
    for (const Variant& variant : policy.family->variants) {
      const policy::CostParameters cost = CalibratedCost(variant.times);
      // As model_worker/process.cc.
      const double depth_us = cost.prefill_us_per_context_token;
      const double mean_us = cost.prefill_us_per_token;
      const double row_us =
          std::max(mean_us / 2, mean_us - depth_us * cost.prefill.back().tokens / 2);
      paces_.push_back({.row_ms = row_us / 1e3,
                        .token_ms = cost.decode_us_per_token / 1e3,
                        .row_depth_ms = depth_us / 1e3,
                        .token_depth_ms = cost.decode_us_per_context_token / 1e3});
    }
  }

  std::vector<SloOutcome> Run() {
    while (next_ < calls_.size() || !waiting_.empty() || !running_.empty()) {
      Admit();
      Start();
      if (!running_.empty()) {
        Step();
      } else if (!waiting_.empty()) {
        now_ns_ += policy::kHoldPollNs;
      } else if (next_ < calls_.size()) {
        now_ns_ += ArrivalNs(next_) - now_ns_;
      }
    }
    return std::move(outcomes_);
  }

  // DecidingBoard
  policy::Load LoadBefore(const policy::Turn& turn) override {
    policy::Load load = admission_.LoadBefore(Lane::kTarget, turn, now_ns_);
    if (!policy_.minds_others) load.arrivals_per_ms = 0;
    return load;
  }
  void Spend(double ms) override { now_ns_ += Nanos(ms); }
  void Learn(const policy::Observation& seen) override {
    live_ = policy::Learn(board_.cost, live_, seen);
  }

 private:
  int64_t ArrivalNs(size_t index) const { return kStartNs + Nanos(calls_[index].arrival_ms); }
  const PromptFacts& PromptOf(const Session& session) const {
    return prompts_[calls_[session.index].prompt];
  }
  const Variant& VariantOf(const Session& session) const {
    return policy_.family->variants[session.variant];
  }

  // Decides for everyone who has arrived.
  void Admit() {
    for (; next_ < calls_.size() && ArrivalNs(next_) <= now_ns_; ++next_) {
      const SloCall& call = calls_[next_];
      auto session = std::make_unique<Session>();
      session->index = next_;
      session->id = next_ + 1;
      session->arrival_ns = ArrivalNs(next_);
      (void)admission_.Arrive(session->id, now_ns_);  // never full
      Plan(call, session.get());
      waiting_.push_back(std::move(session));
    }
  }

  void Plan(const SloCall& call, Session* session) {
    const PromptFacts& prompt = prompts_[call.prompt];
    SloChoice& choice = session->choice;
    choice = Choose(policy_, board_, prompt, call,
                    {.id = session->id,
                     .arrived_ns = session->arrival_ns,
                     .live = live_,
                     .agreement = agreements_[call.app],
                     .last_variant = last_planned_},
                    *this, &rng_);
    last_planned_ = choice.variant;
    session->variant = choice.variant;
    session->prefill = static_cast<int32_t>(choice.plan.shape.prefill_tokens);
    session->answer = prompt.answer_tokens;
    const policy::CallDemand& demand = choice.plan.demand;
    if (policy_.drops_level) {
      const policy::CallTargets& targets = demand.targets;
      session->pacer = model_worker::Pacer(
          {.tpot_ms = targets.tpot_ms < policy::kNoLimit ? targets.TokenMs() : 0,
           .ramp_ms = targets.ramp_ms,
           .end_by_ns = targets.EndByNs(),
           .first_token_by_ns = targets.FirstTokenByNs()},
          static_cast<int32_t>(call.max_tokens));
    }
    admission_.Queue(Lane::kTarget, choice.turn, choice.plan.work, demand);
  }

  // Lets those run that the orchestrator would.
  void Start() {
    admission_.StartReady(Lane::kTarget, now_ns_);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (!admission_.running((*it)->id)) {
        ++it;
        continue;
      }
      Session& session = **it;
      if (session.variant != loaded_) {
        const double ms = VariantOf(session).switch_ms;
        now_ns_ += Nanos(ms);
        outcomes_[session.index].switch_ms = ms;
        loaded_ = session.variant;
      }
      session.granted_ns = now_ns_;
      running_.push_back(std::move(*it));
      it = waiting_.erase(it);
    }
  }

  // One pass of the engine, as model_worker/scheduler_step.cc plans it; `between` the beginning and
  // the end of another one: of the prompts that may go there. False: nothing is to be computed.
  bool Step(bool between = false) {
    const int64_t now = now_ns_;
    if (policy_.drops_level) KeepPromptsInTime(now);
    std::vector<model_worker::RunningCall> rows;
    std::vector<Session*> sessions;
    int32_t decode_rows = 0;
    for (const auto& session : running_) {
      if (session->in_pass() || (between && !MayGoBetween(*session, now))) continue;
      const int32_t pending = session->decoding() ? 1 : session->prefill - session->computed;
      rows.push_back({.order = OrderOf(*session),
                      .decoding = session->decoding(),
                      .pending_rows = pending,
                      .ready_rows = pending,
                      .paused = false});
      sessions.push_back(session.get());
      decode_rows += session->decoding() ? 1 : 0;
    }
    const int32_t piece_rows = PieceRows(sessions, decode_rows, between, now);
    const std::vector<model_worker::PlannedRows> plan =
        model_worker::PlanStep(rows, piece_rows, now);
    if (plan.empty()) return false;
    std::vector<StepPart> parts;
    int32_t all_rows = 0;
    double expected_ms = 0;
    bool prefills = false;
    for (const model_worker::PlannedRows& planned : plan) {
      Session& session = *sessions[planned.call];
      session.pass_rows = planned.rows;
      parts.push_back({&VariantOf(session).times, planned.rows, session.computed});
      expected_ms += paces_[session.variant].RowsMs(planned.rows, session.computed);
      all_rows += planned.rows;
      prefills = prefills || !session.decoding();
    }
    const double ms = StepMs(parts);
    const int64_t ns = std::max<int64_t>(1, Nanos(ms));
    if (between) {
      now_ns_ += ns;
    } else {
      pass_decodes_ = decode_rows > 0;
      Compute(ns);
    }
    if (prefills && decode_rows > 0) sizer_.Observe(expected_ms / paces_.back().row_ms, ms * 1e3);
    if (prefills && static_cast<size_t>(all_rows) >= model_worker::Slowdown::kManyRows) {
      slowdown_.Observe(ms, expected_ms);
    }
    for (const model_worker::PlannedRows& planned : plan) {
      sessions[planned.call]->pass_rows = 0;
      After(sessions[planned.call], planned.rows);
    }
    std::erase_if(running_,
                  [](const auto& session) { return session->generated >= session->answer; });
    return true;
  }

  int32_t PieceRows(const std::vector<Session*>& sessions, int32_t decode_rows, bool between,
                    int64_t now) const {
    if (decode_rows == 0 && !between) return model_worker::kQuietRows;
    std::vector<model_worker::AnswerTurn> answers;
    std::vector<model_worker::PromptTurn> prompts;
    for (const Session* session : sessions) {
      if (session->decoding()) {
        answers.push_back(AnswerTurnOf(*session));
      } else {
        prompts.push_back(TurnOf(*session));
      }
    }
    const int32_t at_most = sizer_.Rows(decode_rows, RowShare(paces_, prompts));
    return RowsBeside(paces_, answers, prompts, at_most, slowdown_.value(), now);
  }

  static model_worker::PromptTurn TurnOf(const Session& session) {
    return {.pacer = &session.pacer,
            .order = OrderOf(session),
            .rows = session.prefill - session.computed,
            .level = session.variant,
            .depth = session.computed};
  }
  static model_worker::AnswerTurn AnswerTurnOf(const Session& session) {
    return {.pacer = &session.pacer, .level = session.variant, .depth = session.computed};
  }

  // Lets a pass of `ns` go by, which those who arrive, or may start at last, may go between:
  // once where answers wait for it.
  void Compute(int64_t ns) {
    bool gave_way = false;
    for (pass_left_ns_ = ns; pass_left_ns_ > 0;) {
      int64_t next_ns = pass_left_ns_;
      if (next_ < calls_.size()) {
        next_ns = std::min(next_ns, std::max<int64_t>(0, ArrivalNs(next_) - now_ns_));
      }
      if (!waiting_.empty()) next_ns = std::min(next_ns, policy::kHoldPollNs);
      now_ns_ += next_ns;
      pass_left_ns_ -= next_ns;
      if (pass_left_ns_ == 0) return;
      Admit();
      Start();
      while (!(pass_decodes_ && gave_way) && Step(/*between=*/true)) gave_way = true;
    }
  }

  bool MayGoBetween(const Session& session, int64_t now) const {
    std::vector<model_worker::CallOrder> orders;
    std::vector<model_worker::PromptTurn> prompts;
    for (const auto& other : running_) {
      if (!other->in_pass() || other->decoding()) continue;
      orders.push_back(OrderOf(*other));
      prompts.push_back(TurnOf(*other));
      prompts.back().rows -= other->pass_rows;
      prompts.back().depth += other->pass_rows;
    }
    if (!session.decoding())
      return GoesBetween(OrderOf(session), session.computed > 0, orders, now);
    return !pass_decodes_ && TokenGoesBetween(paces_, AnswerTurnOf(session), prompts,
                                              Millis(pass_left_ns_), slowdown_.value(), now);
  }

  void KeepPromptsInTime(int64_t now) {
    std::vector<Session*> sessions;
    std::vector<model_worker::PromptTurn> prompts;
    for (const auto& session : running_) {
      if (session->decoding() || session->in_pass()) continue;
      sessions.push_back(session.get());
      prompts.push_back(TurnOf(*session));
    }
    const std::vector<size_t> kept = KeepPrompts(paces_, prompts, slowdown_.value(), now);
    for (size_t i = 0; i < kept.size(); ++i) sessions[i]->variant = kept[i];
  }

  static model_worker::CallOrder OrderOf(const Session& session) {
    return {.deadline_ns = session.choice.turn.deadline_ns,
            .priority = 0,
            .arrived_ns = session.arrival_ns,
            .sequence = session.id};
  }

  void After(Session* session, int32_t rows) {
    session->computed += rows;
    if (!session->decoding() && session->computed < session->prefill) return;
    const int64_t now = now_ns_;
    if (!session->decoding()) {
      session->first_token_ns = now;
      session->first_variant = session->variant;
      admission_.FirstToken(session->id, now);
    }
    ++session->generated;
    admission_.Generated(session->id, 1, now);
    session->pacer.OnToken(now);
    if (session->generated >= session->answer) {
      Finish(*session);
    } else if (policy_.drops_level) {
      session->variant = session->pacer.Choose(paces_, session->variant, session->computed);
    }
  }

  void Finish(const Session& session) {
    const int64_t now = now_ns_;
    const SloCall& call = calls_[session.index];
    const Answers::Row& row = policy_.answers->rows[call.prompt];
    const size_t variants = policy_.family->variants.size();
    const size_t first_pair = session.choice.prompt_level * variants;
    SloOutcome& out = outcomes_[session.index];
    // What is not computing comes on top.
    out.ttft_ms = Millis(session.first_token_ns - session.arrival_ns) + board_.overhead_ms;
    out.tpot_ms =
        session.answer > 1 ? Millis(now - session.first_token_ns) / (session.answer - 1) : 0;
    out.end_to_end_ms = Millis(now - session.arrival_ns) + board_.overhead_ms;
    out.tlm_ms = session.choice.tlm_ms;
    out.met = MeetsSlo(call.slo, IdleFull(board_, PromptOf(session)),
                       {out.ttft_ms, out.tpot_ms, out.end_to_end_ms});
    out.fell = session.variant != session.choice.variant;
    out.right =
        row.right[first_pair + session.choice.variant] && row.right[first_pair + session.variant];
    out.prompt_percent = policy_.answers->prompt_levels[session.choice.prompt_level];
    out.model_percent = policy_.family->variants[session.choice.variant].percent;
    LearnFrom(session, now);
    if (policy_.audits) Audit(session, row);
    admission_.Leave(session.id, now);
  }

  // As orchestrator/auditor.h, but at once and for nothing: the board has idle time enough. Whether
  // two wrong answers are the same is not known; they count as such.
  void Audit(const Session& session, const Answers::Row& row) {
    const size_t app = calls_[session.index].app;
    if (audited_[app]++ >= policy::kFirstAudits) return;
    const size_t variants = policy_.family->variants.size();
    const size_t first_pair = session.choice.prompt_level * variants;
    for (size_t v = 0; v + 1 < variants; ++v) {
      agreements_[app].Learn(policy_.family->variants[v].percent,
                             row.right[first_pair + v] == row.right[first_pair + variants - 1]);
    }
  }

  // As the service, of a call that has just finished.
  void LearnFrom(const Session& session, int64_t now) {
    const SloOutcome& out = outcomes_[session.index];
    const policy::FinishedCall call{
        .app = std::to_string(calls_[session.index].app),
        .measured = {out.ttft_ms, out.tpot_ms, out.end_to_end_ms},
        .decode_ms = Millis(now - session.first_token_ns),
        .tokens = static_cast<uint32_t>(session.answer),
        .prefilled_tokens = static_cast<uint32_t>(session.prefill),
        .prefill_ms = Millis(session.first_token_ns - session.granted_ns),
        .overhead_ms = board_.overhead_ms,
        .first_as_decided = session.first_variant == session.choice.variant,
        .all_as_decided = session.variant == session.choice.variant,
        .complete = true};
    Learn(policy::ObservationOf(session.choice.plan, call, admission_.Surroundings(session.id, now),
                                board_.cost, live_));
  }

  const BoardFacts& board_;
  const Policy& policy_;
  const std::span<const PromptFacts> prompts_;
  const std::span<const SloCall> calls_;
  int64_t now_ns_ = kStartNs;  // steady time of the board
  policy::Admission admission_;
  model_worker::PieceSizer sizer_;
  corpus::Rng rng_;
  policy::LiveCorrection live_;
  std::map<size_t, policy::Agreement> agreements_;  // by app
  std::map<size_t, uint32_t> audited_;              // calls, by app
  std::vector<model_worker::LevelPace> paces_;
  model_worker::Slowdown slowdown_;
  int64_t pass_left_ns_ = 0;   // of the pass under way
  bool pass_decodes_ = false;  // it has rows of answers
  size_t next_ = 0;
  size_t last_planned_;  // variant of the call decided for last
  size_t loaded_;        // variant that is in place
  std::vector<std::unique_ptr<Session>> waiting_, running_;
  std::vector<SloOutcome> outcomes_;
};

}  // namespace

policy::Latency IdleFull(const BoardFacts& board, const PromptFacts& prompt) {
  policy::Latency idle;
  idle.ttft_ms = board.overhead_ms + PrefillMs(board.full, prompt.tokens);
  idle.tpot_ms = DecodeMs(board.full, prompt.tokens, std::max(2, prompt.answer_tokens));
  idle.end_to_end_ms = idle.ttft_ms + (prompt.answer_tokens - 1) * idle.tpot_ms;
  return idle;
}

bool MeetsSlo(const policy::Slo& slo, const policy::Latency& full, const policy::Latency& seen) {
  const policy::AnswerLatency denominators{full};
  const policy::CallTargets targets = policy::Tolerate(slo, policy::ResolveSlo(slo, denominators));
  return policy::Meets(targets, seen, targets.answer_tokens);
}

std::vector<SloOutcome> RunBoard(const BoardFacts& board, const Policy& policy,
                                 std::span<const PromptFacts> prompts,
                                 std::span<const SloCall> calls, uint64_t seed) {
  return BoardRun(board, policy, prompts, calls, seed).Run();
}

SloScore ScoreOf(std::span<const SloOutcome> outcomes) {
  SloScore score;
  double several = 0;
  for (const SloOutcome& outcome : outcomes) {
    score.slo_met += outcome.met ? 1 : 0;
    score.accuracy += outcome.met && outcome.right ? 1 : 0;
    score.right_anyway += outcome.right ? 1 : 0;
    score.mean_ttft_ms += outcome.ttft_ms;
    score.mean_tpot_ms += outcome.tpot_ms;
    several += outcome.tpot_ms > 0 ? 1 : 0;
    score.mean_tlm_ms += outcome.tlm_ms;
    score.mean_switch_ms += outcome.switch_ms;
  }
  const double count = std::max<double>(1, static_cast<double>(outcomes.size()));
  for (double* sum : {&score.slo_met, &score.accuracy, &score.right_anyway, &score.mean_ttft_ms,
                      &score.mean_tlm_ms, &score.mean_switch_ms}) {
    *sum /= count;
  }
  score.mean_tpot_ms /= std::max(1.0, several);
  return score;
}

}  // namespace withy::bench
