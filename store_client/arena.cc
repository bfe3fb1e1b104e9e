#include "store_client/arena.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fd_passing.h"
#include "base/status.h"

namespace withy::store_client {
namespace {

constexpr timeval kOfferTimeout = {.tv_sec = 5, .tv_usec = 0};

absl::StatusOr<UniqueFd> ConnectSocket(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("arena socket ", path, ": the path has ",
                                                   path.size(), " bytes, the limit is ",
                                                   sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return ErrnoError("arena socket");
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kOfferTimeout, sizeof(kOfferTimeout));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const absl::Status error = ErrnoError(absl::StrCat("connect to arena socket ", path));
    return absl::UnavailableError(error.message());
  }
  WITHY_ASSIGN_OR_RETURN(const PeerCredentials peer, GetPeerCredentials(socket.get()));
  if (peer.uid != ::geteuid() && peer.uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat("arena socket ", path, " belongs to user ",
                                                    peer.uid, ", this process is user ",
                                                    ::geteuid()));
  }
  return socket;
}

absl::Status CheckOffer(const ArenaOffer& offer, const ArenaHello& hello, uint32_t block_bytes) {
  const bool fits = offer.magic == kArenaMagic && offer.version == kArenaVersion &&
                    offer.epoch == hello.epoch && offer.block_bytes == block_bytes;
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("context_store offers an arena of version ", offer.version, ", epoch ",
                   offer.epoch, ", blocks of ", offer.block_bytes, " bytes in ", offer.arena_bytes,
                   "; this worker needs version ", kArenaVersion, ", epoch ", hello.epoch,
                   ", blocks of ", block_bytes, " bytes"));
}

}  // namespace

absl::StatusOr<ArenaConnection> ConnectArena(const std::string& path, const ArenaHello& hello,
                                             uint32_t block_bytes) {
  WITHY_ASSIGN_OR_RETURN(UniqueFd socket, ConnectSocket(path));
  if (::send(socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
    return absl::UnavailableError(ErrnoError("arena socket: hello").message());
  }
  ArenaOffer offer;
  WITHY_ASSIGN_OR_RETURN(const UniqueFd memfd,
                         RecvFd(socket.get(), std::as_writable_bytes(std::span(&offer, 1))));
  WITHY_RETURN_IF_ERROR(CheckOffer(offer, hello, block_bytes));
  WITHY_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Map(memfd.get(), offer.arena_bytes,
                                                                SharedMemory::Access::kReadWrite));
  WITHY_RETURN_IF_ERROR(memory.ExcludeFromCoreDumps());
  WITHY_RETURN_IF_ERROR(memory.Prefault());
  return ArenaConnection{.arena = std::make_shared<MappedArena>(std::move(memory), offer),
                         .socket = std::move(socket)};
}

}  // namespace withy::store_client
