#include "serving/session/call_tokens.h"

#include "engine/session/solo_answer.h"

namespace withy::serving {

LevelHistory::LevelHistory(const engine::ModelInfo& model, int32_t percent)
    : model_(model),
      first_index_(engine::LevelIndex(model, percent)),
      index_(first_index_),
      spans_{{.first = 0, .percent = percent}} {}

int32_t LevelHistory::At(int32_t position) const {
  int32_t percent = spans_.front().percent;
  for (const Span& span : spans_) {
    if (span.first <= position) percent = span.percent;
  }
  return percent;
}

void LevelHistory::Lower(int32_t position, int32_t percent) {
  index_ = engine::LevelIndex(model_, percent);
  spans_.push_back({.first = position, .percent = percent});
}

}  // namespace withy::serving
