// The hidden states that a draft head goes on from in one context: what the target's layers read of
// the tokens that it has computed, and what the head itself gave for tokens that it drafted.
// Neighbours: model.h carries it in a ContextView; draft_head.h reads and fills it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace withy::engine {

// Not thread-safe.
class HeadStates {
 public:
  // Widths: numbers of a token's features, and of the head's own hidden state.
  HeadStates(int32_t feature_width, int32_t hidden_width)
      : feature_width_(static_cast<size_t>(feature_width)),
        hidden_width_(static_cast<size_t>(hidden_width)) {}

  // Features of the token at `position`, [feature_width]. Where that is not end(), what was there
  // before is forgotten, and the head sees nothing before this token.
  void Append(int32_t position, std::span<const float> features) {
    if (position != end_) {
      begin_ = end_ = position;
      first_ = position + 1;
      features_.clear();
    }
    features_.insert(features_.end(), features.begin(), features.end());
    ++end_;
  }
  // Position of the first token that the head computes and sees: the one behind the first features.
  int32_t first() const { return first_; }
  // Tokens at [first() - 1, end()) have had features.
  int32_t end() const { return end_; }
  // Empty: there are none (any more).
  std::span<const float> FeaturesOf(int32_t position) const {
    if (position < begin_ || position >= end_) return {};
    return std::span(features_).subspan(static_cast<size_t>(position - begin_) * feature_width_,
                                        feature_width_);
  }
  // Features of tokens before `position` are not read any more.
  void DropBefore(int32_t position) {
    if (position <= begin_) return;
    const auto dropped =
        static_cast<ptrdiff_t>(static_cast<size_t>(position - begin_) * feature_width_);
    features_.erase(features_.begin(), features_.begin() + dropped);
    begin_ = position;
  }

  // Hidden states of the rows in the slots from `slot` on are the head's own; none is known yet.
  void BeginDrafts(int32_t slot) {
    first_draft_ = slot;
    known_.clear();
  }
  // Where the row in `slot` leaves its hidden state. Spans of before may become invalid.
  std::span<float> RoomFor(int32_t slot) {
    const auto at = static_cast<size_t>(slot - first_draft_);
    if (at >= known_.size()) {
      known_.resize(at + 1);
      hidden_.resize(known_.size() * hidden_width_);
    }
    known_[at] = true;
    return std::span(hidden_).subspan(at * hidden_width_, hidden_width_);
  }
  // Whether a row in `slot` may leave one.
  bool TakesDraft(int32_t slot) const { return slot >= first_draft_; }
  // [hidden_width]; empty: there is none.
  std::span<const float> HiddenOf(int32_t slot) const {
    const int32_t at = slot - first_draft_;
    if (at < 0 || static_cast<size_t>(at) >= known_.size() || !known_[static_cast<size_t>(at)]) {
      return {};
    }
    return std::span(hidden_).subspan(static_cast<size_t>(at) * hidden_width_, hidden_width_);
  }

 private:
  const size_t feature_width_;
  const size_t hidden_width_;
  int32_t first_ = 0;
  int32_t begin_ = 0;  // tokens [begin_, end_) have features here
  int32_t end_ = -1;
  std::vector<float> features_;
  int32_t first_draft_ = 0;
  std::vector<bool> known_;    // [slot - first_draft_]
  std::vector<float> hidden_;  // [slot - first_draft_, hidden_width]
};

}  // namespace withy::engine
