// Lets the contestants of the memory wall take turns, budget by budget and round by round, and
// prints what came of it. Neighbours: speculation_wall.cc finds the files,
// speculation_wall_figures.h turns times into figures.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "bench/speculation/speculation_wall_figures.h"
#include "bench/speculation/speculation_wall_run.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::bench {

struct WallSetup {
  WallRun run;         // what all contestants have in common; `draft` may be empty
  std::string shards;  // packed file with fewer bits, for "sti"; may be empty
  std::vector<WallWay> ways;
  std::vector<std::string> budgets;  // per cent of the weights
  int rounds = 3;
  bool cliff = true;  // measures 6 % short of memory, too
  // The pair before it was inflated, empty if it was not.
  std::string small_target, small_draft;
};

// Not thread-safe.
class Wall {
 public:
  explicit Wall(WallSetup setup) : setup_(std::move(setup)) {}

  // Prints tables on stderr and one JSON line on stdout. Errors: those of RunLimited;
  // INVALID_ARGUMENT (a budget that is no share or too small for a draft); INTERNAL after printing,
  // if lossless ways gave different answers.
  absl::Status Measure();

 private:
  absl::Status ReadFiles();
  absl::Status MeasureSmallPair();
  absl::Status MeasureProgram();
  absl::Status MeasurePairProgram(WallWay::Kind kind, uint64_t* program);
  absl::Status AtBudget(const std::string& percent);
  absl::Status RunAlone(const std::string& percent, const WallWay& way);
  absl::Status RunPrompts(const std::string& percent, const std::vector<WallWay>& ways);
  absl::Status Cliff();
  absl::StatusOr<uint64_t> BudgetOf(const std::string& percent) const;
  static uint64_t LimitOf(uint64_t budget, uint64_t program);
  uint64_t LimitOf(uint64_t budget) const {
    return LimitOf(budget, std::max(program_, pair_program_));
  }
  void Take(const std::string& percent, const std::vector<WallWay>& ways,
            const std::vector<WallAnswer>& answers);
  double RougeOf(const std::string& way) const;
  int ChangedByInflation() const;
  void PrintTable(const std::string& percent) const;
  void PrintLine() const;

  using Answers = std::map<int32_t, std::vector<int32_t>>;  // tokens by prompt

  const WallSetup setup_;
  std::unique_ptr<engine::Tokenizer> tokenizer_;
  uint64_t weights_ = 0, draft_weights_ = 0;
  // Memory beside the weights: of one token a pass, of those who answer prompts, of five processes.
  uint64_t program_ = 0, pair_program_ = 0, service_program_ = 0;
  // By way: seconds a token of the budget under way, of all prompts, of the first kind, of the open
  // ones, which the service's ways do not answer.
  std::map<std::string, double> round_s_, tasks_s_, open_s_;
  Samples figures_;                                             // by key of the JSON line
  std::map<std::string, std::map<std::string, Samples>> ways_;  // by budget and way
  Answers truth_;                                               // of lossless ways
  std::map<std::string, Answers> lossy_;                        // by way
  int mismatches_ = 0;
  Answers small_;  // of the small target
  double small_acceptance_ = 0;
};

}  // namespace withy::bench
