// The two stages of training, without LibTorch's headers. Neighbours: score_labels.h and
// decision_table.h make the examples, job.cc runs the stages, network.h computes.
//
// Source: ElastiLM section 3.3, TLM training: the score head first, then the decision head with the
// bottom frozen. Ours differs where there is no pre-trained MobileBERT to begin with: the bottom is
// then learnt with the score head. SLO rows are trained with the decision head.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/encoder/checkpoint.h"
#include "engine/encoder/encoder.h"
#include "engine/tokenizer/tokenizer.h"
#include "offline/tlm/decision_table.h"
#include "offline/tlm/score_labels.h"

namespace withy::tlm {

struct StageOptions {
  int64_t steps = 2000;
  int64_t batch = 16;  // texts a step
  double rate = 1e-3;
  uint64_t seed = 1;
  bool train_bottom = true;        // of the score stage: embeddings and shared layers too
  std::string progress_file;       // empty: an interrupted run begins again
  int64_t checkpoint_steps = 100;  // at the latest after so many
  double checkpoint_s = 60;        // or so long
  std::function<bool(int64_t step, double loss)> report;  // false: stop here
};

// Threads of LibTorch.
void UseThreads(int threads);

// What the LibTorch network computes of windows: for tests. Outputs as engine::Encoder::Run.
engine::EncoderOutput RunNetwork(const engine::TlmCheckpoint& checkpoint,
                                 std::span<const std::vector<int32_t>> windows);

// Binary cross entropy of each word's retain probability, over its tokens. Resumes from
// options.progress_file with the result of an uninterrupted run. Errors: as WindowMaker;
// INVALID_ARGUMENT when no word is asked; from the disk.
absl::Status TrainScore(const engine::Tokenizer& tokenizer, std::span<const ScoreExample> examples,
                        const StageOptions& options, engine::TlmCheckpoint* tlm);

// Mean over the texts of Spearman's rank correlation between scores and labels.
absl::StatusOr<double> RankCorrelation(const engine::Tokenizer& tokenizer,
                                       std::span<const ScoreExample> examples,
                                       const engine::TlmCheckpoint& tlm);

struct DecisionExample {
  std::string text;
  DecisionRow row;
  bool mostly_examples = false;
};

// Trains the decision tower and the SLO tokens' rows on SLOs drawn evenly over the grid to say of
// every pair whether it is right, starting from what holds for all prompts; pairs that the SLO
// leaves to choose from count most. Everything else stays. Errors: as TrainScore.
absl::Status TrainDecision(const engine::Tokenizer& tokenizer, const DecisionSpace& space,
                           std::span<const DecisionExample> examples,
                           std::span<const double> mean_right, const StageOptions& options,
                           engine::TlmCheckpoint* tlm);

// Shares of right answers over all texts and every other step of the SLO grid.
struct DecisionScores {
  double tlm = 0;     // the likeliest of Frontier()
  double fixed = 0;   // DefaultPair() always
  double random = 0;  // a random feasible pair
  double oracle = 0;  // right when any feasible pair is
  double full = 0;    // the full model with the whole prompt, whatever the SLO
};
absl::StatusOr<DecisionScores> ScoreDecisions(const engine::Tokenizer& tokenizer,
                                              const DecisionSpace& space,
                                              std::span<const DecisionExample> examples,
                                              std::span<const double> mean_right,
                                              const engine::TlmCheckpoint& tlm);

}  // namespace withy::tlm
