// Helpers for the store's tests: temporary directories and bounded waits.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

namespace withy::context_store {

// Whether `condition` becomes true within a minute, which is long even on a busy machine.
template <typename Condition>
bool Eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "withy-store-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  // Copies `name` as it is on disk now: the state that a process killed at this moment leaves.
  std::string Snapshot(const std::string& name) const {
    static int number = 0;
    const std::string copy = path_ + "/" + name + "." + std::to_string(++number);
    std::filesystem::copy(path_ + "/" + name, copy, std::filesystem::copy_options::recursive);
    return copy;
  }

 private:
  std::string path_;
};

}  // namespace withy::context_store
