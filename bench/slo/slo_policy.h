// How each contestant of the end-to-end benchmark answers a call: which share of the prompt, with
// which model. All of them are composed by the service's own policy/call/call_plan.h and know the
// load as it does; they differ in what they may choose from. Pure but for the random one.
// Neighbours: slo_board.h replays traces with a policy, slo_answers.h says which answers are right.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/slo/slo_times.h"
#include "engine/encoder/prune.h"
#include "offline/corpus/rng.h"
#include "policy/board/latency_learning.h"
#include "policy/call/agreement.h"
#include "policy/call/call_plan.h"

namespace withy::bench {

// A model, or a level of one, that can answer.
struct Variant {
  uint32_t percent = 100;  // names it within its family; ascending
  VariantTimes times;      // what it takes, and is predicted to take
  double switch_ms = 0;    // to bring it in when another one was used before
};

struct Family {
  std::string name;
  std::vector<Variant> variants;  // the last is the best

  // Whether switching takes time: then calls of different variants cannot share the board.
  bool switches() const;
};

// Which answers of a family are right: by prompt, [prompt level][variant].
struct Answers {
  std::vector<uint32_t> prompt_levels;  // per cent, ascending; the last is 100
  struct Row {
    std::vector<int32_t> tokens;  // of the shortened prompt, by prompt level
    std::vector<bool> right;      // [prompt level * variants + variant]
  };
  std::vector<Row> rows;  // by prompt
};

// What the TLM's decision head says of a prompt under one SLO; as Answers::prompt_levels and
// Family::variants. Empty: it is not asked.
struct LevelLogits {
  std::vector<float> prompt;
  std::vector<float> model;
};

// How often each pair is right, [mostly examples][prompt level * variants + variant]; empty: not
// known.
using PairAccuracy = std::array<std::vector<float>, 2>;

// A prompt, apart from its answers.
struct PromptFacts {
  int32_t tokens = 0;                     // of the whole prompt, markup included
  int32_t answer_tokens = 1;              // of the right answer, the end of the turn included
  size_t text_bytes = 0;                  // that the TLM reads
  uint32_t share_without_examples = 100;  // of its words, per cent
  uint32_t least_percent = 0;             // of its words, that stay at any prompt level

  bool mostly_examples() const { return share_without_examples < engine::kMostlyExamples; }
};

enum class Rule {
  kDecide,       // policy/call/decide.h
  kModelByTpot,  // the largest variant that makes the TPOT, then policy/call/decide.h
  kRandom,       // any pair that is predicted to meet the SLO
  kFull,         // the best variant on the whole prompt, whatever the SLO
  kOracle,       // a pair that meets the SLO and is right, when there is one
};

struct Policy {
  std::string name;
  Rule rule = Rule::kDecide;
  const Family* family = nullptr;
  const Answers* answers = nullptr;
  const std::vector<std::vector<LevelLogits>>* logits =
      nullptr;  // [slo][prompt]; null: no decision head
  PairAccuracy pair_accuracy = {};
  bool shortens = false;             // may choose prompt levels, for which it reads the prompt
  bool leaves_examples_out = false;  // may leave worked examples out without reading
  bool drops_level = false;          // may fall to a lower variant in mid-answer
  bool audits = false;               // learns how often variants say what the best one says
  bool minds_others = false;         // what it takes of the board counts against a choice
  bool reference = false;            // a line to compare with, no contestant
  bool as_published = false;         // decides without knowing how often its settings are right
};

// What all policies share.
struct BoardFacts {
  VariantTimes full;            // the full model: denominators of ratios
  policy::CostParameters cost;  // that predictions begin with
  double overhead_ms = 1;       // of a call, beside computing
  TlmTimes tlm;
  uint32_t slots = 8;
  double piece_ms = policy::kPieceMs;
  int32_t max_piece_rows = 256;
};

// A call that has arrived.
struct SloCall {
  size_t prompt = 0;
  size_t app = 0;
  size_t slo_index = 0;  // into Policy::logits
  policy::Slo slo;
  double arrival_ms = 0;
  uint32_t max_tokens = policy::kUsualAnswerTokens;
};

// What becomes of a call.
struct SloChoice {
  size_t prompt_level = 0;  // index into Answers::prompt_levels
  size_t variant = 0;
  double tlm_ms = 0;     // that reading took; 0: not read
  double switch_ms = 0;  // as predicted: another variant was used before
  policy::Turn turn;
  policy::PlannedCall plan;
};

// A call's identity on the board, and what is known when it is decided.
struct SloDecisionFacts {
  uint64_t id = 0;
  int64_t arrived_ns = 0;              // steady time
  const policy::LiveCorrection& live;  // as it is when the decision begins
  const policy::Agreement& agreement;  // of the call's app
  size_t last_variant = 0;             // that will be in place when the call starts
};

// The board as a call meets it while it is decided. Time passes in Spend.
class DecidingBoard {
 public:
  virtual ~DecidingBoard() = default;
  virtual policy::Load LoadBefore(const policy::Turn& turn) = 0;
  virtual void Spend(double ms) = 0;
  virtual void Learn(const policy::Observation& seen) = 0;
};

// Drives the call's plan. `rng`: of Rule::kRandom.
SloChoice Choose(const Policy& policy, const BoardFacts& board, const PromptFacts& prompt,
                 const SloCall& call, const SloDecisionFacts& facts, DecidingBoard& here,
                 corpus::Rng* rng);

}  // namespace withy::bench
