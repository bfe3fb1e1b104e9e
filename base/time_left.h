// How long a run of several stages will still take: from an estimate made before it began and from
// what its steps have taken since. Neighbours: progress_line.h prints it; offline/ and cli/
// drive it. Pure: times are arguments, so tests replay traces.
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

// Not thread-safe. Stages run one after the other, in their order. Work is counted in seconds as
// estimated, `cost_s`: what has been done of a stage divided by its estimate is its share.
class TimeLeft {
 public:
  // Stages of one `kind` do the same kind of work: what one of them took corrects the estimate of
  // the others. An estimate of 0 adds nothing to the total.
  struct Stage {
    std::string kind;
    double estimate_s = 0;
  };

  // Not `estimated`: the estimates are only how the stages compare, such as counts of steps, and
  // say nothing about seconds. Then nothing is known before the first Advance.
  explicit TimeLeft(std::vector<Stage> stages, bool estimated = true);

  // Begins `stage`, of which `done_s` was done by an earlier run; all before it are over. `item_s`:
  // the cost of what is done between two calls of Advance, roughly.
  void Begin(size_t stage, double done_s, double item_s, double now_s);
  // Replaces the estimate of a stage that has not ended, once it is known better.
  void SetEstimate(size_t stage, double estimate_s);
  // Of the stage that runs, `cost_s` more was done by an earlier run.
  void Found(double cost_s);
  // `cost_s` more of the stage that runs is done.
  void Advance(double cost_s, double now_s);
  // The stage that runs is over.
  void End(double now_s);
  // `stage` was done by an earlier run.
  void Skip(size_t stage);

  // Seconds left of the stage that runs, and of all stages. Above 0 until End; 0 where no stage is
  // left.
  double OfStage(double now_s) const;
  double OfAll(double now_s) const;
  // Share of all work that is done, 0..1, by seconds.
  double Share(double now_s) const;
  double StageShare() const;  // of the stage that runs, by cost
  double estimate_s() const;

 private:
  struct State {
    Stage stage;
    double found_s = 0;  // done by an earlier run, in cost
    double cost_s = 0;   // done by this one
    double spent_s = 0;  // that it took
    bool over = false;
  };
  // Seconds taken for one estimated, by what stages of this kind and all stages have taken.
  double RatioOf(const std::string& kind) const;
  double Estimated(const State& state) const;  // of the whole stage

  std::vector<State> stages_;
  double trust_;  // in the estimates, 0..1
  std::optional<size_t> running_;
  double began_s_ = 0;
  double advanced_s_ = 0;  // when Advance or Begin was called last
  double item_s_ = 0;
};

// "42 s", "12 min", "9 h 40 min", "3 days 4 h"; "less than 1 s".
std::string DurationText(double seconds);

}  // namespace withy
