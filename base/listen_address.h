// Listen addresses of the processes: their syntax, and ownership of a unix socket's path.
// Neighbours: config.h checks addresses, rpc/server.h and the store's side socket listen.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace withy {

inline constexpr std::string_view kUnixPrefix = "unix:";

// Checks that `address` is "unix:/PATH" or "HOST:PORT" with a port from 0 (any free one) to 65535;
// an IPv6 host stands in brackets. Errors: INVALID_ARGUMENT naming the address and both forms.
absl::Status CheckListenAddress(std::string_view address);

// Whether `address`, a valid one, is TCP on the loopback: 127.0.0.0/8, [::1] or localhost. Looks up
// no names. Pure.
bool IsLoopback(std::string_view address);

// Reserves the unix socket at `path` for this process while the result lives, by a lock on
// PATH.lock, and removes the socket of a dead process. Nothing else is ever removed: no socket with
// a listener, no file, directory, link, pipe or device. `process` appears in errors. Errors:
// ALREADY_EXISTS (another process holds it; its socket is left alone), INVALID_ARGUMENT (`path` is
// not a socket, or is longer than 107 bytes), NOT_FOUND (its directory is missing), those of
// open(2).
absl::StatusOr<UniqueFd> ClaimSocket(const std::string& path, std::string_view process);

// Removes the socket that the caller bound at `path`. Leaves anything that is not a socket.
void RemoveSocket(const std::string& path);

}  // namespace withy
