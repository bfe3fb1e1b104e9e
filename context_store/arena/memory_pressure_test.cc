#include "context_store/arena/memory_pressure.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "context_store/testing.h"

namespace withy::context_store {
namespace {

TEST(MemoryPressure, CountsWhatWasAdded) {
  const TempDir dir;
  const std::string path = dir / "memory";
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  write("some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\nfull avg10=0.00 total=7\n");
  auto pressure = MemoryPressure::Open(path);
  ASSERT_TRUE(pressure.ok()) << pressure.status();
  EXPECT_EQ(*(*pressure)->StalledMicros(), 0u);
  write("some avg10=0.00 avg60=0.00 avg300=0.00 total=1250\nfull avg10=0.00 total=9\n");
  EXPECT_EQ(*(*pressure)->StalledMicros(), 250u);
  write("some avg10=0.00 avg60=0.00 avg300=0.00 total=10\n");
  EXPECT_EQ(*(*pressure)->StalledMicros(), 0u) << "the counter began anew";
  write("nonsense");
  EXPECT_TRUE(absl::IsInvalidArgument((*pressure)->StalledMicros().status()));
  EXPECT_FALSE(MemoryPressure::Open(dir / "missing").ok());
}

TEST(MemoryPressure, TheCgroupsFileComesFirst) {
  const TempDir dir;
  namespace fs = std::filesystem;
  EXPECT_EQ(FindPressureFile(dir.path()), "");
  fs::create_directories(dir / "proc/pressure");
  fs::create_directories(dir / "proc/self");
  std::ofstream(dir / "proc/pressure/memory") << "some total=0\n";
  EXPECT_EQ(FindPressureFile(dir.path()), dir / "proc/pressure/memory");
  std::ofstream(dir / "proc/self/cgroup") << "0::/system.slice/withy\n";
  fs::create_directories(dir / "sys/fs/cgroup/system.slice/withy");
  std::ofstream(dir / "sys/fs/cgroup/system.slice/withy/memory.pressure") << "some total=0\n";
  EXPECT_EQ(FindPressureFile(dir.path()), dir / "sys/fs/cgroup/system.slice/withy/memory.pressure");
}

// On a kernel that tells pressure, its own file can be read.
TEST(MemoryPressure, WaitEndsWithStop) {
  const std::string path = FindPressureFile();
  if (path.empty()) GTEST_SKIP() << "no pressure stall information";
  auto pressure = MemoryPressure::Open(path);
  ASSERT_TRUE(pressure.ok()) << pressure.status();
  const UniqueFd stop(eventfd(1, EFD_CLOEXEC));
  (*pressure)->Wait(stop.get(), absl::Minutes(5));
  EXPECT_TRUE((*pressure)->StalledMicros().ok());
}

}  // namespace
}  // namespace withy::context_store
