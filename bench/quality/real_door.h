// What the HTTP API adds to the time to the first token: the same prompts through it and over gRPC,
// in turn, to a service of its own. Neighbours: processes.h starts it, real.cc prints.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace withy::bench {

struct DoorTimes {
  std::vector<double> grpc_ms;  // to the first token, by round
  std::vector<double> http_ms;  // the same prompts through the HTTP API
};

// Errors: of starting the service, and of calls.
absl::StatusOr<DoorTimes> MeasureDoor(const std::string& model, int threads, int rounds);

}  // namespace withy::bench
