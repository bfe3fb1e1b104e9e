// Sockets that listen on "HOST:PORT". Neighbours: listen_address.h checks the syntax and owns unix
// sockets; profiler_agent/ and http/ serve HTTP on them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace withy {

// Listening sockets that do not block, one for each address of the host. `setting` names the
// configuration field with the address, `remedy` says what to do; both are for errors. Errors:
// INVALID_ARGUMENT (not HOST:PORT), UNAVAILABLE (no such host now), ALREADY_EXISTS (another program
// listens there), those of bind(2).
absl::StatusOr<std::vector<UniqueFd>> ListenTcpAll(std::string_view address,
                                                   std::string_view setting,
                                                   std::string_view remedy);
// The first of them alone.
absl::StatusOr<UniqueFd> ListenTcp(std::string_view address, std::string_view setting,
                                   std::string_view remedy);

// `address` with the socket's actual port.
std::string BoundAddress(const UniqueFd& listener, std::string_view address);

}  // namespace withy
