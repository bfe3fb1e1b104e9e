// One line on stderr that says how far a long run is and how long it will still take. Neighbours:
// time_left.h computes that. On a terminal the line is written over itself; elsewhere a new one is
// written now and then, so that a log stays readable.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/time_left.h"

namespace withy {

// "[####      ]  37 % level 80 %, recovery: 12 min left, 5 h 10 min of all". `share`: 0..1 of the
// whole. Without `all_s` only the stage's time is said; without either that it is being measured.
std::string ProgressText(std::string_view what, double share, std::optional<double> stage_s,
                         std::optional<double> all_s);

// Not thread-safe.
class ProgressLine {
 public:
  explicit ProgressLine(const Clock& clock = Clock::Real());
  ~ProgressLine();  // ends the line
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Shows `text` unless one was shown a moment ago; `now`: in any case.
  void Show(const std::string& text, bool now = false);
  // Ends the line, so that other output begins at its own.
  void End();

 private:
  const Clock& clock_;
  const bool terminal_;
  std::optional<int64_t> shown_ns_;
  bool open_ = false;  // on a terminal: the cursor is behind the line
};

// The progress of one stage after the other, of which only the number of steps is known: the time
// left is that of the stage.
class StepProgress {
 public:
  explicit StepProgress(const Clock& clock = Clock::Real()) : clock_(clock), line_(clock) {}
  // `stage` names what is counted; another one begins another count. `what` is shown.
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
