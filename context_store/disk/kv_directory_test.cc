// What a worn card, another program or a crash can leave in the KV directory: each entry costs its
// own KV and no more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/ids.h"
#include "base/unique_fd.h"
#include "context_store/disk/kv_segments.h"
#include "context_store/testing.h"

namespace withy::context_store {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kLayersHere = 2;
constexpr uint32_t kBlockHere = 4096;

class KvDirectoryTest : public ::testing::Test {
 protected:
  std::unique_ptr<KvSegments> Open(KvSegmentsOptions options = {}) {
    options.directory = dir_ / "kv";
    auto opened = KvSegments::Open(std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }
  absl::StatusOr<KvExtent> Append(KvSegments& segments, uint32_t chunks = 1) {
    KvExtentWrite write{.layers = kLayersHere,
                        .block_bytes = kBlockHere,
                        .chunks = std::vector<const std::byte*>(chunks, bytes_.data()),
                        .layer_stride = kBlockHere};
    for (uint32_t i = 0; i < chunks; ++i) write.identities.push_back(ToBytes32(RandomBytes(32)));
    return segments.Append(write);
  }
  absl::Status ReadBack(KvSegments& segments, const KvExtent& extent) {
    std::vector<std::byte> target(bytes_.size());
    KvRead read;
    read.layers = extent.layers;
    read.extents.push_back({extent, {}, {target.data()}, kBlockHere});
    absl::Status failed;
    absl::Notification done;
    read.on_layer = [](uint32_t) {};
    read.on_failed = [&](size_t, const absl::Status& status) { failed = status; };
    read.on_done = [&] { done.Notify(); };
    EXPECT_TRUE(segments.reader().Start(std::move(read)).ok());
    done.WaitForNotification();
    EXPECT_TRUE(!failed.ok() || target == bytes_);
    return failed;
  }
  std::string Name(uint64_t number) const { return KvSegmentPath(dir_ / "kv", number); }

  TempDir dir_;
  const std::vector<std::byte> bytes_ =
      std::vector<std::byte>(size_t{kLayersHere} * kBlockHere, std::byte{7});
};

using MakeEntry = std::function<void(const std::string& path)>;

// Each in the place of a segment that the index names.
TEST_F(KvDirectoryTest, AnEntryOfAnyKindCostsItsOwnKvOnly) {
  const std::pair<const char*, MakeEntry> kinds[] = {
      {"a link that leads nowhere",
       [](const std::string& path) { fs::create_symlink("/nonexistent", path); }},
      {"a link to itself", [](const std::string& path) { fs::create_symlink(path, path); }},
      {"an empty directory", [](const std::string& path) { fs::create_directory(path); }},
      {"a directory with something in it",
       [](const std::string& path) { fs::create_directories(path + "/inside"); }},
      {"a pipe", [](const std::string& path) { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); }},
      {"a socket",
       [](const std::string& path) {
         sockaddr_un address{};
         address.sun_family = AF_UNIX;
         path.copy(address.sun_path, sizeof address.sun_path - 1);
         const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
         ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
       }},
      {"nothing", [](const std::string&) {}}};
  for (const auto& [what, make] : kinds) {
    SCOPED_TRACE(what);
    fs::remove_all(dir_ / "kv");
    auto segments = Open();
    const KvExtent lost = *Append(*segments);
    segments = Open();  // begins a segment of its own
    const KvExtent kept = *Append(*segments);
    ASSERT_NE(lost.segment, kept.segment);
    segments.reset();
    fs::remove(Name(lost.segment));
    make(Name(lost.segment));
    const bool there = fs::exists(fs::symlink_status(Name(lost.segment)));
    segments = Open();
    EXPECT_TRUE(absl::IsNotFound(segments->Adopt(lost, 1)));
    EXPECT_TRUE(segments->Adopt(kept, 1).ok());
    EXPECT_EQ(segments->Stats().left_out, there ? 1u : 0u);
    EXPECT_EQ(segments->DeleteUnnamed(), 0u);
    EXPECT_TRUE(ReadBack(*segments, kept).ok());
    const auto next = Append(*segments);
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_TRUE(ReadBack(*segments, *next).ok());
    EXPECT_EQ(fs::exists(fs::symlink_status(Name(lost.segment))),
              std::string_view(what).find("something in it") != std::string_view::npos)
        << "removed unless somebody else's files are in it";
  }
}

// As a file that is exchanged after the start.
TEST_F(KvDirectoryTest, APipeInThePlaceOfASegmentIsNotWaitedFor) {
  auto segments = Open();
  const KvExtent extent = *Append(*segments);
  fs::remove(Name(extent.segment));
  ASSERT_EQ(mkfifo(Name(extent.segment).c_str(), 0600), 0);
  const absl::Status failed = ReadBack(*segments, extent);
  EXPECT_FALSE(failed.ok());
  EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr(Name(extent.segment)));
}

TEST_F(KvDirectoryTest, ASegmentThatCannotBeDeletedHoldsUpNothing) {
  auto segments = Open();
  const KvExtent unnamed = *Append(*segments);
  segments = Open();
  fs::remove(Name(unnamed.segment));
  fs::create_directory(Name(unnamed.segment));
  EXPECT_EQ(segments->DeleteUnnamed(), 1u);
  EXPECT_EQ(segments->Stats().left_out, 1u);
  const KvExtent extent = *Append(*segments);
  fs::remove(Name(extent.segment));
  fs::create_directory(Name(extent.segment));
  EXPECT_TRUE(segments->Evict(extent.segment).ok());
  EXPECT_EQ(segments->Stats().left_out, 2u);
  EXPECT_TRUE(Append(*segments).ok());
}

TEST_F(KvDirectoryTest, NumbersOfAnySizeLeaveRoomForMore) {
  fs::create_directories(Name(1) + "/inside");
  fs::create_directories(Name(kMaxKvSegment) + "/inside");
  std::ofstream(dir_ / "kv/ffffffffffffffff.kv") << "no number of ours";
  auto segments = Open();
  for (int i = 0; i < 3; ++i) {
    const auto extent = Append(*segments);
    ASSERT_TRUE(extent.ok()) << extent.status();
    EXPECT_LE(extent->segment, kMaxKvSegment);
    EXPECT_TRUE(ReadBack(*segments, *extent).ok());
    segments = Open({.directory = {}, .segment_bytes = 1});
    EXPECT_TRUE(segments->Adopt(*extent, 1).ok());
  }
  EXPECT_TRUE(fs::exists(dir_ / "kv/ffffffffffffffff.kv"));
}

TEST_F(KvDirectoryTest, WhatBlocksTheProbesNameIsGoneRound) {
  fs::create_directories(dir_ / "kv/probe/inside");
  auto segments = Open();
  EXPECT_TRUE(Append(*segments).ok());
  size_t entries = 0;
  for (const auto& entry : fs::directory_iterator(dir_ / "kv")) entries += entry.exists() ? 1 : 0;
  EXPECT_EQ(entries, 2u) << "the probe was removed";
}

// 64 chunks at 1 KiB/s would take ten minutes.
TEST_F(KvDirectoryTest, AWriteToASlowDiskEndsWhenTheStoreStops) {
  absl::Notification stop;
  auto segments = Open({.directory = {}, .bytes_per_second = 1024, .stop = &stop});
  absl::Notification begun;
  absl::Status written;
  std::thread writer([&] {
    begun.Notify();
    written = Append(*segments, 64).status();
  });
  begun.WaitForNotification();
  stop.Notify();
  writer.join();
  EXPECT_TRUE(absl::IsCancelled(written)) << written;
  EXPECT_EQ(segments->Stats().live_bytes, 0u);
}

}  // namespace
}  // namespace withy::context_store
