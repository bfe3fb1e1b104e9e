#include "orchestrator/call/call_registry.h"

#include "absl/strings/str_cat.h"
#include "base/call_name.h"

namespace withy::orchestrator {

absl::Status CallRegistry::BeginRequest(const RequestName& name, const CallControl& control) {
  constexpr absl::Duration kLook = absl::Milliseconds(50);  // whether the caller is still there
  absl::MutexLock lock(&mutex_);
  const auto free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !in_flight_.contains(name);
  };
  while (!mutex_.AwaitWithTimeout(absl::Condition(&free), kLook)) {
    if (absl::Status ended = control.Check(); !ended.ok()) return ended;
  }
  in_flight_.insert(name);
  return absl::OkStatus();
}

void CallRegistry::EndRequest(const RequestName& name) {
  absl::MutexLock lock(&mutex_);
  in_flight_.erase(name);
}

CallRegistry::Cancellable::Cancellable(CallRegistry& registry, uint64_t id, const RequestName& name,
                                       std::shared_ptr<CallControl> control)
    : registry_(registry), id_(id) {
  registry_.Add(id, {name, std::move(control)});
}

CallRegistry::Cancellable::~Cancellable() { registry_.Remove(id_); }

void CallRegistry::Add(uint64_t id, RunningCall call) {
  absl::MutexLock lock(&mutex_);
  running_.emplace(id, std::move(call));
}

void CallRegistry::Remove(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  running_.erase(id);
}

absl::Status CallRegistry::Cancel(const std::string& app_id, const v1::CancelRequest& request) {
  std::shared_ptr<CallControl> control;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, call] : running_) {
      const bool named = request.request_id().empty() ? CallName(id) == request.call_id()
                                                      : call.name.second == request.request_id();
      if (named && call.name.first == app_id) control = call.control;
    }
  }
  if (control == nullptr) {
    return absl::NotFoundError(
        request.request_id().empty()
            ? absl::StrCat("no call ", request.call_id(), " of this app runs")
            : absl::StrCat("no call with request_id \"", request.request_id(),
                           "\" of this app runs"));
  }
  control->Stop();
  return absl::OkStatus();
}

}  // namespace withy::orchestrator
