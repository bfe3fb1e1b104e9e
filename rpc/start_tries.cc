#include "rpc/start_tries.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

namespace withy::rpc {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(500);
constexpr absl::Duration kLongestPause = absl::Minutes(1);
constexpr uint32_t kCrashesWithoutPause = 5;
constexpr uint32_t kMostTries = 1'000'000;

}  // namespace

StartTries::StartTries(std::string path) : path_(std::move(path)) {
  uint32_t tries = 0;
  std::string end;
  if (std::ifstream(path_) >> tries >> end) {
    in_vain_ = std::min(tries, kMostTries);
    crashed_ = end != "failed";
  }
  Write(/*failed=*/false);
}

void StartTries::Failed() { Write(/*failed=*/true); }

void StartTries::Served() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void StartTries::Write(bool failed) const {
  std::ofstream(path_) << in_vain_ + 1 << (failed ? " failed\n" : " started\n");
}

absl::Duration PauseAfterFailures(uint32_t in_vain) {
  return std::min(kFirstPause * (1 << std::min(in_vain, 16u)), kLongestPause);
}

absl::Duration PauseAfterCrashes(uint32_t in_vain) {
  return in_vain < kCrashesWithoutPause ? absl::ZeroDuration()
                                        : PauseAfterFailures(in_vain - kCrashesWithoutPause);
}

}  // namespace withy::rpc
