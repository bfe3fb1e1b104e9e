#include "base/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/strings.h"

namespace withy {
namespace {

constexpr int64_t kRedrawNs = 200 * kNanosPerMilli;
constexpr int64_t kLogNs = 30 * kNanosPerSecond;
constexpr int kBarWidth = 20;

}  // namespace

std::string ProgressText(std::string_view what, double share, std::optional<double> stage_s,
                         std::optional<double> all_s) {
  share = std::clamp(share, 0.0, 1.0);
  const int filled = static_cast<int>(kBarWidth * share);
  // Rounds down: 100 % means that everything is done.
  std::string text = absl::StrFormat("[%s%s] %3d %% %s: ", std::string(filled, '#'),
                                     std::string(kBarWidth - filled, ' '),
                                     static_cast<int>(100 * share), ToAbsl(what));
  if (share >= 1) return absl::StrCat(text, "done");
  if (!stage_s.has_value() && !all_s.has_value()) return absl::StrCat(text, "measuring");
  if (stage_s.has_value()) absl::StrAppend(&text, DurationText(*stage_s), " left");
  if (all_s.has_value()) {
    absl::StrAppend(&text, stage_s.has_value() ? ", " : "", DurationText(*all_s),
                    stage_s.has_value() ? " for the whole" : " left in all");
  }
  return text;
}

ProgressLine::ProgressLine(const Clock& clock)
    : clock_(clock), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() { End(); }

void ProgressLine::Show(const std::string& text, bool now) {
  const int64_t time = clock_.SteadyNanos();
  const int64_t pause = terminal_ ? kRedrawNs : kLogNs;
  if (!now && shown_ns_.has_value() && time - *shown_ns_ < pause) return;
  shown_ns_ = time;
  if (terminal_) {
    std::fprintf(stderr, "\r\033[K%s", text.c_str());
    open_ = true;
  } else {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
  std::fflush(stderr);
}

void ProgressLine::End() {
  if (open_) std::fputs("\n", stderr);
  open_ = false;
}

void StepProgress::Show(std::string_view stage, std::string_view what, int64_t done, int64_t all) {
  const double now_s = static_cast<double>(clock_.SteadyNanos()) / kNanosPerSecond;
  const bool begins = !left_.has_value() || stage != stage_;
  if (begins) {
    stage_ = stage;
    first_ = done_ = done;
    left_.emplace(std::vector<TimeLeft::Stage>{{stage_, static_cast<double>(all)}}, false);
    left_->Begin(0, static_cast<double>(done), 1, now_s);
  }
  if (done > done_) left_->Advance(static_cast<double>(done - done_), now_s);
  done_ = std::max(done_, done);
  const bool over = done >= all;
  // Without an estimate nothing is known before the first steps are done.
  const bool known = over || done_ > first_;
  const double share = all == 0 ? 1 : static_cast<double>(done) / static_cast<double>(all);
  line_.Show(
      ProgressText(what, share, known ? std::optional<double>(left_->OfStage(now_s)) : std::nullopt,
                   std::nullopt),
      begins || over);
  if (over) line_.End();
}

}  // namespace withy
