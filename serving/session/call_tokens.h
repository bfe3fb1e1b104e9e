// The tokens of one call and the levels at which they are computed. Neighbours: session.h fills it;
// step_rows.h computes the tokens, step_draft.h drafts what follows them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/model.h"

namespace withy::serving {

// At which levels the tokens of a context are computed, in per cent; the levels fall.
class LevelHistory {
 public:
  // `model` outlives it; `percent` is one of its levels.
  LevelHistory(const engine::ModelInfo& model, int32_t percent);

  int32_t now() const { return spans_.back().percent; }
  // Indexes of the model's levels: when the call began, and now.
  int32_t first_index() const { return first_index_; }
  int32_t index() const { return index_; }
  int32_t At(int32_t position) const;
  // Tokens from `position` on are computed at `percent`, one of the model's levels.
  void Lower(int32_t position, int32_t percent);

 private:
  struct Span {
    int32_t first = 0;
    int32_t percent = 100;
  };
  const engine::ModelInfo& model_;
  const int32_t first_index_;
  int32_t index_;
  std::vector<Span> spans_;  // at least one, by position
};

// Owned by the call's session, whose parts read it. Not thread-safe.
struct CallTokens {
  const int32_t window = 0;  // when the call began
  LevelHistory levels;
  std::vector<int32_t> ids = {};  // prompt, then the answer
  int32_t prompt_end = 0;         // `ids` up to here are the prompt
  bool answer_begun = false;

  int32_t count() const { return static_cast<int32_t>(ids.size()); }
};

}  // namespace withy::serving
