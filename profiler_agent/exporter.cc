#include "profiler_agent/exporter.h"

#include <netdb.h>
#include <netinet/in.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

namespace withy::profiler_agent {
namespace {

constexpr char kRemedy[] =
    "set profiler.metrics_listen to another HOST:PORT, or to \"off\" to serve no metrics";

// "[::1]:80" -> "::1", "80".
absl::Status SplitAddress(std::string_view listen, std::string* host, std::string* port) {
  const size_t colon = listen.rfind(':');
  const std::string_view digits =
      colon == std::string_view::npos ? std::string_view() : listen.substr(colon + 1);
  const bool number = !digits.empty() && digits.size() <= 5 &&
                      digits.find_first_not_of("0123456789") == std::string_view::npos &&
                      std::stoi(std::string(digits)) <= 65535;
  if (!number || colon == 0) {
    return absl::InvalidArgumentError(absl::StrCat("profiler.metrics_listen \"", ToAbsl(listen),
                                                   "\" is not HOST:PORT; ", kRemedy));
  }
  std::string_view name = listen.substr(0, colon);
  if (name.size() >= 2 && name.front() == '[' && name.back() == ']') {
    name = name.substr(1, name.size() - 2);
  }
  *host = std::string(name);
  *port = std::string(digits);
  return absl::OkStatus();
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const std::string& listen) {
  std::string host, port;
  WITHY_RETURN_IF_ERROR(SplitAddress(listen, &host, &port));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("profiler.metrics_listen \"", listen,
                                                   "\": ", gai_strerror(error), "; ", kRemedy));
  }
  return Addresses(found, freeaddrinfo);
}

absl::StatusOr<UniqueFd> Listen(const std::string& listen) {
  WITHY_ASSIGN_OR_RETURN(const Addresses found, Resolve(listen));
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(fd.get(), found->ai_addr, found->ai_addrlen) == 0 &&
      ::listen(fd.get(), SOMAXCONN) == 0) {
    return fd;
  }
  if (errno == EADDRINUSE) {
    return absl::AlreadyExistsError(
        absl::StrCat("metrics address ", listen,
                     " is taken by another program: stop it (ss -ltnp shows it), or ", kRemedy));
  }
  return Annotate(ErrnoError("listen"), absl::StrCat("metrics address ", listen, "; ", kRemedy));
}

// `listen` with the socket's actual port.
std::string AddressOf(const UniqueFd& fd, const std::string& listen) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) return listen;
  const in_port_t port = bound.ss_family == AF_INET6
                             ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                             : reinterpret_cast<const sockaddr_in&>(bound).sin_port;
  return absl::StrCat(listen.substr(0, listen.rfind(':') + 1), ntohs(port));
}

}  // namespace

const std::vector<std::string>& KnownProcesses() {
  static const auto& names = *new std::vector<std::string>{
      "context_store", "draft_worker", "model_worker", "orchestrator", "profiler_agent"};
  return names;
}

std::vector<prometheus::MetricFamily> Exporter::Collect() const {
  const telemetry::ScopedSpan span(recorder_, scrape_);
  return MakeFamilies({.phases = agent_.Phases(),
                       .sizes = agent_.Sizes(),
                       .sources = agent_.Sources(),
                       .known_processes = KnownProcesses(),
                       .folded_spans = agent_.names_folded() + agent_.phase_overflows(),
                       .slo_objective = slo_objective_});
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    std::string_view listen, std::shared_ptr<prometheus::Collectable> collectable,
    std::vector<HttpPage> further, HttpLimits limits) {
  const std::string address(listen);
  WITHY_ASSIGN_OR_RETURN(UniqueFd socket, Listen(address));
  auto server = std::unique_ptr<MetricsServer>(new MetricsServer);
  server->address_ = AddressOf(socket, address);
  further.push_back({"/metrics", "text/plain; version=0.0.4; charset=utf-8",
                     [collectable = std::move(collectable)] {
                       return prometheus::TextSerializer().Serialize(collectable->Collect());
                     }});
  WITHY_ASSIGN_OR_RETURN(server->listener_,
                         HttpListener::Start(std::move(socket), std::move(further), limits));
  return server;
}

}  // namespace withy::profiler_agent
