// Faults of the torture benchmark that need preparations: read errors, a worker that takes
// another's leases, an arena too small for one context. Neighbours: torture.cc makes them happen,
// fault_shim.h is what processes see of the first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/shared_memory.h"
#include "bench/service/fault_shim.h"
#include "bench/service/processes.h"
#include "withy/v1/context_store.pb.h"

namespace withy::bench {

// The file of FaultControl, and what processes need in their environment to obey it.
class FaultInjector {
 public:
  // NOT_FOUND: this build has no library for it (a sanitizer's has not). Errors: of the file.
  static absl::StatusOr<std::unique_ptr<FaultInjector>> Create(const std::string& directory);

  const std::vector<std::string>& environment() const { return environment_; }
  FaultControl& control() { return *reinterpret_cast<FaultControl*>(memory_.data()); }

 private:
  SharedMemory memory_;
  std::vector<std::string> environment_;
};

// What context_store tells of itself. Errors: of the call.
absl::StatusOr<v1::GetStoreInfoResponse> AskStore(const Processes& processes);

// A second worker for the store of `board` takes the place of the first, which stands still: that
// one's leases end. Returns when it has attached, and is gone. Errors: DEADLINE_EXCEEDED: it does
// not attach.
absl::Status TakeLeases(const Processes& board, const std::string& directory,
                        const std::string& model);

// A service whose arena holds a few chunks only: a prompt that does not fit has to be refused with
// RESOURCE_EXHAUSTED and leave no trace, a short one answered. OK: it was so.
absl::Status TrySmallArena(const std::string& directory);

}  // namespace withy::bench
