#include "rpc/connections.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/listen_address.h"

namespace withy::rpc {
namespace {

// What the local end of a socket is called: "unix:PATH", or ":PORT"; empty: no socket of these.
std::string LocalEnd(int fd) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return "";
  if (address.ss_family == AF_UNIX) {
    const auto* const local = reinterpret_cast<const sockaddr_un*>(&address);
    if (bytes <= offsetof(sockaddr_un, sun_path)) return "";  // has no name, as a client's
    const size_t most = bytes - offsetof(sockaddr_un, sun_path);
    return std::string(kUnixPrefix) + std::string(local->sun_path, strnlen(local->sun_path, most));
  }
  if (address.ss_family == AF_INET) {
    return absl::StrCat(":", ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port));
  }
  if (address.ss_family == AF_INET6) {
    return absl::StrCat(":", ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port));
  }
  return "";
}

// How many connections are still there.
int HalfClose(const std::vector<std::string>& ends) {
  int open = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    int fd = -1;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &fd)) continue;
    const std::string end = LocalEnd(fd);
    if (end.empty() || std::find(ends.begin(), ends.end(), end) == ends.end()) continue;
    // Not for reading, too: a client whose write fails throws away what it has not read.
    shutdown(fd, SHUT_WR);
    ++open;
  }
  return open;
}

}  // namespace

void EndConnections(const std::vector<std::string>& addresses, absl::Duration patience) {
  std::vector<std::string> ends;
  for (const std::string& address : addresses) {
    const bool local = address.starts_with(kUnixPrefix);
    ends.push_back(local ? address : address.substr(std::min(address.rfind(':'), address.size())));
  }
  const absl::Time until = absl::Now() + patience;
  while (HalfClose(ends) > 0 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(1));
}

}  // namespace withy::rpc
