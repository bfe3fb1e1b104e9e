// The calls of apps that are being answered: one answer at a time for each request_id, and how to
// stop a call by its name. Neighbours: generate.cc enters calls, gateway.cc cancels them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "orchestrator/call/call_control.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// Thread-safe.
class CallRegistry {
 public:
  // App and request_id of a call.
  using RequestName = std::pair<std::string, std::string>;

  // Waits while another answer for this name is being made or ends. Errors: those of
  // CallControl::Check.
  absl::Status BeginRequest(const RequestName& name, const CallControl& control);
  void EndRequest(const RequestName& name);

  // A call that Cancel can find for as long as this lives.
  class Cancellable {
   public:
    Cancellable(CallRegistry& registry, uint64_t id, const RequestName& name,
                std::shared_ptr<CallControl> control);
    ~Cancellable();
    Cancellable(const Cancellable&) = delete;
    Cancellable& operator=(const Cancellable&) = delete;

   private:
    CallRegistry& registry_;
    const uint64_t id_;
  };

  // Stops the app's call of that call_id or request_id; blocks as CallControl::Stop. Errors:
  // NOT_FOUND.
  absl::Status Cancel(const std::string& app_id, const v1::CancelRequest& request);

 private:
  struct RunningCall {
    RequestName name;
    std::shared_ptr<CallControl> control;
  };
  void Add(uint64_t id, RunningCall call);
  void Remove(uint64_t id);

  absl::Mutex mutex_;
  std::set<RequestName> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, RunningCall> running_ ABSL_GUARDED_BY(mutex_);  // by the call's id
};

}  // namespace withy::orchestrator
