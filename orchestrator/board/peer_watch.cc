#include "orchestrator/board/peer_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>
#include <vector>

namespace withy::orchestrator {
PeerWatch::PeerWatch()
    : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), thread_([this] { Loop(); }) {}

PeerWatch::~PeerWatch() {
  {
    absl::MutexLock lock(&mutex_);
    ends_ = true;
  }
  Wake();
  thread_.join();
}

uint64_t PeerWatch::Enter(int fd, const std::shared_ptr<CallControl>& control) {
  uint64_t entry = 0;
  bool cancelled = false;
  {
    absl::MutexLock lock(&mutex_);
    entry = ++last_;
    cancelled = cancels_all_;
    watched_.emplace(entry, Watched{fd, control});
  }
  if (cancelled) control->Cancel();
  Wake();
  return entry;
}

void PeerWatch::Leave(uint64_t entry) {
  {
    absl::MutexLock lock(&mutex_);
    watched_.erase(entry);
  }
  // The thread may still poll the socket, which the caller is about to close. Another one that gets
  // its number is not mistaken for it: only entries that are there are cancelled.
  Wake();
}

void PeerWatch::CancelAll() {
  std::vector<std::shared_ptr<CallControl>> controls;
  {
    absl::MutexLock lock(&mutex_);
    cancels_all_ = true;
    for (const auto& [entry, watched] : watched_) controls.push_back(watched.control);
  }
  for (const auto& control : controls) control->Cancel();
}

void PeerWatch::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
}

void PeerWatch::Loop() {
  while (true) {
    std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
    std::vector<uint64_t> entries = {0};
    {
      absl::MutexLock lock(&mutex_);
      if (ends_) return;
      for (const auto& [entry, watched] : watched_) {
        if (watched.fd < 0) continue;  // its peer has left
        polled.push_back({watched.fd, POLLRDHUP, 0});
        entries.push_back(entry);
      }
    }
    if (poll(polled.data(), polled.size(), -1) < 0) continue;
    uint64_t ignored = 0;
    (void)!read(wake_.get(), &ignored, sizeof ignored);
    for (size_t i = 1; i < polled.size(); ++i) {
      if ((polled[i].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) == 0) continue;
      std::shared_ptr<CallControl> control;
      {
        absl::MutexLock lock(&mutex_);
        const auto found = watched_.find(entries[i]);
        if (found == watched_.end()) continue;
        found->second.fd = -1;  // told once
        control = found->second.control;
      }
      control->Cancel();
    }
  }
}

}  // namespace withy::orchestrator
