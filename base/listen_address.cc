#include "base/listen_address.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/un.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "base/status.h"

namespace withy {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxPathBytes = sizeof(sockaddr_un{}.sun_path) - 1;

bool IsHost(std::string_view host) {
  std::string_view allowed = ".-_%";
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    allowed = ".-_%:";
  }
  return !host.empty() && std::all_of(host.begin(), host.end(), [allowed](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || allowed.find(c) != allowed.npos;
  });
}

bool IsPort(std::string_view text) {
  uint32_t port = 0;
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos &&
         absl::SimpleAtoi(ToAbsl(text), &port) && port <= 65535;
}

bool IsListenAddress(std::string_view address) {
  if (address.starts_with(kUnixPrefix)) {
    const std::string_view path = address.substr(kUnixPrefix.size());
    return path.size() > 1 && path[0] == '/' && path[1] != '/' && path.back() != '/';
  }
  const size_t colon = address.rfind(':');
  return colon != std::string_view::npos && IsHost(address.substr(0, colon)) &&
         IsPort(address.substr(colon + 1));
}

}  // namespace

absl::Status CheckListenAddress(std::string_view address) {
  if (IsListenAddress(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", ToAbsl(address),
      "\" is no address to listen on; write unix:/PATH, or HOST:PORT with a port from 0 to 65535"));
}

absl::StatusOr<UniqueFd> ClaimSocket(const std::string& path, std::string_view process) {
  if (path.size() > kMaxPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", path, " has ", path.size(),
                                                   " bytes; the limit is ", kMaxPathBytes,
                                                   ": choose a shorter run_dir"));
  }
  const fs::path directory = fs::path(path).parent_path();
  std::error_code ignored;
  // Not made here: a mistyped path must not leave directories behind.
  if (!fs::is_directory(directory, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat("the directory ", directory.string(),
                                                   " of the socket ", path,
                                                   " is not there: make it, or listen in run_dir"));
  }
  const std::string lock_path = path + ".lock";
  UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoError("open " + lock_path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("another ", ToAbsl(process), " already serves on ",
                                                 path,
                                                 "; stop it, or give this one another run_dir"));
  }
  unlink(path.c_str());
  return lock;
}

}  // namespace withy
