// How many rows of prompts fit into one step beside answers. Neighbours: step_learner.h feeds it,
// step_plan.h asks it.
#pragma once

#include <cstdint>

namespace withy::policy {

// Learns from the steps that ran: shrinks at once when a step took too long, grows by at most a
// quarter when a full one left time. Counts rows of the full model; rows of a lower level count as
// the share of it that they take. Not thread-safe.
class PieceSizer {
 public:
  // `us_per_row` is the first guess.
  PieceSizer(double us_per_row, int32_t piece_ms, int32_t max_rows);

  // Rows of prompts beside `decode_rows` rows of answers; kFewestPieceRows..max_rows, multiples
  // of 8. `share`: time of each row as a share of one of the full model, (0, 1].
  int32_t Rows(int32_t decode_rows, double share = 1) const;
  // A step whose rows are worth `full_rows` rows of the full model took `elapsed_us`.
  void Observe(double full_rows, double elapsed_us);

 private:
  double piece_us_;
  int32_t max_rows_;
  double rows_;
};

}  // namespace withy::policy
