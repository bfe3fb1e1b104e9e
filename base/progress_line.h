// One line on stderr with the progress and the remaining time of a long run. On a terminal the line
// overwrites itself; elsewhere a new line appears now and then, so that a log stays readable.
// Neighbours: time_left.h computes the time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/time_left.h"

namespace withy {

// "[####      ]  37 % level 80 %, recovery: 12 min left, 5 h 10 min for the whole". `share` of the
// whole is in 0..1. Without `all_s` only the stage's time is given; without both, that it is being
// measured.
std::string ProgressText(std::string_view what, double share, std::optional<double> stage_s,
                         std::optional<double> all_s);

// Not thread-safe.
class ProgressLine {
 public:
  explicit ProgressLine(const Clock& clock = Clock::Real());
  ~ProgressLine();  // ends the line
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Shows `text` unless a text was shown a moment ago. `now`: always shows it.
  void Show(const std::string& text, bool now = false);
  // Ends the line, so that other output starts on its own line.
  void End();

 private:
  const Clock& clock_;
  const bool terminal_;
  std::optional<int64_t> shown_ns_;
  bool open_ = false;  // on a terminal: the cursor is at the end of the line
};

// Progress of consecutive stages whose number of steps alone is known. Shows the time left of the
// current stage.
class StepProgress {
 public:
  explicit StepProgress(const Clock& clock = Clock::Real()) : clock_(clock), line_(clock) {}
  // `stage` names what is counted; a new name starts a new count. `what` is shown.
  void Show(std::string_view stage, std::string_view what, int64_t done, int64_t all);
  void End() { line_.End(); }

 private:
  const Clock& clock_;
  ProgressLine line_;
  std::string stage_;
  std::optional<TimeLeft> left_;
  int64_t first_ = 0;  // steps done when the stage began
  int64_t done_ = 0;
};

}  // namespace withy
