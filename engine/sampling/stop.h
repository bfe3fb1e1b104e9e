// Ends an answer at the first of several stop strings, in text that arrives in pieces. Neighbour:
// the tokenizer's StreamDecoder makes the pieces.
//
//   StopMatcher stop(stops);
//   emit(stop.Push(piece)); if (stop.stopped()) …; at the end emit(stop.Flush());
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace withy::engine {

// Errors: InvalidArgument naming the entry and the limit: more than 16, empty, longer than 256
// bytes.
absl::Status ValidateStopStrings(std::span<const std::string> stops);

// Holds back text that may be the start of a stop string. Not thread-safe.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Returns the text that can be shown now. After a match: the text before the stop string, then
  // nothing.
  std::string Push(std::string_view text);
  // Returns the text held back, at the end of an answer without a match.
  std::string Flush();

  bool stopped() const { return matched_ >= 0; }
  int matched() const { return matched_; }  // index of the matched stop string, or -1

 private:
  std::vector<std::string> stops_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace withy::engine
