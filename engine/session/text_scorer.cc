#include "engine/session/text_scorer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/kv/block.h"
#include "engine/kv/exact_chunks.h"
#include "engine/session/predictions.h"

namespace withy::engine {
namespace {

// Rows of a contestant in a pass without logits.
constexpr int32_t kPrefilledScoreRows = 128;

bool IsLow(KvFormat format) { return format != KvFormat::kQ8 && format != KvFormat::kF16; }

KvFormat WrittenFormat(KvFormat format) {
  return format == KvFormat::kF16 ? KvFormat::kF16 : KvFormat::kQ8;
}

absl::Status CheckContestants(std::span<const ScoreContestant> contestants) {
  const ModelInfo& first = contestants.front().model->info();
  for (const ScoreContestant& contestant : contestants) {
    const ModelInfo& info = contestant.model->info();
    if (info.vocab_size != first.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          info.name, " has a vocabulary of ", info.vocab_size, " tokens, ", first.name, " one of ",
          first.vocab_size, ": only models with one vocabulary can be compared"));
    }
    if (contestant.level >= static_cast<int32_t>(info.levels.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("level ", contestant.level, ": ", info.name, " has ", info.levels.size()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLength(const ScoredText& text, const ModelInfo& info) {
  const auto tokens = static_cast<int64_t>(text.ids.size());
  if (text.first_scored < 1 || text.first_scored >= tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the text has ", tokens, " tokens, of which none is predicted: give a longer one"));
  }
  if (text.window == 0 && tokens > info.context_length) {
    return absl::OutOfRangeError(absl::StrCat("the text has ", tokens, " tokens, the window of ",
                                              info.name, " ", info.context_length,
                                              ": score it in windows (window_tokens)"));
  }
  if (text.window != 0 && (text.window < kLeastScoreTokens || text.window > info.context_length)) {
    return absl::InvalidArgumentError(
        absl::StrCat("windows of ", text.window, " tokens (window_tokens): ", info.name, " takes ",
                     kLeastScoreTokens, " to ", info.context_length));
  }
  return absl::OkStatus();
}

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double SumOf(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TextScorer>> TextScorer::Create(
    std::vector<ScoreContestant> contestants, ScoredText text, const ScoreOptions& options) {
  WITHY_RETURN_IF_ERROR(CheckContestants(contestants));
  for (const ScoreContestant& contestant : contestants) {
    WITHY_RETURN_IF_ERROR(CheckLength(text, contestant.model->info()));
  }
  return std::unique_ptr<TextScorer>(
      new TextScorer(std::move(contestants), std::move(text), options));
}

size_t TextScorer::KvBytes(std::span<const ScoreContestant> contestants, int32_t window_tokens) {
  const auto chunks = static_cast<size_t>((window_tokens + kChunkTokens - 1) / kChunkTokens);
  size_t bytes = 0;
  for (const ScoreContestant& contestant : contestants) {
    const KvInfo& kv = contestant.model->info().kv;
    const KvGeometry geometry{kv.layers, kv.kv_heads, kv.head_dim};
    bytes += chunks * geometry.ChunkBytes(WrittenFormat(contestant.kv_format));
  }
  return bytes;
}

TextScorer::TextScorer(std::vector<ScoreContestant> contestants, ScoredText text,
                       const ScoreOptions& options)
    : contestants_(std::move(contestants)),
      text_(std::move(text)),
      options_(options),
      vocabulary_(static_cast<size_t>(contestants_.front().model->info().vocab_size)),
      scores_(contestants_.size()),
      right_(contestants_.size()),
      agreed_(contestants_.size()) {
  for (size_t c = 0; c < contestants_.size(); ++c) {
    Model* const model = contestants_[c].model;
    const auto same = std::find_if(groups_.begin(), groups_.end(),
                                   [&](const Group& group) { return group.model == model; });
    Group& group = same == groups_.end() ? groups_.emplace_back(Group{.model = model}) : *same;
    group.contestants.push_back(c);
  }
  OpenWindow();
}

bool TextScorer::OneWindow() const {
  return text_.window == 0 || text_.ids.size() <= static_cast<size_t>(text_.window);
}

// Takes the next window, if there is one, and cuts it into pieces. All pieces begin at multiples of
// kScorePieceRows, so that what a token attends to depends on its position alone.
void TextScorer::OpenWindow() {
  const std::span<const int32_t> ids = text_.ids;
  if (OneWindow()) {
    window_.assign(ids.begin(), ids.end());
    first_scored_ = text_.first_scored;
    next_window_ = ids.size();
  } else {
    window_.clear();
    if (next_window_ > 0 && text_.bos >= 0) window_.push_back(text_.bos);
    const size_t body =
        std::min(static_cast<size_t>(text_.window) - window_.size(), ids.size() - next_window_);
    const auto from = ids.begin() + static_cast<ptrdiff_t>(next_window_);
    window_.insert(window_.end(), from, from + static_cast<ptrdiff_t>(body));
    first_scored_ = static_cast<int32_t>(window_.size() / 2) + 1;
    next_window_ += body;
    // A rest that is too short to have a half that says anything.
    if (ids.size() - next_window_ < static_cast<size_t>(kLeastScoreTokens)) {
      next_window_ = ids.size();
    }
  }
  const bool any_low =
      std::any_of(contestants_.begin(), contestants_.end(),
                  [](const ScoreContestant& contestant) { return IsLow(contestant.kv_format); });
  const int32_t prefill = any_low ? kScorePieceRows : kPrefilledScoreRows;
  const int32_t rows = static_cast<int32_t>(window_.size()) - 1;
  const int32_t unscored = first_row() / kScorePieceRows * kScorePieceRows;
  for (int32_t first = 0; first < rows;) {
    const int32_t end = first < unscored ? std::min(first + prefill, unscored)
                                         : std::min(first + kScorePieceRows, rows);
    pieces_.push_back({first, end});
    first = end;
  }
  kv_.clear();
  for (const ScoreContestant& contestant : contestants_) {
    kv_.emplace_back(contestant.model->info(), 0, WrittenFormat(contestant.kv_format));
  }
  coded_.assign(contestants_.size(), kExactChunks);
}

// Brings the chunks that are old enough for a row at `position` to their contestants' formats.
void TextScorer::EncodeBefore(int32_t position) {
  const int32_t end = position / kChunkTokens - kExactChunks;
  for (size_t c = 0; c < contestants_.size(); ++c) {
    if (!IsLow(contestants_[c].kv_format)) continue;
    for (; coded_[c] < end; ++coded_[c]) kv_[c].Encode(coded_[c], contestants_[c].kv_format);
  }
}

absl::Status TextScorer::Begin(Group& group) {
  const Piece& piece = pieces_.front();
  group.rows.clear();
  group.views.clear();
  size_t wanted = 0;
  for (size_t i = 0; i < group.contestants.size(); ++i) {
    const size_t c = group.contestants[i];
    group.views.push_back(kv_[c].View(piece.first));
    for (int32_t position = piece.first; position < piece.end; ++position) {
      const bool scored = position >= first_row();
      wanted += scored ? 1 : 0;
      group.rows.push_back({.token = window_[static_cast<size_t>(position)],
                            .position = position,
                            .slot = position,
                            .context = static_cast<int32_t>(i),
                            .level = contestants_[c].level,
                            .want_logits = scored});
    }
  }
  group.logits.resize(wanted * vocabulary_);
  WITHY_ASSIGN_OR_RETURN(
      group.pass,
      group.model->Begin({.rows = group.rows, .contexts = group.views}, group.logits.data()));
  return absl::OkStatus();
}

absl::StatusOr<bool> TextScorer::Run(const std::atomic<bool>* stop) {
  if (!piece_begun_) fresh_.clear();
  if (finished()) return true;
  const Piece piece = pieces_.front();
  if (!piece_begun_) {
    for (ScratchKv& kv : kv_) kv.Extend(piece.end);
    EncodeBefore(piece.first);
    piece_begun_ = true;
    next_scored_row_ = std::max(piece.first, first_row());
  }
  for (Group& group : groups_) {
    if (group.computed) continue;
    if (group.pass == nullptr) WITHY_RETURN_IF_ERROR(Begin(group));
    if (!group.pass->Run(stop)) {
      WITHY_RETURN_IF_ERROR(group.pass->status());
      return false;
    }
    group.pass = nullptr;
    group.computed = true;
  }
  for (; next_scored_row_ < piece.end; ++next_scored_row_) {
    if (stop != nullptr && *stop) return false;
    WITHY_RETURN_IF_ERROR(ScoreRow(next_scored_row_));
  }
  for (Group& group : groups_) group.computed = false;
  piece_begun_ = false;
  computed_tokens_ += static_cast<uint64_t>(piece.end - piece.first) * contestants_.size();
  pieces_.pop_front();
  if (pieces_.empty() && next_window_ < text_.ids.size()) OpenWindow();
  return true;
}

std::span<float> TextScorer::LogitsOf(size_t contestant, int32_t row) {
  for (Group& group : groups_) {
    const auto at = std::find(group.contestants.begin(), group.contestants.end(), contestant);
    if (at == group.contestants.end()) continue;
    const Piece& piece = pieces_.front();
    const int32_t first = std::max(piece.first, first_row());
    const auto before = static_cast<size_t>(at - group.contestants.begin()) *
                        static_cast<size_t>(piece.end - first);
    return std::span(group.logits)
        .subspan((before + static_cast<size_t>(row - first)) * vocabulary_, vocabulary_);
  }
  return {};
}

// Counts what the row at `row` of the window predicted.
absl::Status TextScorer::ScoreRow(int32_t row) {
  const int32_t next = window_[static_cast<size_t>(row) + 1];
  const std::span<const float> reference = LogitsOf(0, row);
  int32_t reference_likeliest = 0;
  for (size_t c = 0; c < contestants_.size(); ++c) {
    const std::span<float> logs = LogitsOf(c, row);
    LogSoftmax(logs);
    const float logprob = logs[static_cast<size_t>(next)];
    if (!std::isfinite(logprob)) {
      return absl::InternalError(
          absl::StrCat(contestants_[c].model->info().name, " predicts token ", next,
                       " with a log-probability that is no number; its weights are damaged"));
    }
    const int32_t likeliest = Likeliest(logs);
    if (c == 0) reference_likeliest = likeliest;
    scores_[c].losses.push_back(-static_cast<double>(logprob));
    scores_[c].divergences.push_back(c == 0 ? 0 : Divergence(reference, logs));
    right_[c] += likeliest == next ? 1 : 0;
    agreed_[c] += likeliest == reference_likeliest ? 1 : 0;
  }
  if (!options_.report_tokens) return absl::OkStatus();
  const std::span<const float> last = LogitsOf(contestants_.size() - 1, row);
  fresh_.push_back({.id = next,
                    .logprob = last[static_cast<size_t>(next)],
                    .top = options_.top_logprobs == 0
                               ? std::vector<TokenLogprob>{}
                               : LikeliestTokens(last, options_.top_logprobs)});
  return absl::OkStatus();
}

double TextScorer::progress() const {
  if (finished()) return 1;
  const auto left =
      pieces_.empty() ? size_t{0} : window_.size() - 1 - static_cast<size_t>(pieces_.front().first);
  const double all = static_cast<double>(text_.ids.size());
  return std::clamp((static_cast<double>(next_window_) - static_cast<double>(left)) / all, 0.0,
                    1.0);
}

std::vector<TextScore> TextScorer::Scores() const {
  std::vector<TextScore> scores = scores_;
  for (size_t c = 0; c < scores.size(); ++c) {
    TextScore& score = scores[c];
    const auto count = static_cast<double>(std::max<size_t>(score.losses.size(), 1));
    score.perplexity = std::exp(SumOf(score.losses) / count);
    score.right_share = static_cast<double>(right_[c]) / count;
    score.agreed_share = static_cast<double>(agreed_[c]) / count;
    score.divergence = SumOf(score.divergences) / count;
    score.divergence_median = MedianOf(score.divergences);
  }
  return scores;
}

}  // namespace withy::engine
