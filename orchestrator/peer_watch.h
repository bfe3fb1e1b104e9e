// Notices that the client of a running HTTP call has closed its connection, and cancels the call.
// civetweb neither tells nor shows its sockets: they are found among the process's own by the
// client's address. Neighbours: http_door.cc enters each call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "orchestrator/call_control.h"

namespace withy::orchestrator {

// The process's socket whose peer is ADDRESS (as inet_ntop prints it; an IPv4 address may be
// written as IPv6's) at `peer_port`, and that was accepted at `own_port`; -1: none.
int FindSocket(const std::string& address, int peer_port, int own_port);

// Thread-safe. One thread, from construction to destruction.
class PeerWatch {
 public:
  PeerWatch();
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // From now until Leave, `control` is cancelled when the peer of `fd` has closed its side. A
  // negative `fd` is not watched, only CancelAll reaches its call.
  uint64_t Enter(int fd, std::shared_ptr<CallControl> control);
  void Leave(uint64_t entry);
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
  std::map<uint64_t, Watched> watched_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace withy::orchestrator
