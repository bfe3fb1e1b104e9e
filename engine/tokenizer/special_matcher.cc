#include "engine/tokenizer/special_matcher.h"

#include <algorithm>
#include <functional>

#include "base/strings.h"

namespace withy::engine {

void SpecialMatcher::Add(std::string_view text, int32_t id, bool control, bool strip_after) {
  if (text.empty() || !entries_.emplace(ToAbsl(text), Entry{id, control, strip_after}).second)
    return;
  std::vector<uint32_t>& lengths = lengths_[static_cast<uint8_t>(text[0])];
  const auto length = static_cast<uint32_t>(text.size());
  const auto at = std::lower_bound(lengths.begin(), lengths.end(), length, std::greater<>());
  if (at == lengths.end() || *at != length) lengths.insert(at, length);
}

const SpecialMatcher::Entry* SpecialMatcher::LongestAt(std::string_view rest, bool with_control,
                                                       uint32_t* length) const {
  for (const uint32_t candidate : lengths_[static_cast<uint8_t>(rest[0])]) {
    if (candidate > rest.size()) continue;
    const auto found = entries_.find(ToAbsl(rest.substr(0, candidate)));
    if (found == entries_.end() || (found->second.control && !with_control)) continue;
    *length = candidate;
    return &found->second;
  }
  return nullptr;
}

void SpecialMatcher::Find(std::string_view text, uint32_t begin, uint32_t end, bool with_control,
                          std::vector<SpecialMatch>& out) const {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  for (uint32_t at = begin; at < end;) {
    uint32_t length = 0;
    const Entry* entry = LongestAt(text.substr(at, end - at), with_control, &length);
    if (entry == nullptr) {
      ++at;
      continue;
    }
    uint32_t match_end = at + length;
    // The space after a token may belong to the next piece.
    while (entry->strip_after && match_end < text.size() && is_space(text[match_end])) ++match_end;
    out.push_back({entry->id, at, match_end});
    at = match_end;
  }
}

}  // namespace withy::engine
