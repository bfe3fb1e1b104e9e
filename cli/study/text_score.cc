#include "cli/study/text_score.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::cli {
namespace {

using engine::kLeastScoreTokens;

// While it lives, passes record no spans.
class Unwatched {
 public:
  explicit Unwatched(std::span<ProfiledModel* const> models) : models_(models) { Watch(false); }
  ~Unwatched() { Watch(true); }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;

 private:
  void Watch(bool on) {
    for (ProfiledModel* model : models_) model->WatchKernels(on);
  }
  const std::span<ProfiledModel* const> models_;
};

}  // namespace

absl::StatusOr<std::vector<engine::TextScore>> ScoreText(std::span<ProfiledModel* const> models,
                                                         std::span<const int32_t> tokens,
                                                         const std::atomic<bool>* stop,
                                                         const std::function<void(double)>& done) {
  if (tokens.size() < static_cast<size_t>(kLeastScoreTokens)) {
    return absl::InvalidArgumentError(absl::StrCat("quality is judged by ", kLeastScoreTokens,
                                                   " tokens or more; the text has ", tokens.size(),
                                                   ": give a longer one with --text"));
  }
  engine::ScoredText text{.ids = {tokens.begin(), tokens.end()}, .window = kScoreWindow};
  std::vector<engine::ScoreContestant> contestants;
  for (ProfiledModel* model : models) {
    text.window = std::min(text.window, model->info().context_length);
    contestants.push_back({.model = &model->model()});
  }
  // Of a text that is one window, the second half, too.
  text.first_scored = static_cast<int32_t>(tokens.size() / 2) + 1;
  const Unwatched unwatched(models);
  WITHY_ASSIGN_OR_RETURN(const auto scorer,
                         engine::TextScorer::Create(std::move(contestants), std::move(text), {}));
  while (!scorer->finished()) {
    WITHY_ASSIGN_OR_RETURN(const bool scored, scorer->Run(stop));
    if (!scored) return absl::CancelledError("stopped while a text was scored");
    if (done) done(scorer->progress());
  }
  return scorer->Scores();
}

}  // namespace withy::cli
