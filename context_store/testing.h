// Helpers for the store's tests: temporary directories and bounded waits.
#pragma once

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

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

// Changes one bit of a file.
inline void FlipBit(const std::string& path, uint64_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(static_cast<char>(byte ^ (1 << (bit % 8))));
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
  std::string Snapshot(const std::string& name) const { return SnapshotOf({name}).front(); }

  // Several at one moment, in which `also` copies what is in memory and says whether that stayed as
  // it was: all is copied again when something has changed meanwhile.
  std::vector<std::string> SnapshotOf(
      const std::vector<std::string>& names,
      const std::function<bool()>& also = [] { return true; }) const {
    static int number = 0;
    const std::string suffix = "." + std::to_string(++number);
    std::vector<std::string> copies;
    for (const std::string& name : names) copies.push_back(path_ + "/" + name + suffix);
    const bool whole = Eventually([&] {
      const auto before = FilesOf(names);
      std::error_code failed;
      for (size_t i = 0; i < names.size() && !failed; ++i) {
        std::filesystem::remove_all(copies[i]);
        std::filesystem::copy(*this / names[i], copies[i], std::filesystem::copy_options::recursive,
                              failed);
      }
      return also() && !failed && before.has_value() && FilesOf(names) == before;
    });
    EXPECT_TRUE(whole) << "files in " << path_ << " changed all the time";
    return copies;
  }

 private:
  using Files = std::map<std::string, std::pair<uintmax_t, std::filesystem::file_time_type>>;

  // Size and time of each file; nothing where one went away while they were listed.
  std::optional<Files> FilesOf(const std::vector<std::string>& names) const {
    namespace fs = std::filesystem;
    Files files;
    std::error_code failed;
    for (const std::string& name : names) {
      for (fs::recursive_directory_iterator file(*this / name, failed), end; !failed && file != end;
           file.increment(failed)) {
        if (!file->is_regular_file(failed)) continue;
        auto& [size, time] = files[file->path()];
        size = file->file_size(failed);
        if (!failed) time = file->last_write_time(failed);
      }
      if (failed) return std::nullopt;
    }
    return files;
  }

  std::string path_;
};

// A small file system of its own, where the test may mount one.
class SmallDisk {
 public:
  explicit SmallDisk(const char* options = "size=24m")
      : mounted_(mount("withy-test", dir_.path().c_str(), "tmpfs", 0, options) == 0) {}
  ~SmallDisk() {
    if (mounted_) umount2(dir_.path().c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  std::string operator/(const std::string& name) const { return dir_ / name; }
  uint64_t FreeBytes() const { return std::filesystem::space(dir_.path()).available; }
  // Fills all free space except `left` bytes.
  void Fill(uint64_t left = 0) const {
    std::ofstream filler(dir_ / "filler", std::ios::binary);
    const std::string page(4096, 'x');
    while (FreeBytes() > left &&
           filler.write(page.data(), static_cast<std::streamsize>(page.size())).flush()) {
    }
  }
  bool Remount(unsigned long flags) const {
    return mount("withy-test", dir_.path().c_str(), "tmpfs", MS_REMOUNT | flags, nullptr) == 0;
  }
  void MakeRoom() const { std::filesystem::remove(dir_ / "filler"); }

 private:
  TempDir dir_;
  const bool mounted_;
};

}  // namespace withy::context_store
