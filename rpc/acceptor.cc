#include "rpc/acceptor.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/listen_address.h"
#include "base/status.h"
#include "base/tcp_listener.h"

namespace withy::rpc {
namespace {

// A descriptor or memory may be free again.
constexpr int kPauseMs = 50;

absl::StatusOr<UniqueFd> ListenUnix(const std::string& path, unsigned mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is too long for a socket"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError("make a socket");
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return ErrnoError("bind " + path);
  }
  // Nobody can connect before listen(2).
  if (chmod(path.c_str(), mode) != 0) return ErrnoError("set the mode of " + path);
  if (listen(fd.get(), SOMAXCONN) != 0) return ErrnoError("listen on " + path);
  return fd;
}

}  // namespace

absl::Status Acceptor::Listen(const std::string& name, const std::string& address, unsigned mode,
                              Take take) {
  std::vector<UniqueFd> sockets;
  if (address.starts_with(kUnixPrefix)) {
    WITHY_ASSIGN_OR_RETURN(sockets.emplace_back(),
                           ListenUnix(address.substr(kUnixPrefix.size()), mode));
    addresses_.push_back(address);
  } else {
    WITHY_ASSIGN_OR_RETURN(sockets, ListenTcpAll(address, absl::StrCat(name, " cannot listen:"),
                                                 "change `listen` to an address of this machine"));
    addresses_.push_back(BoundAddress(sockets.front(), address));
  }
  for (UniqueFd& socket : sockets) listeners_.emplace_back(std::move(socket), takes_.size());
  takes_.push_back(std::move(take));
  return absl::OkStatus();
}

void Acceptor::Start() {
  stop_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    (void)!write(stop_.get(), &one, sizeof one);
    thread_.join();
  }
  if (listeners_.empty()) return;
  listeners_.clear();
  for (const std::string& address : addresses_) {
    if (address.starts_with(kUnixPrefix)) RemoveSocket(address.substr(kUnixPrefix.size()));
  }
}

void Acceptor::Run() {
  std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
  for (const auto& [socket, take] : listeners_) polled.push_back({socket.get(), POLLIN, 0});
  while (true) {
    poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) return;
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (polled[i + 1].revents == 0) continue;
      UniqueFd connection(
          accept4(listeners_[i].first.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (connection.valid()) {
        const int yes = 1;
        setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);  // if it is TCP
        takes_[listeners_[i].second](std::move(connection));
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        poll(polled.data(), 1, kPauseMs);  // the client waits
      }
    }
  }
}

}  // namespace withy::rpc
