#include "base/tcp_listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// "[::1]:80" -> "::1", "80". False: it is not HOST:PORT.
bool SplitTcpAddress(std::string_view address, std::string* host, std::string* port) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  *port = std::string(address.substr(colon + 1));
  if (port->empty() || port->size() > 5 ||
      port->find_first_not_of("0123456789") != std::string::npos || std::stoi(*port) > 65535) {
    return false;
  }
  std::string_view name = address.substr(0, colon);
  if (name.size() >= 2 && name.front() == '[' && name.back() == ']') {
    name = name.substr(1, name.size() - 2);
  }
  *host = std::string(name);
  return true;
}

// In network order; 0: the socket has none.
in_port_t PortOf(const UniqueFd& socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                     : reinterpret_cast<const sockaddr_in&>(bound).sin_port;
}

void SetPort(in_port_t port, sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = port;
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = port;
  }
}

}  // namespace

absl::StatusOr<std::vector<UniqueFd>> ListenTcpAll(std::string_view address,
                                                   std::string_view setting,
                                                   std::string_view remedy) {
  const std::string what = absl::StrCat(ToAbsl(setting), " \"", ToAbsl(address), "\"");
  std::string host, port;
  if (!SplitTcpAddress(address, &host, &port)) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is not HOST:PORT; ", ToAbsl(remedy)));
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* first = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &first); error != 0) {
    // The name may be known later.
    return absl::UnavailableError(
        absl::StrCat(what, ": ", gai_strerror(error), "; ", ToAbsl(remedy)));
  }
  const Addresses found(first, freeaddrinfo);
  std::vector<UniqueFd> listeners;
  absl::Status failed;
  for (addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    if (!listeners.empty() && port == "0") SetPort(PortOf(listeners.front()), at->ai_addr);
    UniqueFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int yes = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd.get(), at->ai_addr, at->ai_addrlen) == 0 && listen(fd.get(), SOMAXCONN) == 0) {
      listeners.push_back(std::move(fd));
    } else if (errno == EADDRINUSE) {
      return absl::AlreadyExistsError(absl::StrCat(
          what, " is taken by another program: stop it (ss -ltnp shows it), or ", ToAbsl(remedy)));
    } else {  // a machine without IPv6 still has the name's other address
      failed = Annotate(ErrnoError("listen"), absl::StrCat(what, "; ", ToAbsl(remedy)));
    }
  }
  if (listeners.empty()) return failed;
  return listeners;
}

absl::StatusOr<UniqueFd> ListenTcp(std::string_view address, std::string_view setting,
                                   std::string_view remedy) {
  WITHY_ASSIGN_OR_RETURN(std::vector<UniqueFd> listeners, ListenTcpAll(address, setting, remedy));
  return std::move(listeners.front());
}

std::string BoundAddress(const UniqueFd& listener, std::string_view address) {
  const in_port_t port = PortOf(listener);
  if (port == 0) return std::string(address);
  return absl::StrCat(ToAbsl(address.substr(0, address.rfind(':') + 1)), ntohs(port));
}

}  // namespace withy
