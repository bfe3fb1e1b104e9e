#include "context_store/arena/arena_plan.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "context_store/arena/arena.h"
#include "context_store/testing.h"
#include "policy/kv/arena_size.h"
#include "withy/v1/config.pb.h"

namespace withy::context_store {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kMib = 1 << 20;

class ArenaPlanTest : public ::testing::Test {
 protected:
  ArenaPlanTest() {
    config_.mutable_store()->set_arena_bytes(64 * kMib);
    config_.mutable_model()->set_path(dir_ / "model.gguf");
    std::ofstream(dir_ / "model.gguf");
    fs::resize_file(dir_ / "model.gguf", 100 * kMib);
    Write("proc/meminfo", "MemTotal: 4000000 kB\nMemAvailable: 4000000 kB\n");
    Write("proc/self/cgroup", "4:memory:/box\n");
  }
  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(dir_ / path).parent_path());
    std::ofstream(dir_ / path) << text;
  }
  void Limit(uint64_t bytes) {
    Write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", std::to_string(bytes));
  }
  absl::StatusOr<ArenaPlan> Plan(const UniqueFd& kept = {}) {
    return PlanArena(config_, kept, dir_.path());
  }

  TempDir dir_;
  v1::Config config_;
};

TEST_F(ArenaPlanTest, ItFitsBesideWeightsAndBuffers) {
  EXPECT_EQ(Plan()->bytes, 64 * kMib);
  EXPECT_EQ(Plan()->sum, "");
  Limit(320 * kMib);
  const auto smaller = Plan();
  ASSERT_TRUE(smaller.ok()) << smaller.status();
  EXPECT_EQ(smaller->bytes, 28 * kMib);
  EXPECT_THAT(smaller->sum, AllOf(HasSubstr("arena 64 MiB + weights 100 MiB + buffers 192 MiB"),
                                  HasSubstr("memory.limit_in_bytes")));
  config_.mutable_model()->set_weight_budget_bytes(50 * kMib);
  EXPECT_EQ(Plan()->bytes, 64 * kMib);
  Limit(100 * kMib);
  EXPECT_EQ(Plan()->bytes, policy::kLeastArenaBytes);
  Limit(70 * kMib);
  const auto refused = Plan();
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("arena 64 MiB + weights 50 MiB"), HasSubstr("allowed 70 MiB"),
                    HasSubstr("raise the limit")));
}

TEST_F(ArenaPlanTest, TheWeightsOfASplitModelAreThoseOfAllParts) {
  for (const char* part : {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"}) {
    std::ofstream(dir_ / part);
    fs::resize_file(dir_ / part, 50 * kMib);
  }
  config_.mutable_model()->set_path(dir_ / "m-00001-of-00002.gguf");
  Limit(320 * kMib);
  EXPECT_THAT(Plan()->sum, HasSubstr("weights 100 MiB"));
}

TEST_F(ArenaPlanTest, WhileMemoryIsShortAKeptArenaKeepsItsSize) {
  auto arena = Arena::Create(16 * kMib, {});
  ASSERT_TRUE(arena.ok());
  const UniqueFd kept(dup((*arena)->fd()));
  Limit(320 * kMib);
  EXPECT_EQ(Plan(kept)->bytes, 16 * kMib);
  Limit(1000 * kMib);
  EXPECT_EQ(Plan(kept)->bytes, 64 * kMib) << "there is room for all of it";
  const UniqueFd other(open((dir_ / "model.gguf").c_str(), O_RDONLY | O_CLOEXEC));
  Limit(320 * kMib);
  EXPECT_EQ(Plan(other)->bytes, 28 * kMib) << "no arena";
}

}  // namespace
}  // namespace withy::context_store
