#include "policy/kv/kv_strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace withy::policy {
namespace {

using testing::HasSubstr;

TEST(KvStrategyTest, TheDefaultIsWithy) {
  EXPECT_EQ(*FindKvStrategy("withy"), KvStrategy());
  EXPECT_EQ(KvStrategyNames().front(), "withy");
}

TEST(KvStrategyTest, AnUnknownNameIsToldTheNames) {
  for (const char* name : {"", "VLLM-S", "vllm", "withy "}) {
    const absl::Status status = FindKvStrategy(name).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name;
    for (const std::string& known : KvStrategyNames()) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(known));
    }
  }
}

TEST(KvStrategyTest, NamesAreFoundAndDiffer) {
  std::set<std::string> seen;
  for (const std::string& name : KvStrategyNames()) {
    ASSERT_TRUE(FindKvStrategy(name).ok()) << name;
    EXPECT_EQ(FindKvStrategy(name)->name, name);
    EXPECT_TRUE(seen.insert(name).second) << name;
  }
}

// What a strategy says must be possible: the store relies on it.
TEST(KvStrategyTest, EachIsConsistent) {
  for (const std::string& name : KvStrategyNames()) {
    const KvStrategy strategy = *FindKvStrategy(name);
    SCOPED_TRACE(name);
    EXPECT_TRUE(strategy.working_bits == 8 || strategy.working_bits == 16);
    // The formats of fewer bits are encoded from 8 bits.
    EXPECT_FALSE(strategy.working_bits == 16 && strategy.precision.has_value());
    EXPECT_FALSE(strategy.compresses_ahead && !strategy.precision.has_value());
    if (!strategy.uses_disk) {
      EXPECT_EQ(strategy.load, LoadPolicy::kRecomputeAll);
      EXPECT_FALSE(strategy.writes_ahead);
    }
  }
}

// The service's own answers do not depend on what rested: nothing loses bits because a call ended.
TEST(KvStrategyTest, OnlyLlmsCompressesBecauseACallEnded) {
  for (const std::string& name : KvStrategyNames()) {
    EXPECT_EQ(FindKvStrategy(name)->compresses_ahead, name == "llms" || name == "llms-uniform")
        << name;
  }
  KvStrategy llms = *FindKvStrategy("llms");
  llms.name = "withy";
  llms.compresses_ahead = false;
  EXPECT_EQ(llms, KvStrategy()) << "nothing else differs";
}

// LLMS section 4.
TEST(KvStrategyTest, BaselinesAreThoseOfThePaper) {
  const KvStrategy lmk = *FindKvStrategy("lmk");
  EXPECT_FALSE(lmk.uses_disk);
  EXPECT_EQ(lmk.eviction, EvictionPolicy::kContextLru);
  const KvStrategy swap = *FindKvStrategy("swap");
  EXPECT_TRUE(swap.uses_disk);
  EXPECT_FALSE(swap.writes_ahead);
  EXPECT_EQ(swap.eviction, EvictionPolicy::kContextLru);
  KvStrategy vllm_s = *FindKvStrategy("vllm-s");
  const KvStrategy vllm_sq = *FindKvStrategy("vllm-sq");
  EXPECT_EQ(vllm_s.eviction, EvictionPolicy::kChunkLru);
  EXPECT_FALSE(vllm_s.precision.has_value());
  EXPECT_EQ(vllm_s.working_bits, 2 * vllm_sq.working_bits);
  vllm_s.name = vllm_sq.name;
  vllm_s.working_bits = vllm_sq.working_bits;
  EXPECT_EQ(vllm_s, vllm_sq) << "they differ in bits only";
  KvStrategy cake = *FindKvStrategy("cake");
  EXPECT_EQ(cake.load, LoadPolicy::kCake);
  cake.name = "withy-8bit";
  cake.load = LoadPolicy::kPrefix;
  cake.computes_meanwhile = true;
  EXPECT_EQ(cake, *FindKvStrategy("withy-8bit")) << "Cake is withy without compression";
  for (const char* published : {"lmk", "swap", "vllm-s", "vllm-sq", "cake"}) {
    EXPECT_FALSE(FindKvStrategy(published)->computes_meanwhile) << published;
  }
}

}  // namespace
}  // namespace withy::policy
