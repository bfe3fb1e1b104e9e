#include "context_store/side_socket.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <span>

#include "base/fd_passing.h"
#include "base/listen_address.h"
#include "base/status.h"

namespace withy::context_store {

absl::StatusOr<std::unique_ptr<SideSocket>> SideSocket::Start(const std::string& path,
                                                              ArenaKeeper& keeper) {
  std::unique_ptr<SideSocket> side(new SideSocket(keeper));
  side->path_ = path;
  WITHY_ASSIGN_OR_RETURN(side->lock_, ClaimSocket(path, "context_store"));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  side->listener_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  side->stop_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!side->listener_.valid() || !side->stop_.valid()) return ErrnoError("create side socket");
  // Nobody can connect before listen(), so setting the mode after bind() is safe.
  if (bind(side->listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      chmod(path.c_str(), 0600) != 0 || listen(side->listener_.get(), 16) != 0) {
    return ErrnoError(absl::StrCat("listen on side socket ", path));
  }
  side->thread_ = std::thread([socket = side.get()] { socket->Serve(); });
  return side;
}

SideSocket::~SideSocket() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    (void)!write(stop_.get(), &one, sizeof one);
    thread_.join();
    RemoveSocket(path_);
  }
}

void SideSocket::Serve() {
  for (;;) {
    std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_) {
      polled.push_back({connection.fd.get(), POLLIN, 0});
    }
    if (poll(polled.data(), polled.size(), -1) < 0) continue;
    if (polled[0].revents != 0) return;
    // Before new connections, so that a restarted worker is known to be dead before its successor
    // is accepted.
    for (size_t i = connections_.size(); i-- > 0;) {
      if (polled[i + 2].revents == 0 || HandleReadable(connections_[i])) continue;
      const WorkerInstance worker = connections_[i].worker;
      connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
      if (worker != 0) keeper_.DisconnectWorker(worker);
    }
    if (polled[1].revents != 0) Accept();
  }
}

void SideSocket::Accept() {
  UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) return;
  const absl::StatusOr<PeerCredentials> peer = GetPeerCredentials(fd.get());
  const bool trusted = peer.ok() && (peer->uid == geteuid() || peer->uid == 0);
  if (!trusted || connections_.size() >= kMaxConnections) {
    spdlog::warn("side socket: refused process {} of user {}{}", peer.ok() ? peer->pid : 0,
                 peer.ok() ? static_cast<int64_t>(peer->uid) : -1,
                 trusted ? ": too many connections" : "");
    return;
  }
  connections_.push_back({std::move(fd), peer->pid, 0});
}

bool SideSocket::HandleReadable(Connection& connection) {
  ArenaHello hello;
  const ssize_t got = recv(connection.fd.get(), &hello, sizeof hello, MSG_TRUNC);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  absl::Status status = absl::InvalidArgumentError("the hello has another version");
  if (connection.worker == 0 && static_cast<size_t>(got) == sizeof hello &&
      hello.magic == kArenaMagic && hello.version == kArenaVersion && hello.worker_instance != 0) {
    status = OfferArena(connection, hello);
  }
  if (status.ok()) return true;
  spdlog::warn("side socket: refused process {}: {}", connection.pid,
               std::string(status.message()));
  return false;
}

absl::Status SideSocket::OfferArena(Connection& connection, const ArenaHello& hello) {
  WITHY_ASSIGN_OR_RETURN(const ArenaOffer offer,
                         keeper_.ConnectWorker(hello.worker_instance, hello.epoch, connection.pid));
  connection.worker =
      hello.worker_instance;  // from now on, closing the connection means that the worker is dead
  return SendFd(connection.fd.get(), std::as_bytes(std::span(&offer, 1)), keeper_.arena().fd());
}

}  // namespace withy::context_store
