#include "orchestrator/peer_watch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace withy::orchestrator {
namespace {

struct Endpoint {
  std::string address;
  int port = -1;
};

Endpoint EndpointOf(int fd, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  char text[INET6_ADDRSTRLEN] = "";
  if (name(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return {};
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    return {text, ntohs(v4.sin_port)};
  }
  if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    return {text, ntohs(v6.sin6_port)};
  }
  return {};
}

absl::string_view Plain(absl::string_view address) {
  absl::ConsumePrefix(&address, "::ffff:");
  return address;
}

}  // namespace

int FindSocket(const std::string& address, int peer_port, int own_port) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    int fd = -1;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &fd)) continue;
    const Endpoint peer = EndpointOf(fd, getpeername);
    if (peer.port != peer_port || Plain(peer.address) != Plain(address)) continue;
    if (EndpointOf(fd, getsockname).port == own_port) return fd;
  }
  return -1;
}

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

uint64_t PeerWatch::Enter(int fd, std::shared_ptr<CallControl> control) {
  uint64_t entry = 0;
  {
    absl::MutexLock lock(&mutex_);
    entry = ++last_;
    watched_.emplace(entry, Watched{fd, std::move(control)});
  }
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
        if (watched.fd < 0) continue;
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
