// The request_ids of calls that run here, so that a retry does not compute an answer twice.
// Neighbours: call_registry.h asks when a call comes and says how it ended; the store knows all
// stored answers, but not those that are about to be stored. Pure: time is an argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace withy::serving {

// Not thread-safe. An empty request_id names nothing.
class RequestNames {
 public:
  // How long a stored answer's name is kept: a retry that was sent before the answer was stored may
  // wait that long for its turn.
  static constexpr int64_t kKeptNs = 60'000'000'000;
  static constexpr size_t kKept = 1024;  // stored answers whose names are kept, at most

  // Errors: ABORTED when a call with this name is here, its commit included, or its answer was
  // stored less than kKeptNs ago.
  absl::Status Begin(const std::string& app_id, const std::string& request_id, int64_t now_ns);
  // The call is over; `stored`: its answer is in the store.
  void End(const std::string& app_id, const std::string& request_id, bool stored, int64_t now_ns);

 private:
  using Name = std::pair<std::string, std::string>;  // app_id, request_id

  std::map<Name, bool> names_;                   // whether the answer is stored
  std::deque<std::pair<int64_t, Name>> stored_;  // in the order of their ends, and when that was
};

}  // namespace withy::serving
