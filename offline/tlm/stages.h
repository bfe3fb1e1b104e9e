// The two training stages, without LibTorch's headers. Neighbours: score_labels.h and
// decision_table.h make the examples, job.cc runs the stages, network.h computes.
//
// Source: ElastiLM section 3.3, TLM training: the score head first, then the decision head with the
// bottom frozen. Ours differs if there is no pre-trained MobileBERT to start from: then the bottom
// is trained with the score head. SLO rows are trained with the decision head.
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
  int64_t batch = 16;  // texts per step
  double rate = 1e-3;
  uint64_t seed = 1;
  bool train_bottom = true;        // score stage: also train embeddings and shared layers
  std::string progress_file;       // empty: an interrupted run starts over
  int64_t checkpoint_steps = 100;  // save at least every so many steps
  double checkpoint_s = 60;        // and seconds
  std::function<bool(int64_t step, double loss)> report;  // returns false to stop
};

// Sets LibTorch's number of threads.
void UseThreads(int threads);

// Output of the LibTorch network for windows; for tests. Format as engine::Encoder::Run.
engine::EncoderOutput RunNetwork(const engine::TlmCheckpoint& checkpoint,
                                 std::span<const std::vector<int32_t>> windows);

// Trains with the binary cross entropy of each word's retain probability over its tokens. Resumes
// from options.progress_file with the result of an uninterrupted run. Errors: as WindowMaker;
// INVALID_ARGUMENT if no word is labelled; of the file system.
absl::Status TrainScore(const engine::Tokenizer& tokenizer, std::span<const ScoreExample> examples,
                        const StageOptions& options, engine::TlmCheckpoint* tlm);

// Spearman's rank correlation between scores and labels, averaged over the texts.
absl::StatusOr<double> RankCorrelation(const engine::Tokenizer& tokenizer,
                                       std::span<const ScoreExample> examples,
                                       const engine::TlmCheckpoint& tlm);

struct DecisionExample {
  std::string text;
  DecisionRow row;
  bool mostly_examples = false;
};

// Trains the decision tower and the SLO tokens' rows to predict for every pair whether it is
// correct, with SLOs drawn evenly from the grid. Starts from the mean over all prompts. Pairs that
// the SLO allows have the highest weight. All other weights stay fixed. Errors: as TrainScore.
absl::Status TrainDecision(const engine::Tokenizer& tokenizer, const DecisionSpace& space,
                           std::span<const DecisionExample> examples,
                           std::span<const double> mean_right, const StageOptions& options,
                           engine::TlmCheckpoint* tlm);

// Shares of correct answers over all texts and every other step of the SLO grid, by decision rule.
struct DecisionScores {
  double tlm = 0;     // the most likely pair of Frontier()
  double fixed = 0;   // always DefaultPair()
  double random = 0;  // a random feasible pair
  double oracle = 0;  // correct if any feasible pair is
  double full = 0;    // the full model with the whole prompt, whatever the SLO
};
absl::StatusOr<DecisionScores> ScoreDecisions(const engine::Tokenizer& tokenizer,
                                              const DecisionSpace& space,
                                              std::span<const DecisionExample> examples,
                                              std::span<const double> mean_right,
                                              const engine::TlmCheckpoint& tlm);

}  // namespace withy::tlm
