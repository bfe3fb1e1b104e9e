// Who competes: ours, the baselines that the paper names, and the lines to compare with; from the
// files they are made of, their answers, and what this machine takes. Neighbours: slo_answers.h
// judges answers, slo_measure.h measures, slo_policy.h decides.
//
// A baseline's latency is the full-size model's, scaled by the share of FLOPs and bytes that it
// computes: the best that its own kernels could do. What it pays on top is stated at each.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/slo/slo_answers.h"
#include "bench/slo/slo_policy.h"
#include "bench/slo/slo_times.h"
#include "engine/model/model.h"

namespace withy::bench {

// GGUF files.
struct ContestantFiles {
  std::string pocket;              // elastic; answers are judged with it
  std::vector<std::string> small;  // dedicated models, trained from scratch
  std::string baselines;           // directory that withy-baselines wrote; empty: without them
  std::string structural;          // elastic file of another pruning method; empty: `pocket`
};

// What was measured of the full-size model.
struct Machine {
  engine::ModelInfo info;
  std::vector<VariantTimes> levels;  // as info.levels
  SwitchTimes switching;
  BoardFacts board;
};

// What a model of so much of the attention and of the neurons of `info`'s layers takes of it, the
// output head whole.
policy::LevelShare ShareOfParts(const engine::ModelInfo& info, double attention, double neurons);

// Shares of a file's layers whose attention and whose MLP add something: what is left out has an
// output matrix of zeros. Errors: as engine::GgufFile::Open.
struct PartsUsed {
  double attention = 1;
  double neurons = 1;
};
absl::StatusOr<PartsUsed> UsedParts(const std::string& path);

// Keeps what policies point to. Immutable once it is made.
class Contestants {
 public:
  // Errors: NOT_FOUND and INVALID_ARGUMENT naming the file and the command that makes it.
  static absl::StatusOr<std::unique_ptr<Contestants>> Make(const ContestantFiles& files,
                                                           const Machine& machine,
                                                           const PromptSet& prompts,
                                                           const TlmTable& tlm,
                                                           const AnswerOptions& options);

  // Ours first, then baselines, then references: those of a paper beside the full model (layer
  // merging, attention dropping), the baselines without our rule, and what could be.
  const std::vector<Policy>& policies() const { return policies_; }
  const Policy& ours() const { return policies_.front(); }
  const Policy* Find(const std::string& name) const;
  const Answers& answers() const { return *policies_.front().answers; }

 private:
  Contestants(const ContestantFiles& files, const Machine& machine, const PromptSet& prompts,
              const TlmTable& tlm, const AnswerOptions& options)
      : files_(files), machine_(machine), prompts_(prompts), tlm_(tlm), options_(options) {}

  absl::Status AddElastic();
  absl::Status AddStructural();
  absl::Status AddFiles(const std::string& method, bool swaps, bool reference);
  absl::Status AddSmall();
  absl::Status AddSparse();
  void AddPublished();
  void AddReferences();
  Family ElasticFamily(const std::string& name, double copy_ms_per_byte) const;
  Variant FullVariant(double switch_ms) const;
  double LoadMs(const policy::LevelShare& share) const;
  void Add(Policy policy);

  ContestantFiles files_;
  const Machine& machine_;
  const PromptSet& prompts_;
  const TlmTable& tlm_;
  const AnswerOptions& options_;
  std::deque<Family> families_;
  std::deque<Answers> tables_;
  std::vector<Policy> policies_;
};

}  // namespace withy::bench
