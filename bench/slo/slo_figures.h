// The paper's other tables, each on the simulated board: accuracy over a grid of SLOs, an
// end-to-end SLO, the largest speed-up near full accuracy, concise prompts, finer steps, other
// TLMs, and what each part of the design is worth. Neighbours: slo.cc prints the main table,
// slo_contestants.h makes who competes. Prints to stderr, gives figures as JSON.
//
// Source: ElastiLM figures 18b, 18c, 18d, 19b, 20a and the abstract's speed-up.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/slo/slo_contestants.h"

namespace withy::bench {

// TTFT and TPOT ratios of the grid, and end-to-end ratios.
const std::vector<double>& GridTtft();
const std::vector<double>& GridTpot();
const std::vector<double>& EndToEndRatios();

// What the TLM has to be asked for all tables: index 0 the app's own, then the grid, TTFT by TTFT,
// then (r, r) for every end-to-end ratio r.
std::vector<SloRatio> AllSlos();
size_t GridIndex(size_t ttft, size_t tpot);
size_t EndToEndIndex(size_t ratio);

// What all tables need.
struct FigureInputs {
  ContestantFiles files;
  std::string tlm_path;
  const Machine* machine = nullptr;
  const PromptSet* prompts = nullptr;
  const TlmTable* tlm = nullptr;
  const Contestants* contestants = nullptr;
  AnswerOptions options;
  std::vector<SloCall> trace;           // alpha = 0
  std::vector<std::string> other_tlms;  // NAME=FILE.gguf: other sizes and cuts
  std::string unordered;                // elastic file with units in random order; may be empty
  std::string fine;                     // elastic file with levels every 5 %; may be empty
  uint64_t seed = 1;
};

// The first kReadPerApp prompts of each app, each by itself on an idle board.
std::vector<SloCall> IdleCalls(const PromptSet& prompts, const policy::Slo& slo, size_t slo_index);

nlohmann::json GridFigure(const FigureInputs& in);
nlohmann::json EndToEndFigure(const FigureInputs& in);
nlohmann::json SpeedUpFigure(const FigureInputs& in);
// Errors of the following: as JudgeAll and ReadAll.
absl::StatusOr<nlohmann::json> ConciseFigure(const FigureInputs& in);
absl::StatusOr<nlohmann::json> StepsFigure(const FigureInputs& in);
absl::StatusOr<nlohmann::json> TlmFigure(const FigureInputs& in);
absl::StatusOr<nlohmann::json> AblationFigure(const FigureInputs& in);

// One way to answer the trace, for tables of variations.
struct Variation {
  std::string name;
  Policy policy;
  const BoardFacts* board = nullptr;  // null: the machine's
};
nlohmann::json RunVariations(const FigureInputs& in, const PromptSet& prompts,
                             const std::vector<Variation>& variations);

}  // namespace withy::bench
