// Sockets that listen on "HOST:PORT". Neighbours: listen_address.h checks the syntax and owns unix
// sockets; profiler_agent/ and http/ serve HTTP on them.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace withy {

// A listening socket that does not block. `setting` names the configuration field with the address,
// `remedy` says what to do; both are for errors. Errors: INVALID_ARGUMENT (not
// HOST:PORT), UNAVAILABLE (no such host now), ALREADY_EXISTS (another program listens there), those
// of bind(2).
absl::StatusOr<UniqueFd> ListenTcp(std::string_view address, std::string_view setting,
                                   std::string_view remedy);

// `address` with the socket's actual port.
std::string BoundAddress(const UniqueFd& listener, std::string_view address);

}  // namespace withy
