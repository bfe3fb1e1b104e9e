// The names that apps gave to the answers which are being made here, so that a retry does not make
// one twice. Neighbours: scheduler.h asks when a call comes and says how it ended; the store knows
// the answers of all time, but not those that are on their way to it. Pure: time is an argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace withy::model_worker {

// Not thread-safe: its owner's lock guards it. A request_id that is empty names nothing.
class RequestNames {
 public:
  // A retry that was sent on before the answer was in the store may wait so long for its turn.
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

}  // namespace withy::model_worker
