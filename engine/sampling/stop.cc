#include "engine/sampling/stop.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"

namespace withy::engine {
namespace {

// Length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t PartialMatch(std::string_view text, std::string_view stop) {
  size_t length = std::min(text.size(), stop.size() - 1);
  while (length > 0 && !text.ends_with(stop.substr(0, length))) --length;
  return length;
}

}  // namespace

absl::Status ValidateStopStrings(std::span<const std::string> stops) {
  if (stops.size() > kMaxStopStrings) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop has ", stops.size(), " strings, limit ", kMaxStopStrings));
  }
  for (size_t i = 0; i < stops.size(); ++i) {
    if (!stops[i].empty() && stops[i].size() <= kMaxStopStringBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat("stop[", i, "] has ", stops[i].size(),
                                                   " bytes, limits 1 to ", kMaxStopStringBytes));
  }
  return absl::OkStatus();
}

std::string StopMatcher::Push(std::string_view text) {
  if (stopped()) return "";
  held_.append(text);
  // The first stop string to become complete ends the answer; of those that end together the
  // longest. So the result does not depend on how the text was cut.
  size_t cut = 0;
  size_t best_end = std::string::npos;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t found = held_.find(stops_[i]);
    if (found == std::string::npos) continue;
    const size_t end = found + stops_[i].size();
    if (end > best_end || (end == best_end && found >= cut)) continue;
    best_end = end;
    cut = found;
    matched_ = static_cast<int>(i);
  }
  if (!stopped()) {
    size_t keep = 0;
    for (const std::string& stop : stops_) keep = std::max(keep, PartialMatch(held_, stop));
    cut = held_.size() - keep;
  }
  std::string shown = held_.substr(0, cut);
  held_.erase(0, stopped() ? std::string::npos : cut);
  return shown;
}

std::string StopMatcher::Flush() { return std::exchange(held_, ""); }

}  // namespace withy::engine
