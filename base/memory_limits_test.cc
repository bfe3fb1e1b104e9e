#include "base/memory_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/test_seed.h"

namespace withy {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::Field;

// A file system that shows what the test writes.
class MemoryLimitsTest : public ::testing::Test {
 protected:
  MemoryLimitsTest() { fs::remove_all(root_); }
  ~MemoryLimitsTest() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  void RunAs(const std::string& program) {
    fs::create_directories(root_ / "proc/self");
    fs::create_symlink("/usr/bin/" + program, root_ / "proc/self/exe");
  }
  std::vector<MemoryLimit> Limits() { return MemoryLimits(root_.string()); }
  uint64_t Allowed() { return MemoryAllowed(root_.string()); }
  uint64_t Free() { return MemoryFree(root_.string()); }

  const fs::path root_ = fs::path(testing::TempDir()) / "memory_limits";
};

TEST_F(MemoryLimitsTest, AllowedIsTheLeastOfBoardAndCgroups) {
  EXPECT_EQ(Allowed(), 0u) << "nothing is known";
  Write("proc/meminfo", "MemTotal:       4000000 kB\nMemFree: 1 kB\n");
  EXPECT_EQ(Allowed(), 4'000'000u << 10);
  EXPECT_EQ(Free(), 0u) << "an old kernel does not say";
  Write("proc/meminfo", "MemTotal:       4000000 kB\nMemFree: 1 kB\nMemAvailable:    3000000 kB\n");
  EXPECT_EQ(Free(), 3'000'000u << 10);
  Write("proc/self/cgroup", "1:cpu:/elsewhere\n0::/system.slice/withy.service\n");
  Write("sys/fs/cgroup/system.slice/withy.service/memory.max", "max\n");
  EXPECT_EQ(Allowed(), 4'000'000u << 10);
  Write("sys/fs/cgroup/system.slice/memory.max", "2048000000\n");
  EXPECT_EQ(Allowed(), 2'048'000'000u);
  Write("sys/fs/cgroup/system.slice/withy.service/memory.max", "1024000000\n");
  EXPECT_EQ(Allowed(), 1'024'000'000u);
  Write("sys/fs/cgroup/system.slice/withy.service/memory.high", "512000000\n");
  EXPECT_EQ(Allowed(), 512'000'000u);
  Write("sys/fs/cgroup/system.slice/withy.service/memory.current", "200000000\n");
  EXPECT_EQ(Free(), 312'000'000u);
  Write("sys/fs/cgroup/system.slice/withy.service/memory.stat",
        "anon 1\nfile 90000000\ninactive_file 60000000\nactive_file 20000000\nshmem 10000000\n");
  EXPECT_EQ(Free(), 392'000'000u) << "page cache is taken back";
}

TEST_F(MemoryLimitsTest, VersionOneIsReadAtEveryLevel) {
  Write("proc/meminfo", "MemTotal: 4000000 kB\nMemAvailable: 4000000 kB\n");
  Write("proc/self/cgroup", "9:cpu,cpuacct:/a\n4:memory:/outer/inner\n0::/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/memory/outer/inner/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Allowed(), 4'000'000u << 10) << "its word for no limit";
  Write("sys/fs/cgroup/memory/outer/memory.limit_in_bytes", "300000000\n");
  Write("sys/fs/cgroup/memory/outer/memory.usage_in_bytes", "150000000\n");
  Write("sys/fs/cgroup/memory/outer/memory.stat",
        "total_cache 9\ntotal_inactive_file 30000000\ntotal_active_file 20000000\n");
  EXPECT_THAT(Limits(), ElementsAre(Field(&MemoryLimit::file,
                                          "/sys/fs/cgroup/memory/outer/memory.limit_in_bytes"),
                                    Field(&MemoryLimit::file, "/proc/meminfo")));
  EXPECT_EQ(Free(), 200'000'000u);
}

// What Docker shows of its hierarchies inside a container.
TEST_F(MemoryLimitsTest, AContainerSeesItsLimitAtTheMountsRoot) {
  Write("proc/self/mountinfo",
        "31 23 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n"
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro shared:9 - cgroup cgroup rw,memory\n");
  Write("proc/self/cgroup", "4:memory:/docker/abc\n0::/../../x\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "100000000\n");
  EXPECT_EQ(Allowed(), 100'000'000u);
  Write("proc/self/cgroup", "4:memory:/docker/other\n");
  EXPECT_EQ(Allowed(), 100'000'000u) << "a path that the mount does not show";
  Write("proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  Write("proc/self/cgroup", "0::/a\n");
  Write("sys/fs/cgroup/unified/a/memory.max", "50000000\n");
  EXPECT_EQ(Allowed(), 50'000'000u);
}

TEST_F(MemoryLimitsTest, OnlyTheProcesssOwnServiceIsAlone) {
  RunAs("withy-context-store");
  Write("proc/self/cgroup", "0::/withy.slice/withy-context-store.service/inner\n");
  for (const char* level : {"withy.slice/withy-context-store.service/inner",
                            "withy.slice/withy-context-store.service", "withy.slice"}) {
    Write(std::string("sys/fs/cgroup/") + level + "/memory.max", "1000\n");
  }
  EXPECT_THAT(Limits(),
              ElementsAre(Field(&MemoryLimit::alone, true), Field(&MemoryLimit::alone, true),
                          Field(&MemoryLimit::alone, false)));
  Write("proc/self/cgroup", "0::/withy.slice\n");
  EXPECT_THAT(Limits(), ElementsAre(Field(&MemoryLimit::alone, false)));
}

// Whatever the files say, the result is no larger than any limit that can be read.
TEST_F(MemoryLimitsTest, AnyTextInAnyFileIsRead) {
  std::mt19937 random(TestSeed());
  const char* const files[] = {"proc/meminfo",
                               "proc/self/cgroup",
                               "proc/self/mountinfo",
                               "sys/fs/cgroup/a/memory.max",
                               "sys/fs/cgroup/a/memory.stat",
                               "sys/fs/cgroup/a/memory.current",
                               "sys/fs/cgroup/memory/a/memory.limit_in_bytes"};
  const char* const words[] = {"0::/a\n",
                               "4:memory:/a\n",
                               ":",
                               "::/..\n",
                               "-1\n",
                               "max\n",
                               "MemTotal: ",
                               " - ",
                               "cgroup2",
                               "99999999999999999999 ",
                               "/sys/fs/cgroup",
                               "\n",
                               "memory\n",
                               "1000 kB",
                               "a/../../.. "};
  for (int round = 0; round < 300; ++round) {
    for (const char* file : files) {
      std::string text;
      for (size_t n = random() % 8; n > 0; --n) text += words[random() % std::size(words)];
      Write(file, text);
    }
    for (const MemoryLimit& limit : Limits()) {
      EXPECT_FALSE(limit.file.empty());
      EXPECT_LE(Allowed(), limit.bytes);
      EXPECT_LE(limit.room_bytes(), limit.bytes);
    }
  }
}

}  // namespace
}  // namespace withy
