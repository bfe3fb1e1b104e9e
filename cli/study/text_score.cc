#include "cli/study/text_score.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::cli {
namespace {

// Rows whose logits are kept at once, of every model.
constexpr int32_t kScoredRows = 32;

void LogSoftmax(std::span<float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - top));
  const float shift = top + static_cast<float>(std::log(sum));
  for (float& logit : logits) logit -= shift;
}

int32_t Likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double DivergenceOfLogs(std::span<const float> p, std::span<const float> q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    sum += std::exp(static_cast<double>(p[i])) * static_cast<double>(p[i] - q[i]);
  }
  return std::max(sum, 0.0);
}

// Sums of one window and then of all.
class TextScorer {
 public:
  TextScorer(std::span<ProfiledModel* const> models, const std::atomic<bool>* stop)
      : models_(models), stop_(stop), scores_(models.size()), logits_(models.size()) {
    for (ProfiledModel* model : models_) {
      kv_.emplace_back(model->info(), std::min(kScoreWindow, model->info().context_length));
      model->WatchKernels(false);
    }
  }
  ~TextScorer() {
    for (ProfiledModel* model : models_) model->WatchKernels(true);
  }
  TextScorer(const TextScorer&) = delete;
  TextScorer& operator=(const TextScorer&) = delete;

  // The second half of the window is scored; its last token only as what is predicted.
  absl::Status Window(std::span<const int32_t> window) {
    const auto count = static_cast<int32_t>(window.size());
    const int32_t scored = count / 2;
    for (int32_t first = 0; first < count - 1;) {
      const int32_t last = first < scored ? std::min(first + kMostPassRows, scored)
                                          : std::min(first + kScoredRows, count - 1);
      for (size_t m = 0; m < models_.size(); ++m) {
        WITHY_RETURN_IF_ERROR(Compute(m, window, first, last, /*logits=*/first >= scored));
      }
      if (first >= scored) {
        for (int32_t i = first; i < last; ++i) {
          Score(static_cast<size_t>(i - first), window[static_cast<size_t>(i) + 1]);
        }
      }
      first = last;
    }
    return absl::OkStatus();
  }

  std::vector<TextScore> Finish() {
    for (TextScore& score : scores_) {
      const auto count = static_cast<double>(std::max<size_t>(score.losses.size(), 1));
      const double loss = std::accumulate(score.losses.begin(), score.losses.end(), 0.0);
      score.perplexity = std::exp(loss / count);
      score.right_share /= count;
      score.agreed_share /= count;
      score.divergence /= count;
    }
    return std::move(scores_);
  }

 private:
  absl::Status Compute(size_t m, std::span<const int32_t> window, int32_t first, int32_t last,
                       bool logits) {
    std::vector<engine::Row> rows;
    for (int32_t i = first; i < last; ++i) {
      rows.push_back({.token = window[static_cast<size_t>(i)],
                      .position = i,
                      .slot = i,
                      .want_logits = logits});
    }
    if (logits) logits_[m].resize(rows.size() * Vocabulary());
    const engine::ContextView view = kv_[m].View();
    return models_[m]->model().Forward({.rows = rows, .contexts = {&view, 1}}, logits_[m].data(),
                                       stop_);
  }

  void Score(size_t row, int32_t next) {
    const auto row_of = [&](size_t m) {
      return std::span(logits_[m]).subspan(row * Vocabulary(), Vocabulary());
    };
    LogSoftmax(row_of(0));
    const int32_t reference = Likeliest(row_of(0));
    for (size_t m = 0; m < models_.size(); ++m) {
      const std::span<float> logs = row_of(m);
      if (m > 0) LogSoftmax(logs);
      const int32_t likeliest = Likeliest(logs);
      TextScore& score = scores_[m];
      score.losses.push_back(-static_cast<double>(logs[static_cast<size_t>(next)]));
      score.right_share += likeliest == next ? 1 : 0;
      score.agreed_share += likeliest == reference ? 1 : 0;
      if (m > 0) score.divergence += DivergenceOfLogs(row_of(0), logs);
    }
  }

  size_t Vocabulary() const { return static_cast<size_t>(models_[0]->info().vocab_size); }

  const std::span<ProfiledModel* const> models_;
  const std::atomic<bool>* const stop_;
  std::vector<TextScore> scores_;
  std::vector<engine::ScratchKv> kv_;
  std::vector<std::vector<float>> logits_;
};

}  // namespace

absl::StatusOr<std::vector<TextScore>> ScoreText(std::span<ProfiledModel* const> models,
                                                 std::span<const int32_t> tokens,
                                                 const std::atomic<bool>* stop,
                                                 const std::function<void(double)>& done) {
  if (tokens.size() < kLeastScoreTokens) {
    return absl::InvalidArgumentError(absl::StrCat("quality is judged by ", kLeastScoreTokens,
                                                   " tokens or more; the text has ", tokens.size(),
                                                   ": give a longer one with --text"));
  }
  int32_t window = kScoreWindow;
  for (const ProfiledModel* model : models) window = std::min(window, model->info().context_length);
  TextScorer scorer(models, stop);
  for (size_t first = 0; first < tokens.size(); first += static_cast<size_t>(window)) {
    const auto part =
        tokens.subspan(first, std::min(static_cast<size_t>(window), tokens.size() - first));
    if (part.size() < kLeastScoreTokens) break;
    WITHY_RETURN_IF_ERROR(scorer.Window(part));
    if (done) {
      done(static_cast<double>(first + part.size()) / static_cast<double>(tokens.size()));
    }
  }
  return scorer.Finish();
}

}  // namespace withy::cli
