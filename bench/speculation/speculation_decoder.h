// Decodes greedily with a target and a draft model in this process, in the ways that LLMCad
// compares: plainly, linear speculation, token trees with a fixed or an adapting threshold, and the
// lossy Big Little Decoder; and with trees of several sources, as large as their rows are worth.
// Without a service, control or batches: what a technique alone brings. Neighbours: policy/ grows
// trees; speculation_figures.cc and speculation_wall_pair.h compare.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/speculation/speculation_sequence.h"
#include "engine/model/kernel_observer.h"
#include "engine/model/model.h"
#include "policy/draft/draft_confidence.h"
#include "policy/draft/draft_tree.h"
#include "policy/draft/token_lookup.h"
#include "policy/draft/tree_budget.h"
#include "policy/draft/tree_growth.h"
#include "serving/speculation/scratch_tree_kv.h"
#include "serving/speculation/tree_grower.h"

namespace withy::bench {

struct DecodeWay {
  int32_t chain = 0;      // drafted tokens a pass, in a line
  bool tree = false;      // branches and the pacer
  bool adaptive = false;  // alpha follows eq. 3
  // Big Little Decoder (Kim et al. 2023): the draft answers as long as it is surer than `fallback`;
  // then the target replaces the first of its tokens that is less likely than exp(-rollback) and
  // all behind it. 0: not so.
  double fallback = 0;
  double rollback = 0;
  // Of trees: who drafts. The resident prefix is the target's lowest level.
  bool lookup = false;
  bool prefix = false;
  bool draft = true;
  // Of trees: they grow as long as another pass of their source pays, of them the nodes are
  // verified that are worth their rows, both by what Calibrate measured, and confidence is learnt.
  // Otherwise they grow to the threshold or 64 tokens, and all of them is verified.
  bool weighed = false;
  // Of weighed trees with a draft: the draft goes on where the target waits for its weights, and
  // what then still fits the answer is used (LLMCad section 3.4).
  bool ahead = false;
  int32_t most_nodes = 255;  // weighed ones
  int32_t leaves_per_pass = 2;
  double branch_threshold = 0.3;

  bool uses_draft() const { return chain > 0 || fallback > 0 || (tree && draft); }
};

struct DecodedAnswer {
  std::vector<int32_t> tokens;
  int32_t target_passes = 0;
  int32_t draft_passes = 0;  // of the draft and of the prefix
  int64_t drafted = 0;       // tokens that were verified
  int64_t accepted = 0;      // of them
  double ms = 0;             // prompt aside
  double draft_ms = 0;       // of it, drafting while the target stood still
  double window_ms = 0;      // of it, drafting while the target waited for weights
};

// What passes take, in milliseconds.
struct PassCosts {
  double target_ms = 0;  // of one row
  double wait_ms = 0;    // of these, standing still for weights
  policy::RowCosts rows;
  double draft_ms = 0;
  double prefix_ms = 0;
};

// Not thread-safe. Models of one vocabulary; borrowed.
class PairDecoder {
 public:
  // `draft`: null if no way uses it. `ends`: tokens that end an answer.
  PairDecoder(engine::Model& target, engine::Model* draft, std::span<const int32_t> ends)
      : target_(target), draft_(draft), ends_(ends.begin(), ends.end()) {}

  // Measures what weighed ways go by: passes of the target of some numbers of rows (ascending), of
  // the draft and of the prefix, each the faster of two. Errors: as Model::Forward.
  absl::StatusOr<PassCosts> Calibrate(std::span<const int32_t> rows);

  // Computes `prompt` (not empty), behind which Answer decodes at most `count` tokens. `open`: that
  // many, also beyond tokens that end an answer. Errors: as Model::Forward.
  absl::Status Begin(std::span<const int32_t> prompt, int32_t count, bool open = false);
  // An answer to the prompt; any number of times. Errors: as Model::Forward.
  absl::StatusOr<DecodedAnswer> Answer(const DecodeWay& way);
  // Both.
  absl::StatusOr<DecodedAnswer> Decode(std::span<const int32_t> prompt, int32_t count,
                                       const DecodeWay& way);

 private:
  absl::Status DecodeLossless(std::vector<int32_t> tokens, size_t end, const DecodeWay& way);
  absl::Status DecodeBigLittle(std::vector<int32_t> tokens, size_t end, const DecodeWay& way);
  // `most`: tokens that the answer may still have.
  absl::StatusOr<policy::DraftTree> Draft(std::span<const int32_t> tokens, int32_t most,
                                          const DecodeWay& way);
  policy::GrowthLimits LimitsOf(int32_t most, const DecodeWay& way, double pass_ms) const;
  policy::ConfidenceFn ConfidenceOf(const DecodeWay& way) const;
  absl::StatusOr<std::unique_ptr<serving::TreeGrower>> GrowerOf(const DecodeWay& way,
                                                                policy::DraftSourceKind source,
                                                                const policy::GrowthLimits& limits,
                                                                serving::KvTree& tree,
                                                                serving::TreeKv& kv);
  // The next pass of a tree's growth; false: its limits ask for none.
  absl::StatusOr<bool> Step(serving::TreeGrower& grower);
  // Computes the tree's rows; the draft goes on meanwhile, if the way asks for it. `most`: as
  // above.
  absl::StatusOr<std::span<const float>> Verify(std::span<const int32_t> tokens,
                                                const policy::DraftTree& tree,
                                                std::span<const int32_t> nodes, int32_t most,
                                                const DecodeWay& way);
  void AddLookups(std::span<const int32_t> tokens, int32_t most, policy::DraftTree* tree);
  // The nodes that are worth their rows.
  policy::DraftTree Worthy(const policy::DraftTree& tree) const;
  // Teaches what a verified tree showed of how sure drafts are. `answer`: the tokens behind it.
  void Learn(const policy::DraftTree& tree, std::span<const int32_t> answer);
  bool Append(std::vector<int32_t>* tokens, int32_t token, size_t end) const {
    tokens->push_back(token);
    return Ends(token) || tokens->size() >= end;
  }
  bool Ends(int32_t token) const {
    const std::vector<int32_t>& ends = sampling_.unpenalized;
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  }

  engine::Model& target_;
  engine::Model* const draft_;
  const std::vector<int32_t> ends_;
  engine::PassNumbers passes_;
  PassCosts costs_;
  policy::DraftConfidence confidence_;
  double token_ms_ = 0;  // that a token takes now: what one more accepted token saves
  double slack_ms_ = 0;  // of a pass: what drafting may take without making it longer
  // Of the prompt.
  std::unique_ptr<Sequence> target_sequence_, draft_sequence_;
  std::vector<int32_t> prompt_;
  int32_t count_ = 0;
  engine::SamplingParams sampling_;  // greedy, with what ends the answer
  // Of the answer under way.
  policy::FallbackThreshold threshold_;
  std::optional<serving::ScratchTreeKv> draft_kv_;
  serving::KvTree draft_tree_;
  std::vector<float> draft_logits_, prefix_logits_;
  DecodedAnswer answer_;
};

}  // namespace withy::bench
