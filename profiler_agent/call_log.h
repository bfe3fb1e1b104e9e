// The last calls as the orchestrator reported them, failed and refused ones included, and why one
// of them took its time. Neighbours: service.h takes reports and answers questions, live_json.h
// shows the calls, profile.h has the spans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "profiler_agent/profile.h"
#include "withy/v1/profiler.pb.h"

namespace withy::profiler_agent {

// Thread-safe. Refusals cannot push out calls that ran: equal ones of an app in a row are one, and
// they are half of the calls at most.
class CallLog {
 public:
  static constexpr size_t kCalls = 256;
  static constexpr size_t kRefusals = kCalls / 2;

  void Add(v1::CallReport report);
  // The newest first.
  std::vector<v1::CallReport> Latest(size_t limit) const;
  // The newest with that id, or, with id 0, that request_id; nullopt: it is not kept.
  std::optional<v1::CallReport> Find(uint64_t call_id, std::string_view request_id) const;

 private:
  // Takes an equal refusal that is the app's latest call into `report`.
  void TakeEqual(v1::CallReport* report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::deque<v1::CallReport> calls_ ABSL_GUARDED_BY(mutex_);  // oldest first
};

// What profiler.proto says of ExplainCall. `spans`: of all calls since this one arrived, as far as
// they are kept; `others`: calls whose apps are known. Pure.
v1::ExplainCallResponse Explain(const v1::CallReport& report, const SpanSet& spans,
                                const std::vector<v1::CallReport>& others);

}  // namespace withy::profiler_agent
