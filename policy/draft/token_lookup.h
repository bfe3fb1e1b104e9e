// What followed the last tokens before: a draft that needs no model. Tokens are kept in a ring; a
// rolling hash of the last kHashTokens of them finds where they stood before, and the tokens that
// followed there are expected again. Pure. Neighbours: draft_tree.h merges what several places say;
// the worker has one lookup a call for its own tokens and one an app for its other calls.
// Source: prompt lookup decoding and ik_llama.cpp's rolling hash; ours follows chains of all places
// and prefers the longest match.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace withy::policy {

// Not thread-safe. Always: memory does not grow after construction.
class TokenLookup {
 public:
  static constexpr int32_t kHashTokens = 3;  // shortest match
  static constexpr int32_t kMaxMatch = 24;   // longer ones count as that long

  // A place where the last tokens stood before.
  struct Match {
    int32_t length = 0;           // tokens that match, kHashTokens .. kMaxMatch
    std::vector<int32_t> tokens;  // that followed, at least one
  };

  // Remembers the last `capacity` tokens (rounded up to a power of two, 64 at least).
  explicit TokenLookup(int32_t capacity);

  // `owner`: whose text they are, for Forget; 0: nobody's.
  void Append(std::span<const int32_t> tokens, uint32_t owner = 0);
  // What is appended from now on does not follow what was.
  void EndText();
  // Nothing that was appended for `owner` (not 0) is found any more, and its tokens are written
  // over. Takes time in proportion to the capacity.
  void Forget(uint32_t owner);
  // The places that match the end of `tail` best: the longest match first, of equal ones the latest
  // first; of places with the same next token the best alone. At most `max_matches`, each with at
  // most `max_tokens` (1 or more) tokens. Looks at kMaxPlaces places at most.
  std::vector<Match> Find(std::span<const int32_t> tail, int32_t max_tokens,
                          int32_t max_matches) const;

  size_t bytes() const;

 private:
  static constexpr int32_t kMaxPlaces = 32;
  static constexpr int32_t kEndOfText = -1;
  static constexpr uint32_t kNowhere = 0;  // places count from 1

  void Clear();
  bool Holds(uint32_t place) const { return place != kNowhere && place + ring_.size() > end_; }
  int32_t At(uint32_t place) const { return ring_[(place - 1) & mask_]; }
  int32_t MatchLength(uint32_t place, std::span<const int32_t> tail) const;
  size_t HeadOf(int32_t first, int32_t second, int32_t third) const;

  uint32_t mask_;
  std::vector<int32_t> ring_;       // by place
  std::vector<uint32_t> owners_;    // by place
  std::vector<uint32_t> previous_;  // by place: the place before with the same hash
  std::vector<uint32_t> heads_;     // by hash: the last place
  uint32_t end_ = 1;                // the place of the next token
};

}  // namespace withy::policy
