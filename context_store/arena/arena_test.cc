// The arena's memory: pages of 2 MiB where the system has them.
#include "context_store/arena/arena.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "context_store/testing.h"

namespace withy::context_store {
namespace {

constexpr uint64_t kBytes = 32 << 20;

// KiB of shared memory that this process has mapped in pages of 2 MiB.
uint64_t MappedHugeKib() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t kib = 0;
    if (words >> name >> kib && name == "ShmemPmdMapped:") return kib;
  }
  return 0;
}

TEST(ArenaTest, PagesAreHugeInEveryMappingWhereTheSystemPermits) {
  const uint64_t before = MappedHugeKib();
  auto arena = Arena::Create(kBytes, {});
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_TRUE(Eventually([&] { return (*arena)->prefaulted(); }));
  const uint64_t huge = (*arena)->huge_bytes();
  EXPECT_LE(huge, kBytes);
  if (huge == 0) GTEST_SKIP() << "no pages of 2 MiB for shared memory here";
  auto worker = SharedMemory::Map((*arena)->fd(), kBytes, SharedMemory::Access::kReadWrite);
  ASSERT_TRUE(worker.ok());
  ASSERT_TRUE(worker->Prefault().ok());
  EXPECT_GE(MappedHugeKib() - before, 2 * huge / 1024 * 3 / 4) << "both mappings";
}

// What a process had written before its pages were moved is there afterwards.
TEST(ArenaTest, AKeptArenaKeepsItsBytes) {
  auto first = Arena::Create(kBytes, {});
  ASSERT_TRUE(first.ok());
  for (uint64_t at = 0; at < kBytes; at += 4096) {
    (*first)->memory().base[at] = static_cast<std::byte>(at / 4096 % 251);
  }
  UniqueFd kept(dup((*first)->fd()));
  first->reset();
  auto second = Arena::Create(kBytes, std::move(kept));
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE((*second)->recovered());
  EXPECT_TRUE(Eventually([&] { return (*second)->prefaulted(); }));
  for (uint64_t at = 0; at < kBytes; at += 4096) {
    ASSERT_EQ((*second)->memory().base[at], static_cast<std::byte>(at / 4096 % 251)) << at;
  }
}

}  // namespace
}  // namespace withy::context_store
