// What is known of a board beside its calibrated times: how slow its worker says that it is, and
// what finished calls have taught: how far those times are off, how reliable predictions are, how
// long answers get. Plain data, copied freely. Neighbours: latency_learning.h
// moves it, latency_model.h predicts by it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policy/board/ramp.h"
#include "policy/board/speed_fit.h"
#include "policy/call/reliability.h"
#include "policy/constants.h"
#include "policy/draft/speculation_outlook.h"

namespace withy::policy {

// How fast calls are, as measured.
struct MeasuredSpeed {
  SpeedFit prefill;  // of one call
  SpeedFit step;     // of decoding
  Ramp ramp = {};
  double overhead_ms = 1;  // of a call, beside waiting and prefill
  int overhead_surprises = 0;
};

// What is learnt of one app, whose calls are alike. Predictions of them have a reliability of their
// own: what comes on top of a short prompt and a short answer is more of them than of long ones.
struct AppHistory {
  std::string app;
  Reliability reliability;
  double calls = 0;
  double answer_tokens = 0;  // mean; 0 = no answer has come to its end yet
  SpeculationOutlook speculation = {};
};

// Ratio of one level's measured time to its calibrated time, divided by the same ratio over all
// levels: each level is calibrated within a minute, and is some per cent off.
struct LevelBias {
  uint32_t percent = 100;
  double prefill = 1;
  double step = 1;
};

// Starts neutral. The speed of all calls predicts the next one. `idle` is learnt from
// calls of the full model beside which no other ran: its speed on the idle board. Calls at lower
// levels are left out: their short passes take half as long again after a pause. They would inflate
// `idle`, and with it every target given as a ratio.
struct LiveCorrection : MeasuredSpeed {
  MeasuredSpeed idle;
  double mean_completion_tokens = kUsualAnswerTokens;  // for the wait behind others
  double tlm_us_per_byte = 0;          // of a prompt, to read and shorten it; 0 = not known yet
  double tlm_start_us_per_byte = 0;    // the same, as measured when it was opened; 0 = not known
  double pruned_tokens_ratio = 1;      // tokens of a shortened prompt: counted / estimated
  Reliability reliability = {};        // of all calls
  std::vector<AppHistory> apps = {};   // the one that called last stands last
  std::vector<LevelBias> biases = {};  // of levels that have answered
  uint64_t idle_calls = 0;             // that `idle` was learnt from
  // The board's, as its worker told it last (board_speed.h). Calibrated times are multiplied by it,
  // and the rest of this corrects the products. Calls alone would follow a neighbour or heat only
  // after a dozen of them, while the worker tells within a few passes. The worker alone knows
  // neither what a call takes between its passes nor by how few per cent a calibration is off,
  // which it leaves to calls by telling 1 (latency_learning_test.cc compares the three).
  double slowdown = 1;
  // The largest that was told during each of the last calls, the present one first; 0 = none.
  std::array<double, kSlowCallsKept> slowest = {};

  // The worker has told its board's speed. `told` is bounded by kMaxRatio.
  void TellSlowdown(double told);
  // A call has ended: what is told from now on is told during the next one.
  void EndCall();
  // For plans of calls: the largest of the last calls. Beside a neighbour a board is fast for a
  // moment, and the call that takes it for free is late; a board that is free costs a few calls
  // some quality.
  double SlowdownToExpect() const;

  double PrefillMs(const Work& calibrated) const { return prefill.Ms(calibrated * slowdown); }
  double StepMs(const Work& calibrated) const { return step.Ms(calibrated * slowdown); }
  LevelBias Bias(uint32_t percent) const;
  // Those of all calls until the app has called.
  const Reliability& ReliabilityOf(std::string_view app) const;
  double AnswerTokensOf(std::string_view app) const;
  // Ratio by which speculation is counted on to make the app's tokens faster; 1 until it has told.
  double SpeedupOf(std::string_view app) const;
};

}  // namespace withy::policy
