// Estimates how long a run of several stages still takes, from estimates made before it began and
// from the time of its steps so far. Pure: times are arguments, so tests replay traces. Neighbours:
// progress_line.h prints the result; offline/ and cli/ drive it.
//
//   TimeLeft left({{"units", 120}, {"recovery", 7200}});
//   left.Begin(0, 0, 4, clock_s);
//   left.Advance(4, clock_s);        // 4 of the 120 estimated seconds' worth of work is done
//   left.OfAll(clock_s);
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace withy {

// Not thread-safe. Stages run one after the other, in order. Work is counted in estimated seconds
// (`cost_s`): the share done of a stage is its cost done divided by its estimate.
class TimeLeft {
 public:
  // Stages of one `kind` do the same kind of work: the measured time of one corrects the estimates
  // of the others. An estimate of 0 adds nothing to the total.
  struct Stage {
    std::string kind;
    double estimate_s = 0;
  };

  // `estimated` false: the estimates are relative (for example step counts), not seconds; nothing
  // is known before the first Advance.
  explicit TimeLeft(std::vector<Stage> stages, bool estimated = true);

  // Begins `stage`, of which an earlier run did `done_s`; all stages before it are over. `item_s`:
  // approximate cost of the work between two calls of Advance.
  void Begin(size_t stage, double done_s, double item_s, double now_s);
  // Replaces the estimate of a stage that has not ended.
  void SetEstimate(size_t stage, double estimate_s);
  // An earlier run did `cost_s` more of the current stage.
  void AddResumed(double cost_s);
  // `cost_s` more of the current stage is done.
  void Advance(double cost_s, double now_s);
  // The current stage is over.
  void End(double now_s);
  // An earlier run did all of `stage`.
  void Skip(size_t stage);

  // Seconds left of the current stage, and of all stages. Positive until End; 0 if no stage is
  // left.
  double OfStage(double now_s) const;
  double OfAll(double now_s) const;
  // Share of all work that is done, 0..1, measured in seconds.
  double Share(double now_s) const;
  double StageShare() const;  // of the current stage, measured in cost
  double estimate_s() const;

 private:
  struct State {
    Stage stage;
    double resumed_s = 0;  // cost done by an earlier run
    double cost_s = 0;     // cost done by this run
    double spent_s = 0;    // seconds spent on cost_s
    bool over = false;
  };
  // Ratio of measured to estimated seconds, from stages of this kind and from all stages.
  double RatioOf(const std::string& kind) const;
  double Estimated(const State& state) const;  // of the whole stage

  std::vector<State> stages_;
  double trust_;  // weight of the estimates, 0..1
  std::optional<size_t> running_;
  double began_s_ = 0;
  double advanced_s_ = 0;  // time of the last Advance or Begin
  double item_s_ = 0;
};

// "42 s", "12 min", "9 h 40 min", "3 days 4 h"; "less than 1 s".
std::string DurationText(double seconds);

}  // namespace withy
