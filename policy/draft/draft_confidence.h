// How likely a drafted token is to be accepted, learnt from those that were verified, and the
// threshold below which a draft stops growing. Pure. Neighbours: draft_tree.h holds the tokens,
// speculation.h has one of these a context and one an app.
// Source: LLMCad section 3.3: eq. 3, the self-adapting threshold. Where the paper takes a draft's
// probabilities as they are, ours are corrected by what was accepted, so that they can be weighed
// against time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "policy/draft/draft_tree.h"

namespace withy::policy {

// Shares of accepted tokens by source and bin. Recent tokens count most. Not thread-safe.
class DraftConfidence {
 public:
  static constexpr int32_t kBins = 12;
  // Of kLookup: text that the answer's form forces.
  static constexpr int32_t kForcedBin = kBins - 1;

  // Bin of a token that a lookup found behind a match of `length` tokens, or of a model's token
  // with probability `p`.
  static int32_t LookupBin(int32_t length);
  static int32_t ProbabilityBin(double p);

  // `prior`: of all contexts of the app, which counts until this context knows better; null: what
  // is usual. Result in (0, 1).
  double Of(DraftOrigin origin, const DraftConfidence* prior = nullptr) const;
  void Observe(DraftOrigin origin, bool accepted);

 private:
  struct Count {
    double accepted = 0;
    double seen = 0;
  };
  std::array<std::array<Count, kBins>, kDraftSourceKinds> counts_{};
};

// LLMCad's alpha: drafting stops once the tree's confidence is below it. Not thread-safe.
class FallbackThreshold {
 public:
  double alpha() const { return alpha_; }
  // The branch that matched the target best had `correct` of its `all` tokens right; `confidence`
  // is the tree's, T_c. Eq. 3: halved when all were right, else divided by
  // T_c^((all - correct) / all). The paper's text has lost the base of that power. It says that
  // alpha is divided by the average cumulative confidence of the tokens behind the first wrong one,
  // and that T_c is a product over all tokens: T_c^(1 / all) is the (geometric) average of one
  // token's confidence, and all - correct of them are wrong.
  void OnVerified(int32_t correct, int32_t all, double confidence);

 private:
  static constexpr double kLeast = 1e-6, kMost = 0.9;
  double alpha_ = 0.01;  // the paper's default
};

}  // namespace withy::policy
