#include "context_store/arena/memory_pressure.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/status.h"

namespace withy::context_store {
namespace {

// 200 ms of waiting within 2 s: the shortest window that a process without privileges may ask for.
constexpr std::string_view kTrigger = "some 200000 2000000";

constexpr size_t kMostBytes = 1 << 12;

// A kernel that was told not to measure pressure has the file and refuses to open it.
bool Readable(const std::string& path) {
  const auto text = ReadFile(path, kMostBytes);
  return text.ok() && ParseStalledMicros(*text).ok();
}

}  // namespace

std::string FindPressureFile(const std::string& root) {
  constexpr std::string_view kVersion2 = "0::/";
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kVersion2)) continue;
    const std::string path =
        absl::StrCat(root, "/sys/fs/cgroup/", line.substr(kVersion2.size()), "/memory.pressure");
    if (Readable(path)) return path;
  }
  const std::string board = root + "/proc/pressure/memory";
  return Readable(board) ? board : "";
}

absl::StatusOr<uint64_t> ParseStalledMicros(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    if (!line.starts_with("some ")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    for (const std::string& word : words) {
      constexpr std::string_view kTotal = "total=";
      uint64_t micros = 0;
      if (word.starts_with(kTotal) && absl::SimpleAtoi(word.substr(kTotal.size()), &micros)) {
        return micros;
      }
    }
  }
  return absl::InvalidArgumentError("no line \"some … total=MICROSECONDS\"");
}

absl::StatusOr<std::unique_ptr<MemoryPressure>> MemoryPressure::Open(const std::string& path) {
  std::unique_ptr<MemoryPressure> pressure(new MemoryPressure(path));
  WITHY_ASSIGN_OR_RETURN(pressure->total_us_, pressure->ReadTotal());
  if (path.starts_with("/proc/") || path.starts_with("/sys/")) {
    pressure->fd_.Reset(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    // The terminating zero belongs to the message.
    pressure->triggered_ = pressure->fd_.valid() &&
                           write(pressure->fd_.get(), kTrigger.data(), kTrigger.size() + 1) > 0;
  }
  return pressure;
}

absl::StatusOr<uint64_t> MemoryPressure::ReadTotal() const {
  WITHY_ASSIGN_OR_RETURN(const std::string text, ReadFile(path_, kMostBytes));
  absl::StatusOr<uint64_t> total = ParseStalledMicros(text);
  if (!total.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory pressure file ", path_, ": ", total.status().message()));
  }
  return total;
}

absl::StatusOr<uint64_t> MemoryPressure::StalledMicros() {
  WITHY_ASSIGN_OR_RETURN(const uint64_t total, ReadTotal());
  const uint64_t stalled = total < total_us_ ? 0 : total - total_us_;
  total_us_ = total;
  return stalled;
}

void MemoryPressure::Wait(int stop, absl::Duration timeout) const {
  std::array<pollfd, 2> polled = {pollfd{stop, POLLIN, 0},
                                  pollfd{triggered_ ? fd_.get() : -1, POLLPRI, 0}};  // -1: ignored
  (void)poll(polled.data(), polled.size(), static_cast<int>(absl::ToInt64Milliseconds(timeout)));
}

}  // namespace withy::context_store
