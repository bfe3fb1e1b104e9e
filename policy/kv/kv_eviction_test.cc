#include "policy/kv/kv_eviction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "base/test_seed.h"

namespace withy::policy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr EvictionPolicy kEvictionPolicies[] = {EvictionPolicy::kLctru, EvictionPolicy::kChunkLru,
                                                EvictionPolicy::kContextLru};

EvictableChunk Evictable(uint32_t context, uint32_t position, uint64_t last_used,
                         KvFormatIndex format, bool has_copy = true) {
  return {.context = context,
          .position = position,
          .last_used = last_used,
          .place = {.format = format,
                    .copy = has_copy ? std::optional<KvFormatIndex>(format) : std::nullopt},
          .bytes = uint64_t{16} >> format};
}

// A few contexts; within one, use is the same for most chunks.
std::vector<EvictableChunk> RandomEvictable(std::mt19937& random) {
  std::vector<EvictableChunk> chunks;
  const uint32_t contexts = 1 + random() % 4;
  for (uint32_t context = 0; context < contexts; ++context) {
    const uint64_t last_used = random() % 100;
    const auto count = static_cast<uint32_t>(random() % 8);
    for (uint32_t position = 0; position < count; ++position) {
      if (random() % 4 == 0) continue;  // not resident
      const uint64_t used = random() % 6 == 0 ? last_used / 2 : last_used;
      chunks.push_back(Evictable(context, position, used, random() % 3, random() % 2 == 0));
    }
  }
  std::shuffle(chunks.begin(), chunks.end(), random);
  return chunks;
}

uint64_t BytesOf(const std::vector<EvictableChunk>& chunks, const std::vector<size_t>& dropped) {
  uint64_t bytes = 0;
  for (const size_t i : dropped) bytes += chunks[i].bytes;
  return bytes;
}

TEST(KvEvictionTest, PlansFreeWhatIsAskedAndNoMore) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    const auto chunks = RandomEvictable(random);
    uint64_t total = 0;
    for (const EvictableChunk& chunk : chunks) total += chunk.bytes;
    const uint64_t wanted = random() % 200;
    for (const EvictionPolicy policy : kEvictionPolicies) {
      const auto dropped = PlanKvEviction(chunks, wanted, policy);
      ASSERT_EQ(std::set<size_t>(dropped.begin(), dropped.end()).size(), dropped.size());
      if (wanted == 0 || wanted > total) {
        EXPECT_THAT(dropped, IsEmpty());
        continue;
      }
      const uint64_t freed = BytesOf(chunks, dropped);
      EXPECT_GE(freed, wanted);
      if (policy == EvictionPolicy::kContextLru) continue;
      EXPECT_LT(freed - chunks[dropped.back()].bytes, wanted)
          << "no chunk leaves after enough was freed";
    }
  }
}

TEST(KvEvictionTest, EachPolicyHasItsOrder) {
  const std::vector<EvictableChunk> chunks = {Evictable(1, 0, 10, 1), Evictable(1, 1, 10, 0),
                                              Evictable(2, 0, 20, 0), Evictable(2, 1, 20, 1),
                                              Evictable(3, 0, 5, 2)};
  EXPECT_THAT(PlanKvEviction(chunks, 36), ElementsAre(4, 1, 0, 2));
  EXPECT_THAT(PlanKvEviction(chunks, 20, EvictionPolicy::kChunkLru), ElementsAre(4, 1));
  EXPECT_THAT(PlanKvEviction(chunks, 5, EvictionPolicy::kContextLru), ElementsAre(4, 1, 0));
}

// As few chunks as possible have to be recomputed, and a prefix stays.
TEST(KvEvictionTest, WhatCanBeReadBackGoesFirst) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const auto chunks = RandomEvictable(random);
    const auto dropped = PlanKvEviction(chunks, random() % 150);
    if (dropped.empty()) continue;
    const std::set<size_t> gone(dropped.begin(), dropped.end());
    const bool recomputes = std::any_of(dropped.begin(), dropped.end(), [&](size_t i) {
      return !chunks[i].place.copy.has_value();
    });
    for (size_t stays = 0; stays < chunks.size(); ++stays) {
      if (gone.contains(stays)) continue;
      EXPECT_TRUE(!recomputes || !chunks[stays].place.copy.has_value());
      for (const size_t goes : gone) {
        if (chunks[goes].place.copy.has_value() || chunks[stays].place.copy.has_value()) continue;
        EXPECT_LE(chunks[goes].last_used, chunks[stays].last_used);
        if (chunks[goes].last_used != chunks[stays].last_used) continue;
        if (chunks[goes].context != chunks[stays].context) continue;
        EXPECT_GT(chunks[goes].position, chunks[stays].position);
      }
    }
  }
}

TEST(KvEvictionTest, WholeContextsLeaveWhole) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    const auto chunks = RandomEvictable(random);
    const auto dropped = PlanKvEviction(chunks, 1 + random() % 100, EvictionPolicy::kContextLru);
    std::map<uint32_t, size_t> of_context, left;
    for (const EvictableChunk& chunk : chunks) ++of_context[chunk.context];
    for (const size_t i : dropped) ++left[chunks[i].context];
    for (const auto& [context, count] : left) EXPECT_EQ(count, of_context[context]);
  }
}

// LLMS's order: pops one chunk at a time from the queue as section 3.4 describes it.
std::vector<size_t> DroppedAsPrinted(const std::vector<EvictableChunk>& chunks, uint64_t wanted) {
  std::set<size_t> left;
  for (size_t i = 0; i < chunks.size(); ++i) left.insert(i);
  std::vector<size_t> popped;
  for (uint64_t freed = 0; freed < wanted; freed += chunks[popped.back()].bytes) {
    const auto first = std::min_element(left.begin(), left.end(), [&](size_t a, size_t b) {
      const EvictableChunk& x = chunks[a];
      const EvictableChunk& y = chunks[b];
      if (x.place.format != y.place.format) return x.place.format < y.place.format;
      if (x.last_used != y.last_used) return x.last_used < y.last_used;
      if (x.place.copy.has_value() != y.place.copy.has_value()) return x.place.copy.has_value();
      if (x.context != y.context) return x.context < y.context;
      return x.position > y.position;
    });
    popped.push_back(*first);
    left.erase(first);
  }
  return popped;
}

// Chunks to drop of those that are idle, to free so many bytes.
using DropFn =
    std::function<std::vector<size_t>(const std::vector<EvictableChunk>& idle, uint64_t bytes)>;

DropFn DropBy(EvictionPolicy policy) {
  return [policy](const std::vector<EvictableChunk>& idle, uint64_t bytes) {
    return PlanKvEviction(idle, bytes, policy);
  };
}

// A board whose contexts are called in turn; the mean time that a call waits for its chunks.
class SwitchingBoard {
 public:
  static constexpr uint32_t kContexts = 12;
  static constexpr uint32_t kChunks = 64;
  // Time to ask the disk at all, and to read a byte, in microseconds. A unit of bytes stands for a
  // sixteenth of a chunk at 8 bits of a small model.
  static constexpr double kRequestUs = 100;
  static constexpr double kByteUs = 1;

  SwitchingBoard(DropFn drop, double budget) : drop_(std::move(drop)) {
    for (uint32_t context = 0; context < kContexts; ++context) {
      for (uint32_t position = 0; position < kChunks; ++position) {
        const bool exact = position < 4 || position + 8 >= kChunks;
        const KvFormatIndex format = exact ? 0 : 1 + position % 2;
        chunks_.push_back(Evictable(context, position, 0, format));
        total_ += chunks_.back().bytes;
      }
    }
    resident_.resize(chunks_.size(), false);
    budget_ = static_cast<uint64_t>(static_cast<double>(total_) * budget);
  }

  void Switch(uint32_t context) {
    uint64_t missing = 0;
    ++now_;
    for (size_t i = 0; i < chunks_.size(); ++i) {
      if (chunks_[i].context != context) continue;
      if (!resident_[i]) missing += chunks_[i].bytes;
      chunks_[i].last_used = now_;
    }
    if (used_ + missing > budget_) Evict(context, used_ + missing - budget_);
    for (size_t i = 0; i < chunks_.size(); ++i) {
      if (chunks_[i].context == context) resident_[i] = true;
    }
    used_ += missing;
    waited_us_ += missing == 0 ? 0 : kRequestUs + kByteUs * static_cast<double>(missing);
  }

  double MeanWaitUs() const { return waited_us_ / static_cast<double>(now_); }

 private:
  void Evict(uint32_t leased, uint64_t bytes) {
    std::vector<EvictableChunk> idle;
    std::vector<size_t> index;
    for (size_t i = 0; i < chunks_.size(); ++i) {
      if (!resident_[i] || chunks_[i].context == leased) continue;
      idle.push_back(chunks_[i]);
      index.push_back(i);
    }
    for (const size_t i : drop_(idle, bytes)) {
      resident_[index[i]] = false;
      used_ -= idle[i].bytes;
    }
  }

  const DropFn drop_;
  std::vector<EvictableChunk> chunks_;
  std::vector<bool> resident_;
  uint64_t total_ = 0, budget_ = 0, used_ = 0, now_ = 0;
  double waited_us_ = 0;
};

// The traces of LLMS section 4: which context is called next.
std::vector<uint32_t> SwitchTrace(int kind, std::mt19937& random) {
  constexpr uint32_t kContexts = SwitchingBoard::kContexts;
  std::normal_distribution<double> gaussian(kContexts / 2.0, kContexts / 6.0);
  std::vector<uint32_t> trace{0};
  while (trace.size() < 1000) {
    uint32_t next = static_cast<uint32_t>(random() % kContexts);
    if (kind == 1 && random() % 10 < 7)
      next = trace[trace.size() - 1 - random() % std::min<size_t>(trace.size(), 4)];
    if (kind == 2) next = static_cast<uint32_t>(std::clamp(gaussian(random), 0.0, kContexts - 1.0));
    trace.push_back(next);
  }
  return trace;
}

TEST(KvEvictionTest, LctruSwitchesFaster) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  double log_ratios = 0;
  for (const int kind : {0, 1, 2}) {
    const std::vector<uint32_t> trace = SwitchTrace(kind, random);
    for (const double budget : {0.25, 0.5, 0.75}) {
      const auto wait_us = [&](const DropFn& drop) {
        SwitchingBoard board(drop, budget);
        for (const uint32_t context : trace) board.Switch(context);
        return board.MeanWaitUs();
      };
      const double ours = wait_us(DropBy(EvictionPolicy::kLctru));
      const double printed = wait_us(DroppedAsPrinted);
      SCOPED_TRACE(testing::Message() << "trace " << kind << ", budget " << budget << ": " << ours
                                      << " us, printed " << printed << " us");
      log_ratios += std::log(ours / printed);
      EXPECT_LT(ours, printed * 1.03);
      EXPECT_LT(ours, wait_us(DropBy(EvictionPolicy::kChunkLru)) * 1.03);
      EXPECT_LT(ours, wait_us(DropBy(EvictionPolicy::kContextLru)) * 1.03);
    }
  }
  EXPECT_LT(log_ratios, 0) << "faster than as printed, taken together";
}

}  // namespace
}  // namespace withy::policy
