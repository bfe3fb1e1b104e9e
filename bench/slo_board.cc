#include "bench/slo_board.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "model_worker/pace.h"
#include "model_worker/plan.h"

namespace withy::bench {
namespace {

using orchestrator::CallTable;
using orchestrator::Lane;
using orchestrator::LiveCorrection;

constexpr uint32_t kNoLimit = 1u << 30;  // the queue of a benchmark is not bounded
constexpr size_t kTlmProbeBytes = 1024;
// How often a held call is looked at when nothing else happens.
constexpr int64_t kPollNs = 20 * kNanosPerMilli;

int64_t Nanos(double ms) { return static_cast<int64_t>(ms * kNanosPerMilli); }
double Millis(int64_t ns) { return static_cast<double>(ns) / kNanosPerMilli; }

orchestrator::CallTableOptions TableOptions(const BoardFacts& board, const Policy& policy) {
  const uint32_t slots = policy.family->switches() ? 1 : board.slots;
  return {.limit = kNoLimit, .slots = {slots, slots}, .piece_ms = board.piece_ms};
}

// A call between its arrival and its end.
struct Session {
  size_t index = 0;  // of the calls given
  uint64_t id = 0;
  SloChoice choice;
  orchestrator::QueueKey key;
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

class BoardRun {
 public:
  BoardRun(const BoardFacts& board, const Policy& policy, std::span<const PromptFacts> prompts,
           std::span<const SloCall> calls, uint64_t seed)
      : board_(board),
        policy_(policy),
        prompts_(prompts),
        calls_(calls),
        table_(TableOptions(board, policy), clock_),
        sizer_(board.cost.prefill_us_per_token, static_cast<int32_t>(board.piece_ms),
               board.max_piece_rows),
        rng_(seed),
        start_ns_(clock_.SteadyNanos()),
        last_planned_(policy.family->variants.size() - 1),
        loaded_(last_planned_),
        outcomes_(calls.size()) {
    live_.overhead_ms = live_.idle.overhead_ms = board.overhead_ms;
    live_.tlm_us_per_byte = board.tlm.Ms(kTlmProbeBytes) * 1e3 / kTlmProbeBytes;
    for (const Variant& variant : policy.family->variants) {
      const orchestrator::CostParameters cost = CalibratedCost(variant.times);
      if (policy.drops_level && paces_.empty()) lowest_ = cost;
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
        clock_.Advance(kPollNs);
      } else if (next_ < calls_.size()) {
        clock_.Advance(ArrivalNs(next_) - clock_.SteadyNanos());
      }
    }
    return std::move(outcomes_);
  }

 private:
  int64_t ArrivalNs(size_t index) const { return start_ns_ + Nanos(calls_[index].arrival_ms); }
  const PromptFacts& PromptOf(const Session& session) const {
    return prompts_[calls_[session.index].prompt];
  }
  const Variant& VariantOf(const Session& session) const {
    return policy_.family->variants[session.variant];
  }

  // Decides for everyone who has arrived.
  void Admit() {
    for (; next_ < calls_.size() && ArrivalNs(next_) <= clock_.SteadyNanos(); ++next_) {
      const SloCall& call = calls_[next_];
      auto session = std::make_unique<Session>();
      session->index = next_;
      session->id = next_ + 1;
      session->arrival_ns = ArrivalNs(next_);
      (void)table_.Arrive(session->id);  // never full
      Plan(call, session.get());
      waiting_.push_back(std::move(session));
    }
  }

  void Plan(const SloCall& call, Session* session) {
    const PromptFacts& prompt = prompts_[call.prompt];
    session->key = KeyOf(call, prompt, *session);
    orchestrator::Load load = table_.LoadBefore(Lane::kTarget, session->key);
    if (!policy_.minds_others) load.arrivals_per_ms = 0;
    SloChoice& choice = session->choice;
    choice = Choose(policy_, board_, prompt, call, load, live_, agreements_[call.app],
                    last_planned_, &rng_);
    last_planned_ = choice.variant;
    if (choice.tlm_ms > 0) {
      clock_.Advance(Nanos(choice.tlm_ms));
      orchestrator::Observation seen;
      seen.tlm_bytes = prompt.text_bytes;
      seen.tlm_ms = choice.tlm_ms;
      live_ = Learn(board_.cost, live_, seen);
    }
    session->variant = choice.variant;
    session->prefill = static_cast<int32_t>(choice.shape.prefill_tokens);
    session->answer = prompt.answer_tokens;
    orchestrator::CallDemand demand =
        DemandOf(board_.cost, live_, choice.shape, choice.predicted, lowest_);
    const auto after = [&](double ms) {
      return std::isfinite(ms) ? session->arrival_ns + Nanos(ms) : 0;
    };
    demand.first_token_by_ns = after(choice.judged.ttft_ms);
    demand.tpot_limit_ms = std::isfinite(choice.judged.tpot_ms) ? choice.judged.TokenMs() : 0;
    demand.ramp_ms = choice.judged.ramp_ms;
    demand.end_by_ns = after(choice.judged.end_to_end_ms);
    if (policy_.drops_level) {
      session->pacer = model_worker::Pacer({.tpot_ms = demand.tpot_limit_ms,
                                            .ramp_ms = demand.ramp_ms,
                                            .end_by_ns = demand.end_by_ns,
                                            .first_token_by_ns = demand.first_token_by_ns},
                                           static_cast<int32_t>(call.max_tokens));
    }
    table_.Queue(Lane::kTarget, session->key,
                 {.prefill_tokens = choice.shape.prefill_tokens,
                  .remaining_tokens = call.max_tokens,
                  .resident_tokens = choice.shape.resident_tokens},
                 demand);
  }

  // As orchestrator/prepare.cc: the first token's deadline.
  orchestrator::QueueKey KeyOf(const SloCall& call, const PromptFacts& prompt,
                               const Session& session) const {
    const orchestrator::Prediction full = PredictedFull(board_, prompt, call, live_);
    double first_ms = orchestrator::ResolveSlo(call.slo, full).ttft_ms;
    if (call.slo.end_to_end_ms() > 0) {
      first_ms = std::max(
          1.0, call.slo.end_to_end_ms() - (call.max_tokens - 1.0) * full.TpotMs(call.max_tokens));
    }
    orchestrator::QueueKey key{.arrived_ns = session.arrival_ns, .id = session.id};
    if (first_ms < Millis(orchestrator::kPatienceNs)) {
      key.deadline_ns = session.arrival_ns + Nanos(first_ms);
    }
    return key;
  }

  // Lets those run that the orchestrator would.
  void Start() {
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (!table_.Started(Lane::kTarget, (*it)->id)) {
        ++it;
        continue;
      }
      Session& session = **it;
      if (session.variant != loaded_) {
        const double ms = VariantOf(session).switch_ms;
        clock_.Advance(Nanos(ms));
        outcomes_[session.index].switch_ms = ms;
        loaded_ = session.variant;
      }
      session.granted_ns = clock_.SteadyNanos();
      running_.push_back(std::move(*it));
      it = waiting_.erase(it);
    }
  }

  // One pass of the engine, as model_worker/scheduler_step.cc plans it; `between` the beginning and
  // the end of another one: of the prompts that may go there. False: nothing is to be computed.
  bool Step(bool between = false) {
    const int64_t now = clock_.SteadyNanos();
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
      clock_.Advance(ns);
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
        next_ns = std::min(next_ns, std::max<int64_t>(0, ArrivalNs(next_) - clock_.SteadyNanos()));
      }
      if (!waiting_.empty()) next_ns = std::min(next_ns, kPollNs);
      clock_.Advance(next_ns);
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
    return {.deadline_ns = session.key.deadline_ns,
            .priority = 0,
            .arrived_ns = session.arrival_ns,
            .sequence = session.id};
  }

  void After(Session* session, int32_t rows) {
    session->computed += rows;
    if (!session->decoding() && session->computed < session->prefill) return;
    const int64_t now = clock_.SteadyNanos();
    if (!session->decoding()) {
      session->first_token_ns = now;
      session->first_variant = session->variant;
      table_.FirstToken(session->id);
    }
    ++session->generated;
    table_.Generated(session->id, 1);
    session->pacer.OnToken(now);
    if (session->generated >= session->answer) {
      Finish(*session);
    } else if (policy_.drops_level) {
      session->variant = session->pacer.Choose(paces_, session->variant, session->computed);
    }
  }

  void Finish(const Session& session) {
    const int64_t now = clock_.SteadyNanos();
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
    out.met = MeetsSlo(call.slo, IdleFull(board_, PromptOf(session)), out.ttft_ms, out.tpot_ms,
                       out.end_to_end_ms);
    out.fell = session.variant != session.choice.variant;
    out.right =
        row.right[first_pair + session.choice.variant] && row.right[first_pair + session.variant];
    out.prompt_percent = policy_.answers->prompt_levels[session.choice.prompt_level];
    out.model_percent = policy_.family->variants[session.choice.variant].percent;
    Observe(session, now);
    if (policy_.audits) Audit(session, row);
    table_.Leave(session.id);
  }

  // As orchestrator/auditor.h, but at once and for nothing: the board has idle time enough. Whether
  // two wrong answers are the same is not known; they count as such.
  void Audit(const Session& session, const Answers::Row& row) {
    const size_t app = calls_[session.index].app;
    if (audited_[app]++ >= orchestrator::Agreement::kFirstAnswers) return;
    const size_t variants = policy_.family->variants.size();
    const size_t first_pair = session.choice.prompt_level * variants;
    for (size_t v = 0; v + 1 < variants; ++v) {
      agreements_[app].Learn(policy_.family->variants[v].percent,
                             row.right[first_pair + v] == row.right[first_pair + variants - 1]);
    }
  }

  // As orchestrator/generate.cc learns from a finished call.
  void Observe(const Session& session, int64_t now) {
    const orchestrator::DecodeSurroundings around = table_.Surroundings(session.id);
    orchestrator::Observation seen;
    seen.level = session.choice.shape.level;
    seen.level_percent = session.choice.shape.level_percent;
    if (session.first_variant == session.choice.variant) {
      seen.prefilled_tokens = static_cast<uint32_t>(session.prefill);
      seen.prefill_ms = Millis(session.first_token_ns - session.granted_ns);
    }
    seen.overhead_ms = board_.overhead_ms;
    seen.decoded_tokens = static_cast<uint32_t>(session.answer - 1);
    if (session.variant == session.choice.variant)
      seen.decode_ms = Millis(now - session.first_token_ns);
    seen.mean_decode_rows = around.mean_rows;
    seen.other_depth_tokens = around.other_depth_tokens;
    seen.foreign_prefill_ms = orchestrator::ForeignPrefillMs(
        board_.cost, live_, around.foreign_prefill_tokens, around.foreign_prefill_context);
    seen.complete = true;
    seen.full_alone =
        around.alone && policy_.family->variants[session.choice.variant].percent == 100;
    const orchestrator::Prediction& predicted = session.choice.predicted;
    seen.app = std::to_string(calls_[session.index].app);
    seen.ttft_share = outcomes_[session.index].ttft_ms / predicted.ttft_ms;
    if (session.answer > 1 && session.variant == session.choice.variant)
      seen.tpot_share = outcomes_[session.index].tpot_ms / predicted.TpotMs(session.answer);
    live_ = Learn(board_.cost, live_, seen);
  }

  const BoardFacts& board_;
  const Policy& policy_;
  const std::span<const PromptFacts> prompts_;
  const std::span<const SloCall> calls_;
  FakeClock clock_;
  CallTable table_;
  model_worker::PieceSizer sizer_;
  corpus::Rng rng_;
  LiveCorrection live_;
  std::map<size_t, orchestrator::Agreement> agreements_;  // by app
  std::map<size_t, uint32_t> audited_;                    // calls, by app
  std::vector<model_worker::LevelPace> paces_;
  model_worker::Slowdown slowdown_;
  int64_t pass_left_ns_ = 0;                            // of the pass under way
  bool pass_decodes_ = false;                           // it has rows of answers
  std::optional<orchestrator::CostParameters> lowest_;  // that calls may fall to
  const int64_t start_ns_;
  size_t next_ = 0;
  size_t last_planned_;  // variant of the call decided for last
  size_t loaded_;        // variant that is in place
  std::vector<std::unique_ptr<Session>> waiting_, running_;
  std::vector<SloOutcome> outcomes_;
};

}  // namespace

IdleTimes IdleFull(const BoardFacts& board, const PromptFacts& prompt) {
  IdleTimes idle;
  idle.ttft_ms = board.overhead_ms + PrefillMs(board.full, prompt.tokens);
  idle.tpot_ms = DecodeMs(board.full, prompt.tokens, std::max(2, prompt.answer_tokens));
  idle.end_to_end_ms = idle.ttft_ms + (prompt.answer_tokens - 1) * idle.tpot_ms;
  return idle;
}

bool MeetsSlo(const v1::Slo& slo, const IdleTimes& full, double ttft_ms, double tpot_ms,
              double end_to_end_ms) {
  orchestrator::Prediction denominators;
  denominators.ttft_ms = full.ttft_ms;
  denominators.tpot_ms = full.tpot_ms;
  denominators.end_to_end_ms = full.end_to_end_ms;
  v1::Latency latency;
  latency.set_ttft_ms(ttft_ms);
  latency.set_tpot_ms(tpot_ms);
  latency.set_end_to_end_ms(end_to_end_ms);
  return orchestrator::Meets(
      orchestrator::Tolerate(slo, orchestrator::ResolveSlo(slo, denominators)), latency,
      denominators.answer_tokens);
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
