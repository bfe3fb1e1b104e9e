#include "engine/model/plan_weights.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/test_seed.h"
#include "engine/gguf/reader.h"
#include "engine/model/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

// Weights of a random shape, as their GGUF would be packed.
UnpackedWeights RandomWeights(std::mt19937& random, const TestFolder& folder) {
  const auto one_of = [&](std::initializer_list<int32_t> values) {
    return values.begin()[random() % values.size()];
  };
  SynthShape shape = TinyShape();
  shape.layers = one_of({1, 2, 3, 7});
  shape.heads = one_of({4, 8});
  shape.kv_heads = one_of({1, 2, 4});
  shape.d_model = shape.heads * shape.head_dim;
  shape.d_ff = one_of({256, 512, 1024});
  shape.tied = random() % 2 == 0;
  shape.vocab_size = one_of({512, 8192});
  if (random() % 2 == 0) shape.levels = {30, 60, 80};
  const std::string path =
      WriteTiny(folder, shape, one_of({0, 1}) == 0 ? GgmlType::kQ8_0 : GgmlType::kQ4_0);
  const auto file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  const auto layout = PlanLayout(*file);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return UnpackedWeights(*layout);
}

uint64_t Resident(const WeightPlan& plan) { return plan.fixed_bytes + plan.resident_bytes; }

void ExpectSound(const WeightPlan& plan, uint64_t budget) {
  EXPECT_LE(plan.memory_bytes(), budget);
  for (const StreamedEmbedding& embedding : plan.embeddings) {
    if (!embedding.streamed()) continue;
    EXPECT_LE(4 * embedding.buffer_bytes,
              embedding.tile_bytes() * static_cast<uint64_t>(embedding.matrix.tiles()));
  }
  uint64_t resident = 0;
  size_t matrices = 0;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    uint64_t room = 0;
    for (const StreamedTensor& tensor : plan.stages[i].tensors) {
      ++matrices;
      resident += tensor.resident_bytes_used();
      EXPECT_EQ(tensor.slot_offset, room);
      room += tensor.streamed_bytes();
      EXPECT_LE(tensor.resident_bytes, tensor.bytes);
      EXPECT_TRUE(tensor.resident_bytes % kWeightPage == 0 ||
                  tensor.resident_bytes == tensor.bytes);
      EXPECT_EQ(tensor.needed.back(), tensor.bytes) << "the full level needs all";
      EXPECT_TRUE(std::is_sorted(tensor.needed.begin(), tensor.needed.end()));
    }
    EXPECT_LE(room, plan.slot_bytes[i % plan.slot_bytes.size()]);
  }
  EXPECT_EQ(resident, plan.resident_bytes);
  EXPECT_TRUE(std::is_sorted(plan.level_bytes.begin(), plan.level_bytes.end()));
  // All of the budget is used, but for pages that are not whole. Where only the embedding is
  // streamed, what is left is less than it.
  if (plan.ring_bytes() > 0) {
    EXPECT_GE(plan.memory_bytes() + (matrices + 1) * 2 * kWeightPage + plan.memory_bytes() / 256,
              budget);
  }
}

TEST(PlanWeights, AnyBudgetIsUsedAndHeld) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20 && !testing::Test::HasFailure(); ++round) {
    const TestFolder folder;
    const UnpackedWeights weights = RandomWeights(random, folder);
    const uint64_t least = LeastWeightBudget(weights.tensors, weights.facts);
    uint64_t all = 0;
    for (const PackedTensor& tensor : weights.tensors) all += RoundUp(tensor.bytes, kWeightPage);
    uint64_t before = 0;
    for (const double share : {0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 1.0}) {
      const auto budget = least + static_cast<uint64_t>(share * static_cast<double>(all));
      const auto plan = PlanWeights(weights.tensors, weights.facts, {.budget_bytes = budget});
      ASSERT_TRUE(plan.ok()) << plan.status();
      SCOPED_TRACE(testing::Message() << "budget " << budget << " of " << all);
      ExpectSound(*plan, budget);
      EXPECT_GE(Resident(*plan) + all / 50, before) << "more budget keeps more in memory";
      before = Resident(*plan);
      if (budget >= all + kWeightPage) {
        EXPECT_FALSE(plan->streams());
        EXPECT_EQ(plan->level_bytes.back(), 0u);
      }
      const auto whole = PlanWeights(weights.tensors, weights.facts,
                                     {.budget_bytes = budget, .whole_layers = true});
      ASSERT_TRUE(whole.ok());
      EXPECT_LE(whole->memory_bytes(), budget);
      EXPECT_EQ(whole->resident_bytes, 0u);
    }
    const auto none = PlanWeights(weights.tensors, weights.facts, {.budget_bytes = least - 1});
    EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(none.status().message()),
                testing::HasSubstr("needs at least " + std::to_string(least)));
  }
}

// Levels fill up one after the other: a level that fits reads nothing.
TEST(PlanWeights, LowLevelsAreResidentFirst) {
  const TestFolder folder;
  SynthShape shape = TinyShape();
  shape.levels = {30, 60};
  const auto file = GgufFile::Open(WriteTiny(folder, shape, GgmlType::kQ8_0));
  ASSERT_TRUE(file.ok());
  const auto layout = PlanLayout(*file);
  ASSERT_TRUE(layout.ok());
  const UnpackedWeights weights(*layout);
  const uint64_t least = LeastWeightBudget(weights.tensors, weights.facts);
  bool low_fits = false;
  for (uint64_t budget = least; budget < layout->data_bytes; budget += 16 << 10) {
    const auto plan = PlanWeights(weights.tensors, weights.facts, {.budget_bytes = budget});
    ASSERT_TRUE(plan.ok());
    low_fits = low_fits || (plan->level_bytes[0] == 0 && plan->level_bytes[2] > 0);
    for (const StreamStage& stage : plan->stages) {
      for (const StreamedTensor& tensor : stage.tensors) {
        const bool beyond = tensor.resident_bytes > tensor.needed[0];
        if (beyond && plan->level_bytes[0] > 0) {
          const std::string& name = weights.tensors[tensor.index].name;
          EXPECT_TRUE(name.ends_with("attn_k") || name.ends_with("attn_v")) << name;
        }
      }
    }
  }
  EXPECT_TRUE(low_fits);
}

}  // namespace
}  // namespace withy::engine
