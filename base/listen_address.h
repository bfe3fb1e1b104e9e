// The addresses that processes listen on: what one looks like, and whose a unix socket's path is.
// Neighbours: config.h checks what was written, rpc/server.h and the store's side socket listen.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace withy {

inline constexpr std::string_view kUnixPrefix = "unix:";

// Whether `address` is "unix:/PATH", or "HOST:PORT" with a port from 0 (any free one) to 65535; the
// colons of an IPv6 host stand in brackets. Errors: INVALID_ARGUMENT with the address and both
// forms.
absl::Status CheckListenAddress(std::string_view address);

// Makes the unix socket at `path` this process's own for as long as the result lives, by a lock on
// PATH.lock, and removes the socket that a dead process left there. Nothing else is ever removed:
// not a socket that somebody listens on, no file, directory, link, pipe or device. `process` stands
// in errors. Errors: ALREADY_EXISTS (another process has it; its socket is not touched),
// INVALID_ARGUMENT (something that is no socket stands there; a path of more than 107 bytes, or in
// no directory), those of open(2).
absl::StatusOr<UniqueFd> ClaimSocket(const std::string& path, std::string_view process);

// Removes the socket that the caller bound at `path`, and nothing that is no socket.
void RemoveSocket(const std::string& path);

}  // namespace withy
