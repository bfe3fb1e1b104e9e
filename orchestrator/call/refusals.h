// Tells those who ask (`withyctl explain`, the live page) of calls that were refused before they
// began: by which method, of which app, and why. Neighbours: generate.cc reports calls that have
// come as far as their app, backends.h hands reports on.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"
#include "orchestrator/app_records.h"
#include "orchestrator/board/backends.h"
#include "withy/v1/profiler.pb.h"

namespace withy::orchestrator {

// As much of it as is known.
struct RefusedCall {
  std::string method = {};  // as CallReport's
  uint64_t id = 0;
  int64_t arrived_ns = 0;  // 0: now
  std::string app_id = {};
  Caller caller = {};  // where app_id is empty
  std::string request_id = {};
};

// Thread-safe. Borrows its parts.
class Refusals {
 public:
  Refusals(AppRecords& apps, Backends& backends, const Clock& clock)
      : apps_(apps), backends_(backends), clock_(clock) {}

  // Does not wait. Nothing where `status` is OK, the caller went away, or its token was refused.
  void Tell(RefusedCall call, const absl::Status& status);

 private:
  AppRecords& apps_;
  Backends& backends_;
  const Clock& clock_;
};

// Code, reason and message. The message of INVALID_ARGUMENT may have words of the request: of it
// the field is told, where it begins with one.
void FillError(const absl::Status& status, v1::CallReport* report);

}  // namespace withy::orchestrator
