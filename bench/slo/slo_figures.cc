#include "bench/slo/slo_figures.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "bench/slo/slo_board.h"
#include "bench/slo/slo_report.h"

namespace withy::bench {
namespace {

using nlohmann::json;

constexpr double kIdleGapMs = 3.6e6;  // an hour: nobody meets anybody
constexpr double kNearFull = 0.02;    // of accuracy, to count as the full model's

policy::Slo Ratios(double ttft, double tpot) {
  policy::Slo slo;
  slo.ttft_ratio = ttft;
  slo.tpot_ratio = tpot;
  return slo;
}

SloScore Idle(const FigureInputs& in, const Policy& policy, const policy::Slo& slo,
              size_t slo_index) {
  return ScoreOf(RunBoard(in.machine->board, policy, in.prompts->facts,
                          IdleCalls(*in.prompts, slo, slo_index), in.seed));
}

// The dedicated models as the paper compares with them on one SLO: nothing is switched.
Policy WithoutSwitching(const Policy& policy, Family* family) {
  *family = *policy.family;
  for (Variant& variant : family->variants) variant.switch_ms = 0;
  Policy free = policy;
  free.family = family;
  return free;
}

// The best of the baselines under one SLO.
std::pair<std::string, double> BestBaseline(const FigureInputs& in, const policy::Slo& slo,
                                            size_t slo_index) {
  std::pair<std::string, double> best{"none", 0};
  for (const Policy& policy : in.contestants->policies()) {
    if (policy.reference || &policy == &in.contestants->ours()) continue;
    Family family;
    const SloScore score = Idle(in, WithoutSwitching(policy, &family), slo, slo_index);
    if (score.accuracy > best.second) best = {policy.name, score.accuracy};
  }
  return best;
}

// Mean latency of a pair of levels as a share of the full model's, and how many it answers right.
struct PairFigures {
  uint32_t prompt_percent = 100;
  uint32_t model_percent = 100;
  double accuracy = 0;
  double ttft = 1;
  double tpot = 1;
};

std::vector<PairFigures> AllPairs(const FigureInputs& in) {
  const Policy& ours = in.contestants->ours();
  const BoardFacts& board = in.machine->board;
  const size_t variants = ours.family->variants.size();
  std::vector<PairFigures> pairs;
  for (size_t pair = 0; pair < ours.answers->prompt_levels.size() * variants; ++pair) {
    const Variant& variant = ours.family->variants[pair % variants];
    PairFigures figures{ours.answers->prompt_levels[pair / variants], variant.percent, 0, 0, 0};
    double ttft_ms = 0, full_ttft_ms = 0, tpot_ms = 0, full_tpot_ms = 0, count = 0;
    for (size_t prompt = 0; prompt < in.prompts->facts.size(); ++prompt) {
      // The prompts that the grid asks, too.
      if (prompt % in.prompts->per_app >= kReadPerApp) continue;
      count += 1;
      const PromptFacts& facts = in.prompts->facts[prompt];
      const Answers::Row& row = ours.answers->rows[prompt];
      const int32_t tokens = row.tokens[pair / variants];
      const policy::Latency full = IdleFull(board, facts);
      const bool shorter = figures.prompt_percent < 100;
      figures.accuracy += row.right[pair] ? 1 : 0;
      ttft_ms += board.overhead_ms + PrefillMs(variant.times, tokens) +
                 (shorter ? board.tlm.Ms(facts.text_bytes) : 0);
      tpot_ms += DecodeMs(variant.times, tokens, facts.answer_tokens);
      full_ttft_ms += full.ttft_ms;
      full_tpot_ms += facts.answer_tokens > 1 ? full.tpot_ms : 0;
    }
    figures.accuracy /= std::max(1.0, count);
    figures.ttft = ttft_ms / full_ttft_ms;
    figures.tpot = full_tpot_ms > 0 ? tpot_ms / full_tpot_ms : 1;
    pairs.push_back(figures);
  }
  return pairs;
}

}  // namespace

const std::vector<double>& GridTtft() {
  static const auto* ratios = new std::vector<double>{0.2, 0.4, 0.6, 0.8, 1.0};
  return *ratios;
}

const std::vector<double>& GridTpot() {
  static const auto* ratios = new std::vector<double>{0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0};
  return *ratios;
}

const std::vector<double>& EndToEndRatios() {
  static const auto* ratios = new std::vector<double>{0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0};
  return *ratios;
}

std::vector<SloRatio> AllSlos() {
  std::vector<SloRatio> slos(1);
  for (const double ttft : GridTtft()) {
    for (const double tpot : GridTpot()) slos.push_back({ttft, tpot});
  }
  for (const double ratio : EndToEndRatios()) slos.push_back({ratio, ratio});
  return slos;
}

size_t GridIndex(size_t ttft, size_t tpot) { return 1 + ttft * GridTpot().size() + tpot; }
size_t EndToEndIndex(size_t ratio) { return 1 + GridTtft().size() * GridTpot().size() + ratio; }

std::vector<SloCall> IdleCalls(const PromptSet& prompts, const policy::Slo& slo, size_t slo_index) {
  std::vector<SloCall> calls;
  for (size_t prompt = 0; prompt < prompts.prompts.size(); ++prompt) {
    if (prompt % prompts.per_app >= kReadPerApp) continue;
    SloCall& call = calls.emplace_back();
    call.prompt = prompt;
    call.app = prompt / prompts.per_app;
    call.slo = slo;
    call.slo_index = slo_index;
    call.arrival_ms = kIdleGapMs * static_cast<double>(prompt);
  }
  return calls;
}

json GridFigure(const FigureInputs& in) {
  std::fprintf(stderr,
               "\nAccuracy by SLO on an idle board: ours (points over the best baseline, switching "
               "free)\n%8s",
               "TTFT");
  for (const double tpot : GridTpot()) std::fprintf(stderr, "   TPOT %3.0f %%", Percent(tpot));
  json figure = json::array();
  for (size_t i = 0; i < GridTtft().size(); ++i) {
    std::fprintf(stderr, "\n%6.0f %%", Percent(GridTtft()[i]));
    for (size_t j = 0; j < GridTpot().size(); ++j) {
      const policy::Slo slo = Ratios(GridTtft()[i], GridTpot()[j]);
      const SloScore ours = Idle(in, in.contestants->ours(), slo, GridIndex(i, j));
      const auto [name, best] = BestBaseline(in, slo, GridIndex(i, j));
      std::fprintf(stderr, " %5.1f (%+5.1f)", Percent(ours.accuracy),
                   Percent(ours.accuracy - best));
      figure.push_back({{"ttft", GridTtft()[i]},
                        {"tpot", GridTpot()[j]},
                        {"accuracy", ours.accuracy},
                        {"slo_met", ours.slo_met},
                        {"best_baseline", name},
                        {"best_baseline_accuracy", best}});
    }
  }
  std::fprintf(stderr, "\n");
  return figure;
}

json EndToEndFigure(const FigureInputs& in) {
  std::fprintf(stderr, "\nAn end-to-end time as SLO, idle board: share of the full model's\n");
  json figure = json::array();
  for (size_t i = 0; i < EndToEndRatios().size(); ++i) {
    const double ratio = EndToEndRatios()[i];
    std::vector<SloCall> calls = IdleCalls(*in.prompts, {}, EndToEndIndex(i));
    for (SloCall& call : calls) {
      const PromptFacts& prompt = in.prompts->facts[call.prompt];
      // The app knows how long its answers are.
      call.max_tokens = static_cast<uint32_t>(prompt.answer_tokens);
      call.slo.end_to_end_ms = ratio * IdleFull(in.machine->board, prompt).end_to_end_ms;
    }
    json row = {{"ratio", ratio}};
    std::fprintf(stderr, "%4.0f %%:", Percent(ratio));
    for (const Policy& policy : in.contestants->policies()) {
      if (policy.rule == Rule::kFull || (policy.reference && policy.as_published)) continue;
      Family family;
      const SloScore score = ScoreOf(RunBoard(in.machine->board, WithoutSwitching(policy, &family),
                                              in.prompts->facts, calls, in.seed));
      row["accuracy"][policy.name] = score.accuracy;
      std::fprintf(stderr, " %s %.1f", policy.name.c_str(), Percent(score.accuracy));
    }
    std::fprintf(stderr, "\n");
    figure.push_back(std::move(row));
  }
  return figure;
}

json SpeedUpFigure(const FigureInputs& in) {
  const std::vector<PairFigures> pairs = AllPairs(in);
  const double full = pairs.back().accuracy;
  PairFigures fastest_ttft = pairs.back(), fastest_tpot = pairs.back();
  for (const PairFigures& pair : pairs) {
    if (pair.accuracy < full - kNearFull) continue;
    if (pair.ttft < fastest_ttft.ttft) fastest_ttft = pair;
    if (pair.tpot < fastest_tpot.tpot) fastest_tpot = pair;
  }
  // Decided call by call: the tightest SLO under which accuracy holds.
  double least_ttft = 1, least_tpot = 1;
  for (size_t i = 0; i < GridTtft().size(); ++i) {
    const SloScore score = Idle(in, in.contestants->ours(), Ratios(GridTtft()[i], 1.0),
                                GridIndex(i, GridTpot().size() - 1));
    if (score.accuracy >= full - kNearFull) least_ttft = std::min(least_ttft, GridTtft()[i]);
  }
  for (size_t j = 0; j < GridTpot().size(); ++j) {
    const SloScore score = Idle(in, in.contestants->ours(), Ratios(1.0, GridTpot()[j]),
                                GridIndex(GridTtft().size() - 1, j));
    if (score.accuracy >= full - kNearFull) least_tpot = std::min(least_tpot, GridTpot()[j]);
  }
  const double ttft = std::max(1 / fastest_ttft.ttft, 1 / least_ttft);
  const double tpot = std::max(1 / fastest_tpot.tpot, 1 / least_tpot);
  std::fprintf(stderr,
               "\nWithin 2 points of the full model's accuracy (%.1f): TTFT %.2f times as fast, "
               "TPOT %.2f\n  one pair for all: TTFT %.2f (prompt %u %%, model %u %%), TPOT %.2f "
               "(prompt %u %%, model %u %%); by SLO: TTFT %.2f, TPOT %.2f\n",
               Percent(full), ttft, tpot, 1 / fastest_ttft.ttft, fastest_ttft.prompt_percent,
               fastest_ttft.model_percent, 1 / fastest_tpot.tpot, fastest_tpot.prompt_percent,
               fastest_tpot.model_percent, 1 / least_ttft, 1 / least_tpot);
  return {{"full_accuracy", full}, {"ttft_speedup", ttft}, {"tpot_speedup", tpot}};
}

json RunVariations(const FigureInputs& in, const PromptSet& prompts,
                   const std::vector<Variation>& variations) {
  json figure = json::array();
  for (const Variation& variation : variations) {
    const BoardFacts& board = variation.board != nullptr ? *variation.board : in.machine->board;
    const SloScore score =
        ScoreOf(RunBoard(board, variation.policy, prompts.facts, in.trace, in.seed));
    std::fprintf(stderr, "%-44s accuracy %5.1f  in time %5.1f  right, late or not %5.1f\n",
                 variation.name.c_str(), Percent(score.accuracy), Percent(score.slo_met),
                 Percent(score.right_anyway));
    figure.push_back({{"name", variation.name},
                      {"accuracy", score.accuracy},
                      {"slo_met", score.slo_met},
                      {"tlm_ms", score.mean_tlm_ms}});
  }
  return figure;
}

}  // namespace withy::bench
