// How much of the disk's speed a cold read of KV reaches. The test prints the figures; it fails
// only if a read is wrong, since the speed depends on what else the machine does.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/huge_memory.h"
#include "base/ids.h"
#include "context_store/disk/kv_segments.h"
#include "context_store/testing.h"

namespace withy::context_store {
namespace {

// A model of 1.1 B parameters: 22 layers, 4 KV heads of 64, at 8 bits. 2 contexts of 4,096 tokens
// and more.
constexpr uint32_t kSpeedLayers = 22;
constexpr uint32_t kSpeedBlockBytes = 8768;
constexpr uint32_t kSpeedExtents = 8;
constexpr int kRounds = 8;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// CPU time of the whole process so far.
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class KvSpeedTest : public ::testing::Test {
 protected:
  KvSpeedTest() : arena_(HugeMemory::Allocate(kSpeedExtents * Chunks() * Slot()).value()) {
    std::memset(arena_.bytes().data(), 1, arena_.bytes().size());
  }

  static uint32_t Chunks() { return MaxChunksPerExtent(kSpeedLayers, kSpeedBlockBytes); }
  static size_t Slot() { return size_t{kSpeedLayers} * kSpeedBlockBytes; }
  std::byte* At(uint32_t extent, uint32_t chunk) {
    return arena_.bytes().data() + (size_t{extent} * Chunks() + chunk) * Slot();
  }

  // Reads the files as dd does, `bytes` at a time with `depth` requests in flight. Returns bytes a
  // second.
  double ReadFiles(const std::vector<std::string>& paths, bool direct, size_t bytes,
                   uint32_t depth) {
    const auto queue = DiskQueue::CreateBest(depth);
    HugeMemory memory = HugeMemory::Allocate(bytes * depth).value();
    std::memset(memory.bytes().data(), 0, memory.bytes().size());
    const auto start = std::chrono::steady_clock::now();
    uint64_t total = 0;
    uint32_t in_flight = 0;
    std::vector<uint64_t> free;
    for (uint32_t i = 0; i < depth; ++i) free.push_back(i);
    const auto wait = [&] {
      const auto completion = queue->Wait();
      EXPECT_GT(completion->result, 0);
      total += static_cast<uint64_t>(completion->result);
      free.push_back(completion->tag);
      --in_flight;
    };
    for (const std::string& path : paths) {
      const UniqueFd fd = OpenDiskFile(path, {.direct = direct}).value();
      const uint64_t size = std::filesystem::file_size(path);
      for (uint64_t offset = 0; offset < size; offset += bytes) {
        while (free.empty()) wait();
        const uint64_t slot = free.back();
        free.pop_back();
        queue->Submit({.fd = fd.get(),
                       .offset = offset,
                       .memory = memory.bytes().subspan(slot * bytes,
                                                        std::min<uint64_t>(bytes, size - offset)),
                       .tag = slot});
        ++in_flight;
      }
      while (in_flight > 0) wait();
    }
    return static_cast<double>(total) / SecondsSince(start);
  }

  // Writes the extents. Prints the speed.
  std::vector<KvExtent> WriteAll(KvSegments& segments, const KvOwner& owner, const char* name) {
    std::vector<KvExtent> extents;
    const auto start = std::chrono::steady_clock::now();
    for (uint32_t e = 0; e < kSpeedExtents; ++e) {
      KvExtentWrite write{.owner = owner,
                          .format = 1,
                          .layers = kSpeedLayers,
                          .block_bytes = kSpeedBlockBytes,
                          .layer_stride = kSpeedBlockBytes};
      for (uint32_t c = 0; c < Chunks(); ++c) {
        write.identities.push_back(ToBytes32(RandomBytes(32)));
        std::memcpy(At(e, c), write.identities.back().data(), 32);
        write.chunks.push_back(At(e, c));
      }
      extents.push_back(segments.Append(write).value());
    }
    EXPECT_TRUE(segments.Sync(extents).ok());
    const KvSegmentsStats stats = segments.Stats();
    std::printf("%s: written with %.2f GB/s, amplification %.4f (direct %d, io_uring %d)\n", name,
                static_cast<double>(stats.kv_bytes) / SecondsSince(start) / 1e9,
                static_cast<double>(stats.written_bytes) / static_cast<double>(stats.kv_bytes),
                stats.direct, stats.uring);
    return extents;
  }

  // Reads all extents in one read. Returns bytes of KV a second; `first_ms`: until layer 0.
  double ReadAll(KvSegments& segments, const KvOwner& owner, const std::vector<KvExtent>& extents,
                 double* first_ms) {
    KvRead read;
    read.layers = kSpeedLayers;
    for (uint32_t e = 0; e < kSpeedExtents; ++e) {
      KvExtentRead& part = read.extents.emplace_back();
      part.extent = extents[e];
      part.owner = owner;
      part.layer_stride = kSpeedBlockBytes;
      for (uint32_t c = 0; c < Chunks(); ++c) {
        part.targets.push_back(At(e, c));
        std::memset(At(e, c), 0, 32);
      }
    }
    absl::Notification done;
    const double cpu = CpuSeconds();
    const auto start = std::chrono::steady_clock::now();
    read.on_layer = [&](uint32_t layer) {
      if (layer == 0) *first_ms = 1e3 * SecondsSince(start);
    };
    read.on_failed = [](size_t, const absl::Status& status) { ADD_FAILURE() << status; };
    read.on_done = [&] { done.Notify(); };
    EXPECT_TRUE(segments.reader().Start(std::move(read)).ok());
    done.WaitForNotification();
    const double seconds = SecondsSince(start);
    cpu_seconds_ += CpuSeconds() - cpu;
    for (uint32_t e = 0; e < kSpeedExtents; ++e) {
      for (uint32_t c = 0; c < Chunks(); ++c) {
        EXPECT_EQ(std::memcmp(At(e, c), extents[e].identities[c].data(), 32), 0);
      }
    }
    return static_cast<double>(kSpeedExtents * Chunks() * Slot()) / seconds;
  }

  TempDir dir_;
  HugeMemory arena_;
  double cpu_seconds_ = 0;  // of ReadAll
};

TEST_F(KvSpeedTest, AColdReadReachesMostOfTheDisksSpeed) {
  KvOwner plain, encrypted;
  encrypted.key = std::make_shared<const SecretKey>(SecretKey::Random());
  auto plain_segments = KvSegments::Open({.directory = dir_ / "plain"}).value();
  auto encrypted_segments = KvSegments::Open({.directory = dir_ / "encrypted"}).value();
  const auto plain_extents = WriteAll(*plain_segments, plain, "plain");
  const auto encrypted_extents = WriteAll(*encrypted_segments, encrypted, "encrypted");
  const bool direct = plain_segments->Stats().direct;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(dir_ / "plain")) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<double> one, deep, plain_rates, encrypted_rates, firsts;
  double first_ms = 0, plain_cpu = 0, encrypted_cpu = 0;
  const std::array<std::function<void()>, 4> kinds = {
      [&] { one.push_back(ReadFiles(paths, direct, 4 << 20, 1)); },
      [&] { deep.push_back(ReadFiles(paths, direct, 512 << 10, 8)); },
      [&] {
        plain_rates.push_back(ReadAll(*plain_segments, plain, plain_extents, &first_ms));
        plain_cpu += std::exchange(cpu_seconds_, 0);
        firsts.push_back(first_ms);
      },
      [&] {
        encrypted_rates.push_back(
            ReadAll(*encrypted_segments, encrypted, encrypted_extents, &first_ms));
        encrypted_cpu += std::exchange(cpu_seconds_, 0);
      }};
  // A virtual disk may give more than its rate for a moment after it was idle. So it is kept busy,
  // and the kinds take turns in being the first of a round.
  for (int i = 0; i < kRounds; ++i) ReadFiles(paths, direct, 4 << 20, 1);
  for (size_t i = 0; i < kRounds * kinds.size(); ++i) {
    kinds[(i + i / kinds.size()) % kinds.size()]();
  }
  const double gigabytes = static_cast<double>(kSpeedExtents * Chunks() * Slot()) / 1e9;
  const double disk = std::max(Median(one), Median(deep));
  std::printf(
      "disk, O_DIRECT: %.2f GB/s with 4 MiB at depth 1, %.2f with 512 KiB at depth 8\n"
      "cold read of %u chunks (%.0f MB): %.2f GB/s = %.2f of the disk, %.2f CPU-seconds a GB; "
      "encrypted %.2f = %.2f, %.2f CPU-seconds a GB; first layer after %.1f ms (medians of %d)\n",
      Median(one) / 1e9, Median(deep) / 1e9, kSpeedExtents * Chunks(), gigabytes * 1e3,
      Median(plain_rates) / 1e9, Median(plain_rates) / disk, plain_cpu / gigabytes / kRounds,
      Median(encrypted_rates) / 1e9, Median(encrypted_rates) / disk,
      encrypted_cpu / gigabytes / kRounds, Median(firsts), kRounds);
  EXPECT_GT(Median(encrypted_rates) / disk, 0.05);
}

}  // namespace
}  // namespace withy::context_store
