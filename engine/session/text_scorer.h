// How well models predict a text: the log-probabilities of its tokens, and how far one way of
// predicting it (a model, a level, a KV format) is from another. Computed piece by piece, so that a
// worker does it between calls. Neighbours: predictions.h does the arithmetic; the worker, withyctl
// and benchmarks drive it. Knows no tokenizer.
//
//   WITHY_ASSIGN_OR_RETURN(auto scorer, TextScorer::Create({{model}, {model, 2}}, {ids}, {}));
//   while (!scorer->finished()) WITHY_RETURN_IF_ERROR(scorer->Run(nullptr).status());
//   Use(scorer->Scores());
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/format.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"
#include "engine/sampling/sampler.h"

namespace withy::engine {

// One way of predicting the text. The model outlives the scorer; several may share one, and then
// share its passes.
struct ScoreContestant {
  Model* model = nullptr;
  int32_t level = -1;  // index into the model's levels; -1: the full one
  // Of the KV that tokens attend to, but for kExactChunks chunks at the begin of a window and
  // at least as many behind it, which have 8 bits. With kF16 all KV has 16 bits.
  KvFormat kv_format = KvFormat::kQ8;
};

// Rows of a contestant whose logits are kept at once.
inline constexpr int32_t kScorePieceRows = 32;
// A text of several windows ends where less than this is left.
inline constexpr int32_t kLeastScoreTokens = 64;

struct ScoredText {
  std::vector<int32_t> ids;
  int32_t first_scored = 1;  // index of the first id that is scored, [1, ids.size())
  // A longer text is cut into windows of so many tokens, of which the second half is scored; 0: it
  // is one window.
  int32_t window = 0;
  // What each window of several begins with; kNoToken: nothing. The text's own is ids[0].
  int32_t bos = -1;
};

struct ScoreOptions {
  bool report_tokens = false;  // Fresh() has what the last contestant predicted
  int32_t top_logprobs = 0;    // alternatives of each reported token
};

// What one contestant predicted.
struct TextScore {
  std::vector<double> losses;       // negative log-likelihood of each scored token, in nats
  std::vector<double> divergences;  // by scored token, from the first contestant, in nats
  double perplexity = 0;            // exp of the mean loss
  double right_share = 0;           // the likeliest token is the text's
  double agreed_share = 0;          // the likeliest token is the first contestant's
  double divergence = 0;            // mean
  double divergence_median = 0;
};

// Not thread-safe; its models compute for nobody else while Run runs.
class TextScorer {
 public:
  // Errors: INVALID_ARGUMENT (contestants without a common vocabulary, a level that a model lacks,
  // a window beyond a model's or below kLeastScoreTokens, nothing to score), OUT_OF_RANGE (the text
  // is longer than a model's window, and `window` is 0). Messages name the value and the limit.
  static absl::StatusOr<std::unique_ptr<TextScorer>> Create(
      std::vector<ScoreContestant> contestants, ScoredText text, const ScoreOptions& options);

  // Bytes of KV that all contestants take for one window at most.
  static size_t KvBytes(std::span<const ScoreContestant> contestants, int32_t window_tokens);

  // Goes on to the end of the next piece. False: `*stop` became true first; the next Run goes on
  // from there, and other passes may run in between. Errors: as Pass::status; INTERNAL (logits that
  // are no numbers).
  absl::StatusOr<bool> Run(const std::atomic<bool>* stop);
  bool finished() const { return next_window_ >= text_.ids.size() && pieces_.empty(); }
  // Share of the text's tokens that are computed, 0 .. 1.
  double progress() const;
  // Rows that were computed, of all contestants.
  uint64_t computed_tokens() const { return computed_tokens_; }
  // The tokens of the piece that the last Run ended, in order; none unless it returned true.
  std::span<const Sample> Fresh() const { return fresh_; }
  // One for each contestant, of what has been scored so far.
  std::vector<TextScore> Scores() const;

 private:
  // Rows [first, end) of the present window.
  struct Piece {
    int32_t first = 0;
    int32_t end = 0;
  };
  // The contestants of one model and their present pass.
  struct Group {
    Model* model = nullptr;
    std::vector<size_t> contestants = {};
    std::vector<Row> rows = {};
    std::vector<ContextView> views = {};
    std::vector<float> logits = {};
    std::unique_ptr<Pass> pass = nullptr;
    bool computed = false;
  };

  TextScorer(std::vector<ScoreContestant> contestants, ScoredText text,
             const ScoreOptions& options);
  bool OneWindow() const;
  void OpenWindow();
  absl::Status Begin(Group& group);
  void EncodeBefore(int32_t position);
  absl::Status ScoreRow(int32_t row);
  std::span<float> LogitsOf(size_t contestant, int32_t row);
  // Rows before it want no logits.
  int32_t first_row() const { return first_scored_ - 1; }

  const std::vector<ScoreContestant> contestants_;
  const ScoredText text_;
  const ScoreOptions options_;
  const size_t vocabulary_;
  std::vector<Group> groups_;
  std::vector<TextScore> scores_;
  std::vector<int64_t> right_, agreed_;  // by contestant
  std::vector<Sample> fresh_;
  uint64_t computed_tokens_ = 0;  // of pieces that are over

  // The present window.
  size_t next_window_ = 0;  // index of the first id behind it
  std::vector<int32_t> window_;
  int32_t first_scored_ = 1;
  std::deque<Piece> pieces_;    // left to compute; the front one is under way
  std::vector<ScratchKv> kv_;   // by contestant
  std::vector<int32_t> coded_;  // chunks that are in the contestant's format, by contestant
  bool piece_begun_ = false;
  int32_t next_scored_row_ = 0;  // of the front piece, once its passes are computed
};

}  // namespace withy::engine
