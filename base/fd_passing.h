// Sends and receives one datagram with one file descriptor over a unix socket (SCM_RIGHTS), and
// identifies the peer.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace withy {

// Sends `message` (not empty) and `fd` as one datagram on a connected SOCK_SEQPACKET socket.
absl::Status SendFd(int socket, std::span<const std::byte> message, int fd);

// Receives one datagram of exactly message.size() bytes and its descriptor (close-on-exec). Errors:
// UNAVAILABLE (the peer closed), INVALID_ARGUMENT (another size, or no descriptor).
absl::StatusOr<UniqueFd> RecvFd(int socket, std::span<std::byte> message);

struct PeerCredentials {
  pid_t pid;
  uid_t uid;
};
// Credentials of the process that connected this unix socket.
absl::StatusOr<PeerCredentials> GetPeerCredentials(int socket);

}  // namespace withy
