#include "bench/slo/slo_board.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "policy/board/step_learner.h"
#include "policy/call/admission.h"
#include "policy/call/finished_call.h"
#include "policy/call/level_pace.h"
#include "policy/call/pace.h"
#include "policy/call/prompt_level.h"
#include "policy/step/step_plan.h"

namespace withy::bench {
namespace {

using policy::Lane;

constexpr uint32_t kNoQueueLimit = 1u << 30;  // the queue of a benchmark is not bounded
constexpr size_t kTlmProbeBytes = 1024;

constexpr int64_t kStartNs = 1;  // 0 means "none"

int64_t Nanos(double ms) { return static_cast<int64_t>(ms * kNanosPerMilli); }
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
  policy::Pacer pacer;
  int32_t pass_rows = 0;  // in a pass that has begun

  int32_t pending_rows() const { return decoding() ? 1 : prefill - computed; }
  bool decoding() const { return generated > 0; }
};

// Times of a family's variants, as the worker plans steps by them.
std::vector<policy::LevelPace> PacesOf(const Family& family) {
  std::vector<policy::LevelPace> paces;
  for (const Variant& variant : family.variants) {
    paces.push_back(policy::LevelPaceOf(CalibratedCost(variant.times)));
  }
  return paces;
}

// A pass of the engine that has begun.
struct Pass {
  policy::StepPlan plan;
  std::vector<Session*> sessions;  // by plan.entries
  int64_t started_ns = 0;
  int64_t ns = 0;  // that it takes
  int64_t done_ns = 0;
  bool preempted = false;
  std::optional<policy::SlowStepWatch> watch = std::nullopt;

  double done() const { return static_cast<double>(done_ns) / static_cast<double>(ns); }
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
        paces_(PacesOf(*policy.family)),
        learner_({.us_per_row = board.cost.prefill_us_per_token,
                  .full_row_ms = paces_.back().row_ms,
                  .piece_ms = static_cast<int32_t>(board.piece_ms),
                  .max_rows = board.max_piece_rows}),
        rng_(seed),
        last_planned_(policy.family->variants.size() - 1),
        loaded_(last_planned_),
        outcomes_(calls.size()) {
    live_.overhead_ms = live_.idle.overhead_ms = board.overhead_ms;
    live_.tlm_us_per_byte = live_.tlm_start_us_per_byte =
        board.tlm.Ms(kTlmProbeBytes) * 1e3 / kTlmProbeBytes;
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

  // Decides for all calls that have arrived.
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
      session->pacer = policy::Pacer(demand.targets, static_cast<int32_t>(call.max_tokens));
    }
    admission_.Queue(Lane::kTarget, choice.turn, choice.plan.work, demand);
  }

  // Starts the calls that admission lets run.
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

  // One pass of the engine. False: nothing is to be computed.
  bool Step() {
    Pass pass = Begin(std::nullopt, now_ns_);
    if (pass.plan.empty()) return false;
    if (Compute(&pass, /*may_be_preempted=*/true)) Finish(pass);
    return true;
  }

  // The next pass, or what goes in the middle of one that began at `step_began_ns`.
  Pass Begin(std::optional<policy::StepUnderWay> under_way, int64_t step_began_ns) {
    std::vector<policy::StepCall> calls;
    std::vector<Session*> sessions;
    for (const auto& session : running_) {
      calls.push_back({.turn = session->choice.turn,
                       .pacer = &session->pacer,
                       .level = session->variant,
                       .decoding = session->decoding(),
                       .pending_rows = session->pending_rows(),
                       .ready_rows = session->pending_rows(),
                       .depth = session->computed,
                       .begun = session->computed > 0,
                       .under_way_rows = session->pass_rows});
      sessions.push_back(session.get());
    }
    const double slowdown = learner_.slowdown(step_began_ns);
    Pass pass{.plan = policy::PlanStep({.levels = paces_,
                                        .calls = calls,
                                        .under_way = under_way,
                                        .slowdown = slowdown,
                                        .sizer = learner_.sizer(),
                                        .now_ns = now_ns_}),
              .sessions = {},
              .started_ns = now_ns_};
    for (const policy::LevelChange& change : pass.plan.level_changes) {
      sessions[change.call]->variant = change.to;
    }
    std::vector<StepPart> parts;
    for (const policy::StepEntry& entry : pass.plan.entries) {
      Session& session = *pass.sessions.emplace_back(sessions[entry.call]);
      session.pass_rows = entry.rows;
      parts.push_back({&VariantOf(session).times, entry.rows, session.computed});
    }
    pass.ns = std::max<int64_t>(1, Nanos(StepMs(parts)));
    if (const Session* prompt = OnlyPromptOf(pass);
        prompt != nullptr &&
        policy::SlowStepWatch::IsNeeded(paces_, TurnOf(*prompt), slowdown, now_ns_)) {
      pass.watch.emplace();
    }
    return pass;
  }

  static Session* OnlyPromptOf(const Pass& pass) {
    const policy::StepEntry* entry = pass.plan.OnlyPrompt();
    return entry != nullptr ? pass.sessions[static_cast<size_t>(entry - pass.plan.entries.data())]
                            : nullptr;
  }
  static policy::PromptTurn TurnOf(const Session& session) {
    return {.pacer = &session.pacer,
            .turn = session.choice.turn,
            .rows = session.pending_rows(),
            .level = session.variant,
            .depth = session.computed};
  }

  // Lets a pass go by. Meanwhile calls arrive, and what may go in its middle does. False: its
  // prompt begins again at a lower level.
  bool Compute(Pass* pass, bool may_be_preempted) {
    while (true) {
      int64_t next_ns = pass->ns - pass->done_ns;
      if (pass->watch.has_value() && pass->watch->next_look() < 1) {
        const auto look_ns = static_cast<int64_t>(
            std::ceil(pass->watch->next_look() * static_cast<double>(pass->ns)));
        next_ns = std::clamp<int64_t>(look_ns - pass->done_ns, 0, next_ns);
      }
      if (may_be_preempted && next_ < calls_.size()) {
        next_ns = std::min(next_ns, std::max<int64_t>(0, ArrivalNs(next_) - now_ns_));
      }
      if (may_be_preempted && !waiting_.empty()) next_ns = std::min(next_ns, policy::kHoldPollNs);
      now_ns_ += next_ns;
      pass->done_ns += next_ns;
      if (!Look(pass)) return false;
      if (pass->done_ns >= pass->ns) return true;
      if (!may_be_preempted) continue;
      Admit();
      Start();
      while (Preempt(pass)) {
      }
    }
  }

  // False: the pass is slow and is given up.
  bool Look(Pass* pass) {
    if (!pass->watch.has_value() || pass->done() < pass->watch->next_look()) return true;
    pass->watch->Look(pass->done(), Millis(pass->done_ns));
    if (pass->watch->next_look() < 1) return true;
    Session& prompt = *OnlyPromptOf(*pass);
    const size_t level = pass->watch->RestartLevel(paces_, TurnOf(prompt), prompt.pass_rows,
                                                   pass->plan.expected_ms, now_ns_);
    if (level == prompt.variant) return true;
    prompt.variant = level;
    for (Session* session : pass->sessions) session->pass_rows = 0;
    return false;
  }

  // Computes what goes in the middle of a pass. False: nothing does.
  bool Preempt(Pass* pass) {
    Pass between = Begin(policy::StepUnderWay{.expected_ms = pass->plan.expected_ms,
                                              .computed_ms = Millis(pass->done_ns),
                                              .done = pass->done(),
                                              .preempted = pass->preempted},
                         pass->started_ns);
    if (between.plan.empty()) return false;
    pass->preempted = true;
    if (Compute(&between, /*may_be_preempted=*/false)) Finish(between);
    return true;
  }

  void Finish(const Pass& pass) {
    const double share = learner_.Observe(pass.plan, {.ms = Millis(pass.ns),
                                                      .started_ns = pass.started_ns,
                                                      .ended_ns = now_ns_,
                                                      .preempted = pass.preempted});
    live_.TellSlowdown(learner_.board().slowdown());
    for (size_t i = 0; i < pass.sessions.size(); ++i) {
      pass.sessions[i]->pass_rows = 0;
      After(pass.sessions[i], pass.plan.entries[i].rows, share);
    }
    std::erase_if(running_,
                  [](const auto& session) { return session->generated >= session->answer; });
  }

  // `share`: what the pass took of what such passes took lately.
  void After(Session* session, int32_t rows, double share) {
    session->computed += rows;
    if (!session->decoding() && session->computed < session->prefill) return;
    const int64_t now = now_ns_;
    if (!session->decoding()) {
      session->first_token_ns = now;
      session->first_variant = session->variant;
      session->pacer.OnPromptStep(share);
      admission_.FirstToken(session->id, now);
    }
    ++session->generated;
    admission_.Generated(session->id, 1, now);
    session->pacer.OnTokens(now);
    if (session->generated >= session->answer) {
      End(*session);
    } else if (policy_.drops_level) {
      session->variant = session->pacer.Choose(paces_, session->variant, session->computed);
    }
  }

  void End(const Session& session) {
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

  // Compares levels as the orchestrator's audits do, but at once and at no cost: the board has idle
  // time enough. Two wrong answers count as equal, since it is not known whether they are.
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
  const std::vector<policy::LevelPace> paces_;
  policy::StepLearner learner_;
  corpus::Rng rng_;
  policy::LiveCorrection live_;
  std::map<size_t, policy::Agreement> agreements_;  // by app
  std::map<size_t, uint32_t> audited_;              // calls, by app
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
