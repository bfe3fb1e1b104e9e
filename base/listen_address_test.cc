// Tests what may be at a socket's path, and what happens to it.
#include "base/listen_address.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy {
namespace {

using ::testing::HasSubstr;

class SocketPlace : public ::testing::Test {
 protected:
  SocketPlace() {
    char pattern[] = "/tmp/withy-base-XXXXXX";
    dir_ = mkdtemp(pattern);
    path_ = dir_ + "/withy.sock";
  }
  ~SocketPlace() override { std::filesystem::remove_all(dir_); }
  // Binds a socket to `path_`, listening if requested.
  UniqueFd Bind(int type, bool listens) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    if (listens) {
      EXPECT_EQ(listen(fd.get(), 1), 0);
    }
    return fd;
  }
  // Expects an error that names the path; the existing file is unchanged and nothing is left beside
  // it.
  void ExpectRefused(const char* what, absl::StatusCode code) const {
    struct stat before {
    }, after{};
    ASSERT_EQ(lstat(path_.c_str(), &before), 0) << what;
    const absl::Status status = ClaimSocket(path_, "test").status();
    EXPECT_EQ(status.code(), code) << what << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_)) << what;
    ASSERT_EQ(lstat(path_.c_str(), &after), 0) << what << " was removed";
    EXPECT_EQ(after.st_ino, before.st_ino) << what;
    EXPECT_EQ(after.st_mode, before.st_mode) << what;
    if (code != absl::StatusCode::kInvalidArgument) return;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_FALSE(std::filesystem::exists(path_ + ".lock")) << what;
  }
  std::string dir_;
  std::string path_;
};

TEST_F(SocketPlace, WhatIsNoSocketIsRefusedAndLeftAsItIs) {
  std::ofstream(path_) << "notes";
  ExpectRefused("a regular file", absl::StatusCode::kInvalidArgument);
  std::string text;
  std::getline(std::ifstream(path_), text);
  EXPECT_EQ(text, "notes");
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  ExpectRefused("a directory", absl::StatusCode::kInvalidArgument);
  std::filesystem::remove(path_);
  const std::string place = std::exchange(path_, dir_ + "/socket");
  const UniqueFd listener = Bind(SOCK_STREAM, true);
  path_ = place;
  for (const char* target : {"nothing", "socket"}) {
    std::filesystem::create_symlink(dir_ + "/" + target, path_);
    ExpectRefused("a symbolic link", absl::StatusCode::kInvalidArgument);
    std::filesystem::remove(path_);
  }
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  ExpectRefused("a pipe", absl::StatusCode::kInvalidArgument);
  std::filesystem::remove(path_);
  if (mknod(path_.c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) {
    ExpectRefused("a device", absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(SocketPlace, ASocketThatIsInUseIsLeftWhateverItsType) {
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    const UniqueFd other = Bind(type, true);
    ExpectRefused("a listener", absl::StatusCode::kAlreadyExists);
    std::filesystem::remove(path_);
  }
  const UniqueFd datagrams = Bind(SOCK_DGRAM, false);
  ExpectRefused("a receiver of datagrams", absl::StatusCode::kAlreadyExists);
}

TEST_F(SocketPlace, AStaleSocketIsReplaced) {
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM}) {
    Bind(type, type != SOCK_DGRAM);  // and closed again
    ASSERT_TRUE(std::filesystem::exists(path_));
    const auto lock = ClaimSocket(path_, "test");
    EXPECT_TRUE(lock.ok()) << lock.status();
    EXPECT_FALSE(std::filesystem::exists(path_));
  }
}

TEST_F(SocketPlace, WhatStandsInThePlaceOfTheLockFileIsLeft) {
  const std::string lock = path_ + ".lock";
  std::ofstream(dir_ + "/notes") << "mine";
  std::filesystem::create_symlink(dir_ + "/notes", lock);
  EXPECT_THAT(std::string(ClaimSocket(path_, "test").status().message()), HasSubstr(lock));
  EXPECT_TRUE(std::filesystem::is_symlink(lock));
  std::filesystem::remove(lock);
  ASSERT_EQ(mkfifo(lock.c_str(), 0600), 0);
  EXPECT_THAT(std::string(ClaimSocket(path_, "test").status().message()), HasSubstr(lock));
  std::filesystem::remove(lock);
  std::filesystem::create_directory(lock);
  EXPECT_THAT(std::string(ClaimSocket(path_, "test").status().message()), HasSubstr(lock));
}

TEST_F(SocketPlace, OnlyASocketIsRemovedAtTheEnd) {
  Bind(SOCK_STREAM, true);
  RemoveSocket(path_);
  EXPECT_FALSE(std::filesystem::exists(path_));
  std::ofstream(path_) << "notes";
  RemoveSocket(path_);
  EXPECT_TRUE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace withy
