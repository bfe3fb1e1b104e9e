#include "context_store/disk/kv_segments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <thread>

#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/ids.h"
#include "context_store/disk/kv_writer.h"
#include "context_store/testing.h"

namespace withy::context_store {
namespace {

using ::testing::HasSubstr;

constexpr std::byte kUntouched{0xEE};
// With 4 layers and blocks of 65,536 bytes these fill one of the test's segments of 1 MiB.
constexpr uint32_t kChunksPerSegment = 3;

// Blocks of a number of chunks, with room between layers.
struct Blocks {
  Blocks(uint32_t chunks, uint32_t layers, uint32_t block_bytes)
      : stride(block_bytes + 64), slot(stride * layers), memory(chunks * slot, kUntouched) {
    for (uint32_t i = 0; i < chunks; ++i) at.push_back(memory.data() + i * slot);
  }
  std::vector<const std::byte*> sources() const { return {at.begin(), at.end()}; }

  size_t stride, slot;
  std::vector<std::byte> memory;
  std::vector<std::byte*> at;
};

// What a read reported. Wait before looking.
struct Outcome {
  std::vector<uint32_t> layers;
  std::vector<std::pair<size_t, absl::Status>> failed;
  absl::Notification done;
};

struct Mode {
  bool encrypted = true;
  bool direct = true;
  bool uring = true;
};

class KvSegmentsTest : public ::testing::TestWithParam<Mode> {
 protected:
  KvSegmentsTest() {
    owner_.context_id = "ctx_1";
    owner_.model.fill(7);
    if (GetParam().encrypted) {
      owner_.key = std::make_shared<const SecretKey>(SecretKey::Random());
    }
    Reopen();
  }

  std::string Path() const { return dir_ / "kv"; }
  std::string File(const KvExtent& extent) const { return KvSegmentPath(Path(), extent.segment); }

  void Reopen(uint64_t max_bytes = uint64_t{1} << 30, uint64_t bytes_per_second = 0) {
    segments_.reset();
    auto opened = KvSegments::Open({.directory = Path(),
                                    .max_bytes = max_bytes,
                                    .segment_bytes = 1 << 20,
                                    .direct = GetParam().direct,
                                    .uring = GetParam().uring,
                                    .bytes_per_second = bytes_per_second});
    ASSERT_TRUE(opened.ok()) << opened.status();
    segments_ = *std::move(opened);
  }

  KvExtentWrite RandomWrite(uint32_t chunks, uint32_t layers, uint32_t block_bytes,
                            Blocks* blocks) {
    KvExtentWrite write{.owner = owner_,
                        .format = 2,
                        .layers = layers,
                        .block_bytes = block_bytes,
                        .chunks = blocks->sources(),
                        .layer_stride = blocks->stride};
    for (uint32_t i = 0; i < chunks; ++i) {
      write.identities.push_back(ToBytes32(RandomBytes(32)));
      for (uint32_t l = 0; l < layers; ++l) {
        // No two blocks are equal, and none has bytes that are left of Blocks().
        std::byte* const block = blocks->at[i] + l * blocks->stride;
        const std::string start = RandomBytes(16);
        std::memset(block, start[0] & 0x7F, block_bytes);
        std::memcpy(block, start.data(), start.size());
      }
    }
    return write;
  }

  KvExtent Write(uint32_t chunks, uint32_t layers, uint32_t block_bytes, Blocks* blocks) {
    *blocks = Blocks(chunks, layers, block_bytes);
    auto extent = segments_->Append(RandomWrite(chunks, layers, block_bytes, blocks));
    EXPECT_TRUE(extent.ok()) << extent.status();
    return extent.value_or(KvExtent{});
  }

  KvExtentRead ReadOf(const KvExtent& extent, const Blocks& targets) const {
    return {extent, owner_, targets.at, targets.stride};
  }

  KvReadId Start(std::vector<KvExtentRead> extents, Outcome* outcome) {
    KvRead read;
    read.layers = extents.at(0).extent.layers;
    read.extents = std::move(extents);
    read.on_layer = [outcome](uint32_t layer) { outcome->layers.push_back(layer); };
    read.on_failed = [outcome](size_t extent, const absl::Status& status) {
      outcome->failed.emplace_back(extent, status);
    };
    read.on_done = [outcome] { outcome->done.Notify(); };
    const auto id = segments_->reader().Start(std::move(read));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(0);
  }

  // Reads one extent. Returns its failure, or OK if all bytes are those written. Bytes that were
  // not written must be untouched even after a failure.
  absl::Status ReadBack(const KvExtent& extent, const Blocks& written) {
    Blocks targets(extent.layout().chunks, extent.layers, extent.block_bytes);
    Outcome outcome;
    Start({ReadOf(extent, targets)}, &outcome);
    outcome.done.WaitForNotification();
    EXPECT_EQ(outcome.layers.size(), extent.layers);
    EXPECT_TRUE(std::is_sorted(outcome.layers.begin(), outcome.layers.end()));
    EXPECT_LE(outcome.failed.size(), 1u);
    if (outcome.failed.empty()) {
      EXPECT_EQ(std::memcmp(targets.memory.data(), written.memory.data(), targets.memory.size()),
                0);
      return absl::OkStatus();
    }
    for (size_t i = 0; i < targets.memory.size(); ++i) {
      const bool same = targets.memory[i] == written.memory[i];
      if (same || targets.memory[i] == kUntouched) continue;
      ADD_FAILURE() << "wrong byte " << i;
      break;
    }
    return outcome.failed[0].second;
  }

  void ExpectMiss(const absl::Status& status, absl::StatusCode code, const KvExtent& extent,
                  const std::string& reason) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(File(extent)));
    EXPECT_THAT(std::string(status.message()), HasSubstr(reason));
  }

  TempDir dir_;
  KvOwner owner_;
  std::unique_ptr<KvSegments> segments_;
};

TEST_P(KvSegmentsTest, ExtentsOfAllShapesComeBack) {
  const uint64_t seed = RandomId64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 24; ++i) {
    const auto layers = 1 + static_cast<uint32_t>(random() % 9);
    const auto block_bytes =
        16 * (1 + static_cast<uint32_t>(random() % (i % 4 == 0 ? 20'000 : 600)));
    const auto chunks = 1 + static_cast<uint32_t>(
                                random() % std::min(90u, MaxChunksPerExtent(layers, block_bytes)));
    Blocks blocks(0, 1, 16);
    const KvExtent extent = Write(chunks, layers, block_bytes, &blocks);
    ASSERT_TRUE(ReadBack(extent, blocks).ok()) << chunks << " " << layers << " " << block_bytes;
  }
  EXPECT_EQ(segments_->Stats().live_bytes, segments_->Stats().kv_bytes);
}

TEST_P(KvSegmentsTest, ASlowDiskIsSimulatedInBothDirections) {
  Reopen(uint64_t{1} << 30, /*bytes_per_second=*/2'000'000);
  const auto seconds = [](const std::function<void()>& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  Blocks blocks(0, 1, 16);
  KvExtent extent;
  EXPECT_GE(seconds([&] { extent = Write(20, 2, 5000 / 16 * 16, &blocks); }), 0.1);
  EXPECT_GE(seconds([&] { EXPECT_TRUE(ReadBack(extent, blocks).ok()); }), 0.08);
}

// All eight layers would fit into one request.
TEST_P(KvSegmentsTest, TheFirstLayersOfALargeExtentDoNotWaitForTheOthers) {
  Reopen(uint64_t{1} << 30, /*bytes_per_second=*/1'000'000);
  Blocks written(0, 1, 16), targets(8, 8, 7936);
  const KvExtent extent = Write(8, 8, 7936, &written);
  absl::Notification done;
  std::vector<int64_t> arrived_ns;
  KvRead read;
  read.layers = 8;
  read.extents = {ReadOf(extent, targets)};
  read.on_layer = [&](uint32_t) { arrived_ns.push_back(Clock::Real().SteadyNanos()); };
  read.on_done = [&] { done.Notify(); };
  const int64_t begin = Clock::Real().SteadyNanos();
  ASSERT_TRUE(segments_->reader().Start(std::move(read)).ok());
  done.WaitForNotification();
  ASSERT_EQ(arrived_ns.size(), 8u);
  EXPECT_LT(arrived_ns[0] - begin, (arrived_ns[7] - begin) / 2);
  EXPECT_LT(arrived_ns[1] - begin, (arrived_ns[7] - begin) * 3 / 4);
}

TEST_P(KvSegmentsTest, OneReadServesManyExtentsLayerByLayer) {
  constexpr uint32_t kLayers = 6;
  std::vector<Blocks> written, targets;
  std::vector<KvExtentRead> reads;
  for (uint32_t i = 0; i < 5; ++i) {
    const uint32_t chunks = 1 + 13 * i, bytes = 4096 + 64 * i;
    written.emplace_back(0, 1, 16);
    targets.emplace_back(chunks, kLayers, bytes);
    reads.push_back(ReadOf(Write(chunks, kLayers, bytes, &written.back()), targets.back()));
  }
  absl::Notification done;
  std::vector<uint32_t> layers;
  KvRead read;
  read.layers = kLayers;
  read.extents = reads;
  read.on_layer = [&](uint32_t layer) {
    layers.push_back(layer);
    // Everything of this layer is there.
    for (size_t i = 0; i < written.size(); ++i) {
      for (size_t c = 0; c < written[i].at.size(); ++c) {
        const size_t at = layer * written[i].stride;
        EXPECT_EQ(
            std::memcmp(written[i].at[c] + at, targets[i].at[c] + at, reads[i].extent.block_bytes),
            0);
      }
    }
  };
  read.on_done = [&] { done.Notify(); };
  ASSERT_TRUE(segments_->reader().Start(std::move(read)).ok());
  done.WaitForNotification();
  EXPECT_THAT(layers, ::testing::ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_P(KvSegmentsTest, ChunksWithoutATargetAreLeftOut) {
  const uint64_t seed = RandomId64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  Blocks blocks(0, 1, 16);
  const KvExtent extent = Write(80, 4, 8768, &blocks);
  for (int i = 0; i < 8; ++i) {
    Blocks targets(80, 4, 8768);
    KvExtentRead read = ReadOf(extent, targets);
    for (std::byte*& target : read.targets) {
      if (random() % 8 < static_cast<uint64_t>(i % 8)) target = nullptr;
    }
    Outcome outcome;
    Start({read}, &outcome);
    outcome.done.WaitForNotification();
    EXPECT_TRUE(outcome.failed.empty());
    EXPECT_EQ(outcome.layers.size(), 4u);
    for (size_t c = 0; c < 80; ++c) {
      for (size_t l = 0; l < 4; ++l) {
        const std::byte* const at = targets.at[c] + l * targets.stride;
        if (read.targets[c] == nullptr) {
          ASSERT_EQ(at[0], kUntouched);
          ASSERT_EQ(at[8767], kUntouched);
        } else {
          ASSERT_EQ(std::memcmp(at, blocks.at[c] + l * blocks.stride, 8768), 0);
        }
      }
    }
  }
}

TEST_P(KvSegmentsTest, AReadThatDoesNotFitTheExtentIsRefused) {
  Blocks blocks(0, 1, 16);
  const KvExtent extent = Write(2, 3, 64, &blocks);
  KvRead read{.layers = 2, .extents = {ReadOf(extent, blocks)}};
  EXPECT_TRUE(absl::IsInvalidArgument(segments_->reader().Start(read).status()));
  read.layers = 3;
  read.extents[0].targets.pop_back();
  EXPECT_TRUE(absl::IsInvalidArgument(segments_->reader().Start(read).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(segments_->Append({}).status()));
  Blocks one(1, 1, 16);
  KvExtentWrite odd = RandomWrite(1, 1, 16, &one);
  odd.block_bytes = 15;
  EXPECT_TRUE(absl::IsInvalidArgument(segments_->Append(odd).status()));
}

TEST_P(KvSegmentsTest, NothingIsCalledOrWrittenAfterACancel) {
  Blocks blocks(0, 1, 16);
  const KvExtent extent = Write(100, 16, 8768, &blocks);
  for (int i = 0; i < 16; ++i) {
    auto targets = std::make_unique<Blocks>(100, 16, 8768);
    std::atomic<bool> cancelled{false};
    std::atomic<int> calls{0};
    KvRead read;
    read.layers = 16;
    read.extents = {ReadOf(extent, *targets)};
    read.on_layer = [&](uint32_t) {
      EXPECT_FALSE(cancelled);
      ++calls;
    };
    read.on_done = [&] { EXPECT_FALSE(cancelled); };
    const auto id = segments_->reader().Start(std::move(read));
    ASSERT_TRUE(id.ok());
    while (calls < i % 16) std::this_thread::yield();
    segments_->reader().Cancel(*id);
    cancelled = true;
    targets.reset();  // a write from now on would be found by a sanitizer
  }
  EXPECT_TRUE(ReadBack(extent, blocks).ok());
}

TEST_P(KvSegmentsTest, AReadMayCancelItselfAndStartAnother) {
  Blocks blocks(0, 1, 16);
  const KvExtent extent = Write(40, 8, 8768, &blocks);
  Blocks targets(40, 8, 8768), again(40, 8, 8768);
  std::atomic<KvReadId> id{0};
  std::vector<uint32_t> layers;
  Outcome second;
  KvRead read;
  read.layers = 8;
  read.extents = {ReadOf(extent, targets)};
  read.on_layer = [&](uint32_t layer) {
    layers.push_back(layer);
    if (layer != 2) return;
    while (id == 0) std::this_thread::yield();
    segments_->reader().Cancel(id);
    Start({ReadOf(extent, again)}, &second);
  };
  read.on_done = [] { ADD_FAILURE() << "cancelled"; };
  id = *segments_->reader().Start(std::move(read));
  second.done.WaitForNotification();
  EXPECT_THAT(layers, ::testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(again.memory, blocks.memory);
}

TEST_P(KvSegmentsTest, TheEndCancelsWhatRuns) {
  Blocks blocks(0, 1, 16);
  const KvExtent extent = Write(100, 16, 8768, &blocks);
  Blocks targets(100, 16, 8768);
  std::vector<Outcome> outcomes(5);
  for (Outcome& outcome : outcomes) Start({ReadOf(extent, targets)}, &outcome);
  segments_.reset();
}

TEST_P(KvSegmentsTest, ACutSegmentIsAMissThatSaysSo) {
  Blocks first(0, 1, 16), second(0, 1, 16);
  const KvExtent whole = Write(10, 4, 8768, &first), cut = Write(10, 4, 8768, &second);
  ASSERT_EQ(whole.segment, cut.segment);
  std::filesystem::resize_file(File(cut), cut.offset + cut.layout().DiskBytes() - 5000);
  EXPECT_TRUE(ReadBack(whole, first).ok());
  ExpectMiss(ReadBack(cut, second), absl::StatusCode::kDataLoss, cut, "cut");
  Reopen();
  EXPECT_TRUE(segments_->Adopt(whole, 10).ok());
  ExpectMiss(segments_->Adopt(cut, 10), absl::StatusCode::kDataLoss, cut, "cut");
  std::filesystem::remove(File(cut));
  ExpectMiss(ReadBack(whole, first), absl::StatusCode::kNotFound, whole, "No such file");
  Reopen();
  ExpectMiss(segments_->Adopt(whole, 10), absl::StatusCode::kNotFound, whole, "missing");
}

TEST_P(KvSegmentsTest, AFlippedBitAnywhereIsAMiss) {
  const uint64_t seed = RandomId64();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  Blocks blocks(0, 1, 16);
  const KvExtent extent = Write(20, 3, 4096, &blocks);
  const uint64_t bits = 8 * extent.layout().LayerBytes() * extent.layers;
  for (int i = 0; i < 25; ++i) {
    const uint64_t bit = random() % bits;
    FlipBit(File(extent), 8 * extent.offset + bit);
    ExpectMiss(ReadBack(extent, blocks), absl::StatusCode::kDataLoss, extent,
               "check does not match");
    FlipBit(File(extent), 8 * extent.offset + bit);
  }
  EXPECT_TRUE(ReadBack(extent, blocks).ok());
}

// A failure is told when the extent's other requests are over, too: slots that its chunks were to
// be read into then belong to other chunks.
TEST_P(KvSegmentsTest, NothingIsWrittenOnceAFailureWasTold) {
  constexpr std::byte kOthers{0x55};
  Blocks written(0, 1, 16);
  const KvExtent extent = Write(8, 8, 7936, &written);
  FlipBit(File(extent), 8 * extent.offset + 80);  // of the first of several requests
  for (int round = 0; round < 20; ++round) {
    Blocks targets(8, 8, 7936);
    absl::Notification done;
    int failures = 0;
    KvRead read;
    read.layers = 8;
    read.extents = {ReadOf(extent, targets)};
    read.on_failed = [&](size_t, const absl::Status&) {
      ++failures;
      std::fill(targets.memory.begin(), targets.memory.end(), kOthers);
    };
    read.on_done = [&] { done.Notify(); };
    ASSERT_TRUE(segments_->reader().Start(std::move(read)).ok());
    done.WaitForNotification();
    Reopen();  // the reader's threads have ended
    EXPECT_EQ(failures, 1);
    EXPECT_EQ(std::count(targets.memory.begin(), targets.memory.end(), kOthers),
              static_cast<std::ptrdiff_t>(targets.memory.size()))
        << "round " << round;
  }
}

TEST_P(KvSegmentsTest, SwappedSegmentsAndExtentsAreMisses) {
  Blocks a(0, 1, 16), b(0, 1, 16);
  const uint32_t chunks = kChunksPerSegment;
  const KvExtent first = Write(chunks, 4, 65536, &a), second = Write(chunks, 4, 65536, &b);
  ASSERT_NE(first.segment, second.segment);
  const std::string spare = dir_ / "spare";
  std::filesystem::rename(File(first), spare);
  std::filesystem::rename(File(second), File(first));
  std::filesystem::rename(spare, File(second));
  ExpectMiss(ReadBack(first, a), absl::StatusCode::kDataLoss, first, "check does not match");
  ExpectMiss(ReadBack(second, b), absl::StatusCode::kDataLoss, second, "check does not match");
  // The index may be damaged as well: another place, another context, another key.
  KvExtent moved = second;
  moved.segment = first.segment;
  EXPECT_TRUE(ReadBack(moved, b).ok());
  const KvOwner owner = owner_;
  owner_.context_id = "ctx_2";
  EXPECT_TRUE(absl::IsDataLoss(ReadBack(moved, b)));
  owner_ = owner;
  owner_.key =
      owner.key == nullptr ? std::make_shared<const SecretKey>(SecretKey::Random()) : nullptr;
  EXPECT_TRUE(absl::IsFailedPrecondition(ReadBack(moved, b)));
}

TEST_P(KvSegmentsTest, AReadErrorIsAMissAndTheOtherExtentsGoOn) {
  Blocks a(0, 1, 16), b(0, 1, 16);
  const uint32_t chunks = kChunksPerSegment;
  const KvExtent bad = Write(chunks, 4, 65536, &a), good = Write(chunks, 4, 65536, &b);
  std::filesystem::remove(File(bad));
  std::filesystem::create_directory(File(bad));  // read(2) gives EISDIR, open(2) perhaps EINVAL
  Blocks into_bad(chunks, 4, 65536), into_good(chunks, 4, 65536);
  Outcome outcome;
  Start({ReadOf(bad, into_bad), ReadOf(good, into_good)}, &outcome);
  outcome.done.WaitForNotification();
  ASSERT_EQ(outcome.failed.size(), 1u);
  EXPECT_EQ(outcome.failed[0].first, 0u);
  EXPECT_THAT(std::string(outcome.failed[0].second.message()), HasSubstr(File(bad)));
  EXPECT_EQ(outcome.layers.size(), 4u);
  EXPECT_EQ(into_good.memory, b.memory);
}

TEST_P(KvSegmentsTest, AFullDiskRefusesAnExtentAndKeepsTheOthers) {
  Blocks before(0, 1, 16), after(0, 1, 16);
  const KvExtent kept = Write(10, 4, 8768, &before);
  struct rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {.rlim_cur = 512 << 10, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  Blocks blocks(18, 4, 8768);
  const absl::Status refused = segments_->Append(RandomWrite(18, 4, 8768, &blocks)).status();
  setrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(File(kept)));
  EXPECT_EQ(std::filesystem::file_size(File(kept)), kept.layout().DiskBytes());
  EXPECT_TRUE(ReadBack(kept, before).ok());
  const KvExtent next = Write(18, 4, 8768, &after);
  EXPECT_EQ(next.segment, kept.segment);
  EXPECT_TRUE(ReadBack(next, after).ok());
  EXPECT_TRUE(ReadBack(kept, before).ok());
  EXPECT_TRUE(segments_->Sync(std::vector{kept, next}).ok());
}

// Where space cannot be reserved, a write finds the disk full.
TEST(KvWriter, AFullDiskIsToldByTheWrite) {
  TempDir dir;
  const auto fd = OpenDiskFile(dir / "file", {.write = true, .direct = false});
  ASSERT_TRUE(fd.ok());
  HugeMemory memory = HugeMemory::Allocate(KvWriter::kMemoryBytes).value();
  const auto queue = DiskQueue::CreateBest(KvWriter::kDepth);
  struct rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t limit : {rlim_t{1'000'000}, rlim_t{100}, old.rlim_cur}) {
    const struct rlimit small = {.rlim_cur = limit, .rlim_max = old.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    KvWriter writer(*queue, memory.bytes(), fd->get(), 0);
    for (int i = 0; i < 40; ++i) {
      const auto room = writer.Room(100'000);
      std::memset(room.data(), i, room.size());
    }
    const absl::Status status = writer.Finish();
    setrlimit(RLIMIT_FSIZE, &old);
    EXPECT_EQ(absl::IsResourceExhausted(status), limit != old.rlim_cur) << status;
    EXPECT_EQ(status.ok(), limit == old.rlim_cur) << status;
  }
  signal(SIGXFSZ, old_handler);
  std::ifstream file(dir / "file", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  ASSERT_EQ(bytes.size(), RoundUp(4'000'000, kDiskAlign));
  for (size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_EQ(static_cast<size_t>(bytes[i]), i < 4'000'000 ? i / 100'000 : 0);
  }
}

TEST_P(KvSegmentsTest, WhatTheIndexDoesNotNameIsDeletedAtTheStart) {
  Blocks a(0, 1, 16), b(0, 1, 16), c(0, 1, 16);
  const uint32_t chunks = kChunksPerSegment;
  const KvExtent named = Write(chunks, 4, 65536, &a), unnamed = Write(chunks, 4, 65536, &b);
  ASSERT_TRUE(segments_->Sync(std::vector{named, unnamed}).ok());
  std::ofstream(Path() + "/notes.txt") << "not ours";
  Reopen();
  ASSERT_TRUE(segments_->Adopt(named, chunks).ok());
  EXPECT_EQ(segments_->DeleteUnnamed(), 1u);
  EXPECT_TRUE(std::filesystem::exists(File(named)));
  EXPECT_FALSE(std::filesystem::exists(File(unnamed)));
  EXPECT_TRUE(std::filesystem::exists(Path() + "/notes.txt"));
  EXPECT_TRUE(ReadBack(named, a).ok());
  const KvExtent later = Write(1, 4, 65536, &c);
  EXPECT_GT(later.segment, unnamed.segment) << "numbers are not used again";
  EXPECT_EQ(segments_->Stats().live_bytes, (chunks + 1) * uint64_t{4 * 65536});
}

// A copy of the files at any moment is what a killed process leaves.
TEST_P(KvSegmentsTest, WhatWasSyncedIsThereAfterAKill) {
  Blocks a(0, 1, 16), b(0, 1, 16);
  const KvExtent synced = Write(50, 4, 8768, &a);
  ASSERT_TRUE(segments_->Sync(std::span(&synced, 1)).ok());
  Write(50, 4, 8768, &b);
  const std::string copy = dir_.Snapshot("kv");
  auto after = KvSegments::Open({.directory = copy, .direct = GetParam().direct});
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_TRUE((*after)->Adopt(synced, 50).ok());
  segments_ = *std::move(after);
  EXPECT_TRUE(ReadBack(synced, a).ok());
}

TEST_P(KvSegmentsTest, ASegmentWhoseChunksAreGoneIsDeletedOnceItIsClosed) {
  Blocks blocks(0, 1, 16);
  const uint32_t chunks = kChunksPerSegment;
  const KvExtent first = Write(chunks, 4, 65536, &blocks);
  segments_->Release(first, chunks - 1);
  EXPECT_EQ(segments_->Stats().live_bytes, uint64_t{4 * 65536});
  segments_->Release(first, 1);
  EXPECT_TRUE(std::filesystem::exists(File(first))) << "still open";
  const KvExtent second = Write(chunks, 4, 65536, &blocks);
  EXPECT_FALSE(std::filesystem::exists(File(first)));
  const KvExtent third = Write(chunks, 4, 65536, &blocks);
  segments_->Release(second, chunks);
  EXPECT_FALSE(std::filesystem::exists(File(second)));
  EXPECT_EQ(segments_->Segments().size(), 1u);
  EXPECT_EQ(segments_->Segments()[0].number, third.segment);
  EXPECT_EQ(segments_->Stats().disk_bytes, std::filesystem::file_size(File(third)));
  segments_->Release(first, 1);  // of a segment that is gone
}

TEST_P(KvSegmentsTest, TheBoundHoldsAndEvictingMakesRoom) {
  Reopen(3 << 20);
  Blocks blocks(0, 1, 16);
  const uint32_t chunks = kChunksPerSegment;
  std::vector<KvExtent> extents;
  for (int i = 0; i < 3; ++i) extents.push_back(Write(chunks, 4, 65536, &blocks));
  Blocks more(chunks, 4, 65536);
  const KvExtentWrite write = RandomWrite(chunks, 4, 65536, &more);
  const absl::Status refused = segments_->Append(write).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr(Path()));
  const std::vector<KvSegmentInfo> infos = segments_->Segments();
  ASSERT_EQ(infos.size(), 3u);
  EXPECT_EQ(infos[0].number, extents[0].segment);
  EXPECT_TRUE(segments_->Evict(infos[0].number).ok());
  EXPECT_TRUE(absl::IsNotFound(segments_->Evict(infos[0].number)));
  EXPECT_FALSE(std::filesystem::exists(File(extents[0])));
  EXPECT_TRUE(absl::IsNotFound(segments_->Sync(std::span(&extents[0], 1))));
  ExpectMiss(ReadBack(extents[0], blocks), absl::StatusCode::kNotFound, extents[0], "No such file");
  EXPECT_TRUE(segments_->Append(write).ok());
  EXPECT_TRUE(segments_->Evict(segments_->Segments().back().number).ok()) << "the open one";
  EXPECT_TRUE(segments_->Append(write).ok());
}

TEST_P(KvSegmentsTest, AppendsAndSyncsAndReadsOfSeveralThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 4; ++i) {
        Blocks blocks(0, 1, 16);
        const KvExtent extent = Write(60, 4, 8768, &blocks);
        EXPECT_TRUE(segments_->Sync(std::span(&extent, 1)).ok());
        EXPECT_TRUE(ReadBack(extent, blocks).ok());
        if (i % 2 == 0) segments_->Release(extent, 60);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(segments_->Stats().live_bytes, 3 * 2 * 60 * uint64_t{4 * 8768});
}

TEST_P(KvSegmentsTest, AnExtentFitsASegmentUnlessOneChunkIsLarger) {
  EXPECT_EQ(MaxChunksPerExtent(22, 8768), 86u);
  EXPECT_EQ(MaxChunksPerExtent(64, 1 << 20), 1u);
  for (const uint32_t bytes : {16u, 2368u, 8768u, 139'264u}) {
    const uint32_t chunks = MaxChunksPerExtent(32, bytes);
    EXPECT_LE((KvExtentLayout{32, chunks, bytes}.DiskBytes()), kKvSegmentBytes);
  }
  Blocks blocks(0, 1, 16);
  const KvExtent large = Write(1, 3, 1 << 20, &blocks);
  EXPECT_TRUE(ReadBack(large, blocks).ok());
}

// Extents as calls leave them: a few chunks of a model with 22 layers and 4 KV heads.
TEST_P(KvSegmentsTest, WriteAmplificationIsAtMostOnePointOne) {
  Blocks blocks(0, 1, 16);
  for (const uint32_t block_bytes : {8768u, 4672u, 2368u}) {
    for (uint32_t chunks = 1; chunks <= 20; chunks += 3) Write(chunks, 22, block_bytes, &blocks);
  }
  const KvSegmentsStats stats = segments_->Stats();
  const double ratio =
      static_cast<double>(stats.written_bytes) / static_cast<double>(stats.kv_bytes);
  std::printf("write amplification of extents of 1..19 chunks: %.4f\n", ratio);
  EXPECT_LE(ratio, 1.1);
  uint64_t on_disk = 0;
  for (const KvSegmentInfo& info : segments_->Segments()) on_disk += info.bytes;
  EXPECT_EQ(on_disk, stats.written_bytes);
}

TEST_P(KvSegmentsTest, NoPlaintextIsOnDiskWhenEncrypted) {
  Blocks blocks(8, 2, 4096);
  KvExtentWrite write = RandomWrite(8, 2, 4096, &blocks);
  const std::string secret = "the secret of this context";
  for (std::byte* const chunk : blocks.at) std::memcpy(chunk + 100, secret.data(), secret.size());
  const auto extent = segments_->Append(write);
  ASSERT_TRUE(extent.ok());
  std::ifstream file(File(*extent), std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(bytes.find(secret) == std::string::npos, GetParam().encrypted);
}

INSTANTIATE_TEST_SUITE_P(Modes, KvSegmentsTest,
                         ::testing::Values(Mode{}, Mode{.encrypted = false}, Mode{.direct = false},
                                           Mode{.encrypted = false, .uring = false}),
                         [](const ::testing::TestParamInfo<Mode>& mode) {
                           return std::string(mode.param.encrypted ? "Encrypted" : "Plain") +
                                  (mode.param.direct ? "Direct" : "Buffered") +
                                  (mode.param.uring ? "Uring" : "Threads");
                         });

}  // namespace
}  // namespace withy::context_store
