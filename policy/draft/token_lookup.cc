#include "policy/draft/token_lookup.h"

#include <algorithm>
#include <bit>

namespace withy::policy {
namespace {

// Places are numbers of 32 bits: all is forgotten before they run out.
constexpr uint32_t kMostPlaces = uint32_t{1} << 31;

}  // namespace

TokenLookup::TokenLookup(int32_t capacity)
    : mask_(std::bit_ceil(static_cast<uint32_t>(std::max(capacity, 64))) - 1),
      ring_(size_t{mask_} + 1, kEndOfText),
      owners_(ring_.size(), 0),
      previous_(ring_.size(), kNowhere),
      heads_(ring_.size(), kNowhere) {}

void TokenLookup::Clear() {
  std::fill(heads_.begin(), heads_.end(), kNowhere);
  std::fill(previous_.begin(), previous_.end(), kNowhere);
  std::fill(ring_.begin(), ring_.end(), kEndOfText);
  std::fill(owners_.begin(), owners_.end(), 0);
  end_ = 1;
}

size_t TokenLookup::HeadOf(int32_t first, int32_t second, int32_t third) const {
  uint64_t hash = static_cast<uint32_t>(first);
  hash = hash * 0x9E3779B97F4A7C15u + static_cast<uint32_t>(second);
  hash = hash * 0x9E3779B97F4A7C15u + static_cast<uint32_t>(third);
  hash *= 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(hash >> 32) & mask_;
}

void TokenLookup::Append(std::span<const int32_t> tokens, uint32_t owner) {
  for (const int32_t token : tokens) {
    if (end_ >= kMostPlaces) Clear();
    const uint32_t place = end_++;
    ring_[(place - 1) & mask_] = token;
    owners_[(place - 1) & mask_] = owner;
    previous_[(place - 1) & mask_] = kNowhere;
    if (token == kEndOfText || place < kHashTokens) continue;
    const int32_t before = At(place - 1), first = At(place - 2);
    if (before == kEndOfText || first == kEndOfText) continue;
    uint32_t& head = heads_[HeadOf(first, before, token)];
    previous_[(place - 1) & mask_] = head;
    head = place;
  }
}

void TokenLookup::EndText() {
  const int32_t end[] = {kEndOfText};
  Append(end);
}

// Places keep their hashes: what is found there matches no text any more.
void TokenLookup::Forget(uint32_t owner) {
  for (size_t i = 0; i < ring_.size(); ++i) {
    if (owners_[i] != owner) continue;
    ring_[i] = kEndOfText;
    owners_[i] = 0;
  }
}

// Tokens before and at `place` that equal the end of `tail`.
int32_t TokenLookup::MatchLength(uint32_t place, std::span<const int32_t> tail) const {
  int32_t length = 0;
  while (length < kMaxMatch && static_cast<size_t>(length) < tail.size()) {
    const uint32_t at = place - static_cast<uint32_t>(length);
    if (!Holds(at) || At(at) != tail[tail.size() - 1 - static_cast<size_t>(length)]) break;
    ++length;
  }
  return length;
}

std::vector<TokenLookup::Match> TokenLookup::Find(std::span<const int32_t> tail, int32_t max_tokens,
                                                  int32_t max_matches) const {
  std::vector<Match> found;
  if (tail.size() < kHashTokens || max_tokens < 1 || max_matches < 1) return found;
  const auto last = tail.last(kHashTokens);
  struct Place {
    uint32_t place;
    int32_t length;
  };
  std::vector<Place> places;
  uint32_t place = heads_[HeadOf(last[0], last[1], last[2])];
  for (int32_t looked = 0; looked < kMaxPlaces && Holds(place); ++looked) {
    const bool followed = place + 1 < end_ && At(place + 1) != kEndOfText;
    const int32_t length = followed ? MatchLength(place, tail) : 0;
    if (length >= kHashTokens) places.push_back({place, length});
    const uint32_t before = previous_[(place - 1) & mask_];
    if (before >= place) break;  // it was written over
    place = before;
  }
  std::stable_sort(places.begin(), places.end(),
                   [](const Place& a, const Place& b) { return a.length > b.length; });
  for (const auto& [at, length] : places) {
    if (found.size() == static_cast<size_t>(max_matches)) break;
    const int32_t next = At(at + 1);
    if (std::any_of(found.begin(), found.end(),
                    [next](const Match& match) { return match.tokens.front() == next; })) {
      continue;
    }
    Match& match = found.emplace_back();
    match.length = length;
    for (uint32_t i = at + 1; i < end_ && match.tokens.size() < static_cast<size_t>(max_tokens);
         ++i) {
      if (At(i) == kEndOfText) break;
      match.tokens.push_back(At(i));
    }
  }
  return found;
}

size_t TokenLookup::bytes() const {
  return ring_.size() * sizeof(int32_t) +
         (owners_.size() + previous_.size() + heads_.size()) * sizeof(uint32_t);
}

}  // namespace withy::policy
