#include "base/disk_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/huge_memory.h"

namespace withy {
namespace {

constexpr uint32_t kTestDepth = 4;

// A folder that is removed with the object.
class TempDir {
 public:
  TempDir() {
    std::string pattern = testing::TempDir() + "withy_disk_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class DiskQueueTest : public ::testing::TestWithParam<DiskQueue::Kind> {
 protected:
  // Null if the kernel refuses io_uring.
  std::unique_ptr<DiskQueue> MakeQueue() {
    auto queue = DiskQueue::Create(GetParam(), kTestDepth);
    return queue.ok() ? *std::move(queue) : nullptr;
  }
};

TEST_P(DiskQueueTest, WhatWasWrittenIsRead) {
  const auto queue = MakeQueue();
  if (queue == nullptr) GTEST_SKIP() << "no io_uring here";
  TempDir dir;
  const auto direct = SupportsDirectIo(dir.path());
  ASSERT_TRUE(direct.ok()) << direct.status();
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  auto memory = HugeMemory::Allocate(kTestDepth * kDiskAlign);
  ASSERT_TRUE(memory.ok());
  queue->Prepare(memory->bytes().first(2 * kDiskAlign));
  const auto part = [&](uint64_t i) { return memory->bytes().subspan(i * kDiskAlign, kDiskAlign); };
  for (const bool write : {true, false}) {
    const auto fd = OpenDiskFile(dir / "file", {.write = write, .direct = *direct});
    ASSERT_TRUE(fd.ok()) << fd.status();
    for (uint64_t i = 0; i < kTestDepth; ++i) {
      std::memset(part(i).data(), write ? static_cast<int>('a' + i) : 0, kDiskAlign);
      queue->Submit({write ? DiskRequest::Kind::kWrite : DiskRequest::Kind::kRead, fd->get(),
                     i * kDiskAlign, part(i), i});
    }
    for (uint64_t i = 0; i < kTestDepth; ++i) {
      const auto completion = queue->Wait();
      ASSERT_TRUE(completion.has_value());
      EXPECT_EQ(completion->result, static_cast<int64_t>(kDiskAlign));
      const auto bytes = part(completion->tag);
      EXPECT_EQ(static_cast<uint64_t>(bytes.front()), 'a' + completion->tag);
      EXPECT_EQ(bytes.front(), bytes.back());
    }
  }
}

TEST_P(DiskQueueTest, AnErrorIsACompletion) {
  const auto queue = MakeQueue();
  if (queue == nullptr) GTEST_SKIP() << "no io_uring here";
  std::vector<std::byte> memory(16);
  queue->Submit({.fd = -1, .memory = memory, .tag = 7});
  const auto completion = queue->Wait();
  ASSERT_TRUE(completion.has_value());
  EXPECT_EQ(completion->tag, 7u);
  EXPECT_EQ(completion->result, -EBADF);
}

TEST_P(DiskQueueTest, AWakeEndsAWaitAndIsNotLost) {
  const auto queue = MakeQueue();
  if (queue == nullptr) GTEST_SKIP() << "no io_uring here";
  queue->Wake();
  EXPECT_FALSE(queue->Wait().has_value());
  for (int i = 0; i < 3; ++i) {
    std::thread other([&] { queue->Wake(); });
    EXPECT_FALSE(queue->Wait().has_value());
    other.join();
  }
}

INSTANTIATE_TEST_SUITE_P(All, DiskQueueTest,
                         ::testing::Values(DiskQueue::Kind::kUring, DiskQueue::Kind::kThreads));

TEST(DiskFile, AnErrorNamesThePath) {
  TempDir dir;
  const absl::Status missing = OpenDiskFile(dir / "none", {}).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), ::testing::HasSubstr(dir / "none"));
  EXPECT_TRUE(absl::IsResourceExhausted(DiskError(ENOSPC, "write x")));
}

}  // namespace
}  // namespace withy
