#include "base/fd_passing.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>

#include "base/status.h"

namespace withy {

absl::Status SendFd(int socket, std::span<const std::byte> message, int fd) {
  iovec io{const_cast<std::byte*>(message.data()), message.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &io;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  if (sendmsg(socket, &header, MSG_NOSIGNAL) < 0) return ErrnoError("send file descriptor");
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> RecvFd(int socket, std::span<std::byte> message) {
  iovec io{message.data(), message.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &io;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return ErrnoError("receive file descriptor");
  UniqueFd fd;
  if (cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
      rights->cmsg_len == CMSG_LEN(sizeof(int))) {
    int raw = -1;
    std::memcpy(&raw, CMSG_DATA(rights), sizeof raw);
    fd.Reset(raw);
  }
  if (got == 0)
    return absl::UnavailableError("receive file descriptor: the peer closed the socket");
  if (static_cast<size_t>(got) != message.size() || (header.msg_flags & MSG_TRUNC) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("receive file descriptor: message of ", got,
                                                   " bytes, expected ", message.size()));
  }
  if (!fd.valid()) {
    return absl::InvalidArgumentError("receive file descriptor: none came with the message");
  }
  return fd;
}

absl::StatusOr<PeerCredentials> GetPeerCredentials(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return ErrnoError("read peer credentials");
  }
  return PeerCredentials{credentials.pid, credentials.uid};
}

}  // namespace withy
