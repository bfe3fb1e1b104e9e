// Notices that the client of a running HTTP call has closed its connection, and cancels the call.
// Neighbours: http_door.cc enters each call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "orchestrator/call/call_control.h"

namespace withy::orchestrator {

// Thread-safe. One thread, from construction to destruction.
class PeerWatch {
 public:
  PeerWatch();
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // From now until Leave, `control` is cancelled when the peer of `fd` has closed its side.
  uint64_t Enter(int fd, const std::shared_ptr<CallControl>& control);
  void Leave(uint64_t entry);
  // Those that enter later, too.
  void CancelAll();

 private:
  struct Watched {
    int fd;
    std::shared_ptr<CallControl> control;
  };
  void Loop();
  void Wake() const;

  UniqueFd wake_;  // an eventfd
  absl::Mutex mutex_;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancels_all_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, Watched> watched_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace withy::orchestrator
