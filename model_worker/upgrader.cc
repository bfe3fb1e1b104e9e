#include "model_worker/upgrader.h"

#include <spdlog/spdlog.h>

#include <memory>
#include <string>

#include "absl/synchronization/notification.h"

namespace withy::model_worker {
namespace {

class End final : public serving::CallSink {
 public:
  void Accepted(const serving::CallAccepted&) override {}
  void Progress(int32_t, int32_t) override {}
  void LevelChanged(int32_t) override {}
  void Delta(const engine::AnswerDelta&) override {}
  void Flush() override {}
  void Finished(const serving::CallOutcome&) override { over_.Notify(); }
  void Failed(const absl::Status& status) override {
    status_ = status;
    over_.Notify();
  }
  bool HasRoom() const override { return true; }

  absl::Status Wait() {
    over_.WaitForNotification();
    return status_;
  }

 private:
  absl::Status status_;
  absl::Notification over_;
};

}  // namespace

Upgrader::Upgrader(serving::Scheduler& scheduler, store_client::LeaseClient& leases,
                   absl::Duration quiet)
    : scheduler_(scheduler), leases_(leases), quiet_(quiet), thread_([this] { Run(); }) {}

Upgrader::~Upgrader() {
  scheduler_.Drain(absl::ZeroDuration());
  thread_.join();
}

void Upgrader::Run() {
  uint64_t calls_seen = UINT64_MAX;  // also once before the first call
  while (scheduler_.AwaitQuiet(quiet_, &calls_seen)) UpgradeAll();
}

// Rebuilds contexts until none is left, a call comes, or a rebuild fails; Run looks again after the
// next call.
void Upgrader::UpgradeAll() {
  for (auto next = leases_.NextUpgrade(); next.ok(); next = leases_.NextUpgrade()) {
    const auto end = std::make_shared<End>();
    scheduler_.SubmitRebuild(next->app_id, next->context_id, end);
    const absl::Status status = end->Wait();
    if (!status.ok()) {
      if (!absl::IsAborted(status)) {
        spdlog::info("context {} stays at level {}: {}", next->context_id, next->level_percent,
                     std::string(status.message()));
      }
      return;
    }
    spdlog::info("context {} was at level {} and is at the full one now", next->context_id,
                 next->level_percent);
  }
}

}  // namespace withy::model_worker
