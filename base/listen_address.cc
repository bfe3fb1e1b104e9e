#include "base/listen_address.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cctype>
#include <cstring>
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

const char* KindOf(mode_t mode) {
  if (S_ISREG(mode)) return "a regular file";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "no socket";
}

absl::Status InTheWay(const std::string& path, mode_t mode) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is ", KindOf(mode),
                   ", which is left as it is: listen on another path, or move it away"));
}

// Whether the socket file has no listener any more: only then is a connection refused.
bool IsStale(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return false;
  return connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 &&
         (errno == ECONNREFUSED || errno == ENOENT);
}

absl::StatusOr<UniqueFd> LockFile(const std::string& path) {
  // An existing path must be a lock file: do not follow links or wait for pipes.
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  struct stat info {};
  if (lock.valid() && fstat(lock.get(), &info) == 0 && S_ISREG(info.st_mode)) return lock;
  const absl::Status failed = ErrnoError("open " + path);
  return lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) ? InTheWay(path, info.st_mode)
                                                                   : failed;
}

// Returns true if a socket is at `path`, false if nothing is.
absl::StatusOr<bool> HasSocket(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return false;
    return ErrnoError("stat " + path);
  }
  if (!S_ISSOCK(info.st_mode)) return InTheWay(path, info.st_mode);
  return true;
}

// Removes a stale socket, or leaves the path as it was.
absl::Status RemoveStaleSocket(const std::string& path, std::string_view process) {
  WITHY_ASSIGN_OR_RETURN(const bool there, HasSocket(path));
  if (!there) return absl::OkStatus();
  if (!IsStale(path)) {
    return absl::AlreadyExistsError(absl::StrCat("another program listens on ", path,
                                                 ": stop it, or give ", ToAbsl(process),
                                                 " another address"));
  }
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoError("remove the stale socket " + path);
}

}  // namespace

absl::Status CheckListenAddress(std::string_view address) {
  if (IsListenAddress(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", ToAbsl(address),
      "\" is not a listen address; write unix:/PATH, or HOST:PORT with a port from 0 to 65535"));
}

bool IsLoopback(std::string_view address) {
  const std::string_view host = address.substr(0, address.rfind(':'));
  if (host == "localhost" || host == "[::1]") return true;
  // "127.example.org" is a name.
  return host.starts_with("127.") &&
         host.find_first_not_of("0123456789.") == std::string_view::npos;
}

absl::StatusOr<UniqueFd> ClaimSocket(const std::string& path, std::string_view process) {
  if (path.size() > kMaxPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", path, " has ", path.size(),
                                                   " bytes; the limit is ", kMaxPathBytes,
                                                   ": choose a shorter run_dir"));
  }
  const fs::path directory = fs::path(path).parent_path();
  std::error_code ignored;
  // Not created here: a mistyped path must not leave directories behind.
  if (!fs::is_directory(directory, ignored)) {
    return absl::NotFoundError(absl::StrCat("the directory ", directory.string(), " of the socket ",
                                            path,
                                            " does not exist: create it, or listen in run_dir"));
  }
  WITHY_RETURN_IF_ERROR(HasSocket(path).status());  // before creating a lock file beside it
  WITHY_ASSIGN_OR_RETURN(UniqueFd lock, LockFile(path + ".lock"));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("another ", ToAbsl(process), " already serves on ",
                                                 path,
                                                 "; stop it, or give this one another run_dir"));
  }
  WITHY_RETURN_IF_ERROR(RemoveStaleSocket(path, process));
  return lock;
}

void RemoveSocket(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) unlink(path.c_str());
}

}  // namespace withy
