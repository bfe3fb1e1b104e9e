// Deletions on a full disk, a KV directory that cannot be used, and the end of a store whose disk
// is slow.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "context_store/store_testing.h"

namespace withy::context_store {
namespace {

namespace fs = std::filesystem;

class StoreDeleteTest : public StoreFixture {
 protected:
  void StartOn(const std::string& directory) {
    fs::create_directories(directory);
    store_ = OpenStore(directory + "/db", directory + "/kv", {});
    Attach();
  }
};

TEST_F(StoreDeleteTest, OnAFullDiskADeletionThatWasDoneIsToldAsDone) {
  const SmallDisk disk("size=60m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs CAP_SYS_ADMIN: run it as root";
  clean_up_ = {absl::Milliseconds(10), absl::Milliseconds(10)};
  StartOn(disk / "state");
  const auto bound = store_->apps().Bind("mail");
  ASSERT_TRUE(bound.ok());
  const std::string of_app = store_->contexts().Create(bound->app_id, {})->context_id;
  std::vector<std::string> contexts;
  for (int i = 0; i < 3; ++i) {
    contexts.push_back(Create());
    Talk(contexts.back(), 10);
  }
  disk.Fill();
  for (int i = 0; i < 2; ++i) {
    const absl::Status deleted =
        store_->deletions().DeleteContext("app", contexts[static_cast<size_t>(i)]);
    EXPECT_TRUE(deleted.ok()) << deleted;
    EXPECT_TRUE(absl::IsNotFound(
        store_->contexts().Find("app", contexts[static_cast<size_t>(i)]).status()));
  }
  const absl::Status removed = store_->deletions().RemoveApp(bound->app_id);
  EXPECT_TRUE(removed.ok()) << removed;
  EXPECT_FALSE(store_->apps().Has(bound->app_id));
  EXPECT_TRUE(store_->records().keys().expunge_left()) << "the disk was not full";
  EXPECT_TRUE(absl::IsResourceExhausted(store_->records().Create("app", {}).status()));
  disk.MakeRoom();
  EXPECT_TRUE(store_->records().Create("app", {}).ok()) << "goes on at once";
  Talk(contexts[2], 1);
  EXPECT_TRUE(Eventually([&] { return !store_->records().keys().expunge_left(); }))
      << "tried again";
  store_.reset();
  StartOn(disk / "state");
  EXPECT_EQ(store_->contexts().ContextsOf("app").size(), 2u);
  EXPECT_EQ(store_->contexts().AppOf(of_app), "");
  store_.reset();
}

TEST_F(StoreDeleteTest, AKvDirectoryThatCannotBeUsedCostsKvOnDiskOnly) {
  const std::string state = dir_ / "state";
  for (const bool dangling : {false, true}) {
    fs::remove_all(state);
    fs::create_directories(state);
    if (dangling) {
      fs::create_symlink("/nonexistent/kv", state + "/kv");
    } else {
      std::ofstream(state + "/kv") << "in the way";
    }
    StartOn(state);
    const std::string context = Create();
    Talk(context, 10);
    EXPECT_EQ(Resident(context).size(), 10u);
    EXPECT_EQ(store_->KvOf(context).stored_bytes, 0u);
    EXPECT_TRUE(store_->deletions().DeleteContext("app", context).ok());
    store_.reset();
    EXPECT_EQ(fs::is_symlink(state + "/kv"), dangling) << "left as it is";
  }
}

// At 1 KiB/s the KV of these contexts would take minutes, and measuring the disk two hours.
TEST_F(StoreDeleteTest, TheEndDoesNotWaitForASlowDisk) {
  bytes_per_second_ = 1024;
  last_writes_ = absl::Milliseconds(100);
  for (const bool probe : {true, false}) {
    probe_reads_ = probe;
    StartOn(dir_ / "state");
    for (int i = 0; i < 5 && !probe; ++i) {
      const LeaseId lease = Open(Create());
      const auto claimed = store_->leases().Claim(lease, 0, 20);
      ASSERT_TRUE(claimed.ok());
      LeaseOutcome outcome;
      outcome.segments = {"text"};
      for (const ChunkSlot& chunk : claimed->chunks)
        outcome.chunks.push_back(Write(chunk.slot, 16));
      ASSERT_TRUE(store_->leases().Commit(lease, std::move(outcome)).ok());
    }
    const absl::Time begin = absl::Now();
    store_.reset();
    EXPECT_LT(absl::Now() - begin, absl::Seconds(20)) << (probe ? "measuring" : "writing");
  }
}

}  // namespace
}  // namespace withy::context_store
