#include "engine/tokenizer/special_matcher.h"

#include <algorithm>

namespace withy::engine {

void SpecialMatcher::Add(std::string_view text, int32_t id, bool control, bool strip_after) {
  if (!text.empty()) entries_.push_back({text, id, control, strip_after});
}

void SpecialMatcher::Sort() {
  std::stable_sort(entries_.begin(), entries_.end(),
                   [](const Entry& a, const Entry& b) { return a.text < b.text; });
  const auto last = std::unique(entries_.begin(), entries_.end(),
                                [](const Entry& a, const Entry& b) { return a.text == b.text; });
  entries_.erase(last, entries_.end());
  for (const Entry& entry : entries_) ++begins_[static_cast<uint8_t>(entry.text[0]) + size_t{1}];
  for (size_t byte = 1; byte < begins_.size(); ++byte) begins_[byte] += begins_[byte - 1];
}

const SpecialMatcher::Entry* SpecialMatcher::LongestAt(std::string_view rest, bool with_control,
                                                       uint32_t* length) const {
  const Entry* longest = nullptr;
  const auto first = static_cast<uint8_t>(rest[0]);
  // The entries whose first `at` bytes equal those of `rest`.
  auto begin = entries_.begin() + begins_[first];
  auto end = entries_.begin() + begins_[first + size_t{1}];
  for (size_t at = 1; begin != end; ++at) {
    if (begin->text.size() == at) {  // the shortest comes first
      if (with_control || !begin->control) {
        longest = &*begin;
        *length = static_cast<uint32_t>(at);
      }
      ++begin;
    }
    if (at == rest.size()) break;
    const auto byte = static_cast<uint8_t>(rest[at]);
    const auto byte_of = [at](const Entry& entry) { return static_cast<uint8_t>(entry.text[at]); };
    begin = std::partition_point(begin, end, [&](const Entry& e) { return byte_of(e) < byte; });
    end = std::partition_point(begin, end, [&](const Entry& e) { return byte_of(e) == byte; });
  }
  return longest;
}

void SpecialMatcher::Find(std::string_view text, uint32_t begin, uint32_t end, bool with_control,
                          CancelPoll& poll, std::vector<SpecialMatch>& out) const {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  for (uint32_t at = begin; at < end && !poll.stopped();) {
    uint32_t length = 1;
    const Entry* entry = LongestAt(text.substr(at, end - at), with_control, &length);
    poll.Stop(length);
    if (entry == nullptr) {
      ++at;
      continue;
    }
    uint32_t match_end = at + length;
    // The space after a token may be in the next piece.
    while (entry->strip_after && match_end < text.size() && is_space(text[match_end])) ++match_end;
    out.push_back({entry->id, at, match_end});
    at = match_end;
  }
}

}  // namespace withy::engine
