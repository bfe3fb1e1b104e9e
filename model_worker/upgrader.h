// Computes contexts again at the full level that were computed below it, in quiet moments and the
// most recently used first, so that their next answers build on the full model's KV. Neighbours:
// scheduler.h gives a rebuild up as soon as a call comes; context_store knows which context is
// next. See docs/method-elastic.md.
#pragma once

#include <cstdint>
#include <thread>

#include "absl/time/time.h"
#include "serving/call/scheduler.h"
#include "store_client/lease_client.h"

namespace withy::model_worker {

class Upgrader {
 public:
  // Starts after `quiet` without a call. Both references must outlive it.
  Upgrader(serving::Scheduler& scheduler, store_client::LeaseClient& leases, absl::Duration quiet);
  // Drains the scheduler.
  ~Upgrader();
  Upgrader(const Upgrader&) = delete;
  Upgrader& operator=(const Upgrader&) = delete;

 private:
  void Run();
  void UpgradeAll();

  serving::Scheduler& scheduler_;
  store_client::LeaseClient& leases_;
  const absl::Duration quiet_;
  std::thread thread_;
};

}  // namespace withy::model_worker
