// Whether and with which sources a context's next decode step is drafted, so that speculation is
// never slower than plain decoding by more than a bounded share. Pure: fed with what passes gave
// and took. Neighbours: tree_budget.h weighs rows, draft_confidence.h learns acceptance; the worker
// has one SpeculationState a context and one an app.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "policy/draft/draft_confidence.h"
#include "policy/draft/draft_tree.h"
#include "policy/draft/tree_budget.h"

namespace withy::policy {

// What the caller allows.
enum class SpeculationMode : uint8_t { kAuto, kOff, kLookup, kPrefix, kDraft, kHead };

// Whether `mode` allows a source.
bool Allows(SpeculationMode mode, DraftSourceKind source);

// Bounds what speculation may lose. All time that plain decoding would take earns a share of it
// (kMostLoss), and a pass may be tried only if the worst that it can lose, all its drafts refused,
// has been earned or gained before. So the time taken is at most
// (1 + kMostLoss) * plain time + first credit, whatever the drafts are. Not thread-safe.
class LossLimit {
 public:
  // `first_tokens`: the first credit, in plain passes.
  explicit LossLimit(double first_tokens) : first_tokens_(first_tokens) {}

  // Whether a pass may be tried that takes `pass_ms`, drafting included, where a plain one takes
  // `plain_ms`.
  bool Affords(double pass_ms, double plain_ms) const;
  // Whether so many plain passes' time may be lost.
  bool AffordsLoss(double tokens) const { return credit_tokens_.value_or(first_tokens_) >= tokens; }
  // A pass gave `tokens` and took `ms`; plain decoding takes `plain_ms` a token.
  void OnPass(double tokens, double ms, double plain_ms);

 private:
  const double first_tokens_;
  std::optional<double> credit_tokens_;  // in plain passes
};

// How much a source of drafts that takes time of its own has gained of late. Not thread-safe.
class SourceGain {
 public:
  // Ratio of tokens per time to plain decoding; kHoped before anything is known.
  double gain() const { return known() ? plain_ms_ / ms_ : kHoped; }
  bool known() const { return plain_ms_ > 0; }
  // Whether it is to be asked: it pays, or has not been tried for a long time.
  bool Asked() const { return gain() >= kPays || pause_left_ <= 0; }
  // Whether it is to be asked before sources that gained more: nobody knows what it would gain, or
  // it has paid, and it has not been asked for a long time.
  bool Due() const;
  // A pass with the source's drafts gave `tokens` and took `ms`, drafting included.
  void OnDrafted(double tokens, double ms, double plain_ms);
  // It was asked, and nothing came.
  void OnVainAsk() { since_asked_ = 0; }
  // A pass without gave `tokens`.
  void OnPaused(double tokens) {
    pause_left_ -= tokens;
    since_asked_ += tokens;
  }

 private:
  static constexpr double kHoped = 1.2;
  // Plain passes' time for which it is taken to have gained kFirstGain before its first pass: so
  // one refused draft does not end it, and three do.
  static constexpr double kFirstPasses = 4;
  static constexpr double kFirstGain = 1.3;
  static constexpr double kPays = 1.02;

  double plain_ms_ = 0;  // of the tokens that it brought, fading
  double ms_ = 0;        // that they took
  double pause_ = 0;     // tokens; doubles while it does not pay
  double pause_left_ = 0;
  double since_asked_ = std::numeric_limits<double>::infinity();  // tokens; infinite: never asked
};

// What is known of the drafts of one context, or of all contexts of an app. Not thread-safe.
struct SpeculationState {
  explicit SpeculationState(double first_tokens) : limit(first_tokens) {}

  DraftConfidence confidence;
  FallbackThreshold fallback;
  LossLimit limit;
  std::array<SourceGain, kDraftSourceKinds> gains;

  SourceGain& GainOf(DraftSourceKind source) { return gains[static_cast<size_t>(source)]; }
  const SourceGain& GainOf(DraftSourceKind source) const {
    return gains[static_cast<size_t>(source)];
  }
};

// The states that bound a call's passes.
struct CallSpeculation {
  SpeculationState& context;
  SpeculationState& app;

  double Confidence(DraftOrigin origin) const {
    return context.confidence.Of(origin, &app.confidence);
  }
  void Observe(DraftOrigin origin, bool accepted) const {
    context.confidence.Observe(origin, accepted);
    app.confidence.Observe(origin, accepted);
  }
  // What a source gained in this context, or, while that is not known, in the app's.
  const SourceGain& GainOf(DraftSourceKind source) const {
    const SourceGain& own = context.GainOf(source);
    return own.known() ? own : std::as_const(app).GainOf(source);
  }
  // A pass gave `tokens`; `drafted`: with the source's drafts.
  void OnSource(DraftSourceKind source, bool drafted, double tokens, double ms,
                double plain_ms) const {
    for (SpeculationState* state : {&context, &app}) {
      if (drafted) {
        state->GainOf(source).OnDrafted(tokens, ms, plain_ms);
      } else {
        state->GainOf(source).OnPaused(tokens);
      }
    }
  }
  // A source was asked, and nothing came.
  void OnVainAsk(DraftSourceKind source) const {
    context.GainOf(source).OnVainAsk();
    app.GainOf(source).OnVainAsk();
  }
  bool Affords(double pass_ms, double plain_ms) const {
    return context.limit.Affords(pass_ms, plain_ms) && app.limit.Affords(pass_ms, plain_ms);
  }
  void OnPass(double tokens, double ms, double plain_ms) const {
    context.limit.OnPass(tokens, ms, plain_ms);
    app.limit.OnPass(tokens, ms, plain_ms);
  }
};

// How much of a tree the next pass of a call verifies: what is worth its time, as far as its loss
// can be afforded. `cumulative`: confidences, falling; `other_rows`: of other calls in the pass;
// `plain_ms`: a pass without drafts; `draft_ms`: what drafting has taken already.
TreeBudget PlanPass(const RowCosts& costs, std::span<const double> cumulative, int32_t other_rows,
                    double plain_ms, double draft_ms, const CallSpeculation& call);

// A call's tree among those that a pass verifies.
struct PassTree {
  CallSpeculation call;
  std::span<const double> cumulative;  // confidences of its nodes, falling
  double plain_ms = 0;                 // a pass of the same calls without drafts
  double draft_ms = 0;                 // what drafting has taken already
  int32_t nodes = 0;                   // that it is to have
};

// Whether every call can afford a pass that takes `wider` times as long as one without drafts.
// Calls of one app afford it together.
bool AllAfford(std::span<const PassTree> trees, double wider);

// A step for some of whose calls a draft model is to be asked.
struct DraftedStep {
  int32_t rows = 1;      // without drafts
  int32_t asked = 1;     // calls; a pass of the model brings each a token, which is verified
  double before_ms = 0;  // that the model takes before its first pass
  double pass_ms = 0;    // of the model
};

// How many passes of the model all calls of the step can afford in vain, at most `most`. `trees`:
// of each call, what is verified besides; their `draft_ms` are not read.
int32_t AffordablePasses(const RowCosts& costs, std::span<const PassTree> trees,
                         const DraftedStep& step, int32_t most);

// Cuts trees until every call can afford the pass that they make together, which lasts as long for
// a call with a small tree as for one with a large one. The least confident node goes first.
// `other_rows`: of calls in the pass that have no tree here.
void FitTogether(const RowCosts& costs, int32_t other_rows, std::span<PassTree> trees);

}  // namespace withy::policy
