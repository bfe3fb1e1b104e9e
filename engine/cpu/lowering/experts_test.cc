// Mixtures of experts: what a router's logits choose, that a row's bits depend on nothing else in
// the batch, and files whose experts are not what their metadata says.
#include "engine/cpu/lowering/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/test_seed.h"
#include "engine/gguf/writer.h"
#include "engine/model/testing.h"
#include "engine/weights/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kRows = 70;

ModelShape RouterShape(int32_t experts, int32_t used, bool normed) {
  ModelShape shape;
  shape.experts = experts;
  shape.experts_used = used;
  shape.normed_expert_weights = normed;
  return shape;
}

std::vector<ExpertChoice> Choose(const std::vector<float>& logits, const ModelShape& shape) {
  std::vector<bool> used;
  std::vector<ExpertChoice> choice(static_cast<size_t>(shape.experts_used));
  ChooseExperts(logits.data(), shape, &used, choice.data());
  return choice;
}

TEST(ExpertChoiceTest, TakesTheLargestAndTheirSoftmax) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto experts = static_cast<int32_t>(1 + random() % 40);
    const auto used = static_cast<int32_t>(1 + random() % static_cast<uint32_t>(experts));
    const bool normed = round % 2 == 0;
    std::vector<float> logits(static_cast<size_t>(experts));
    for (float& logit : logits) logit = static_cast<float>(random() % 16) / 4 - 2;  // with ties
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    double sum = 0;
    for (int32_t rank = 0; rank < (normed ? used : experts); ++rank) {
      sum += std::exp(double{logits[static_cast<size_t>(order[static_cast<size_t>(rank)])]});
    }
    const std::vector<ExpertChoice> choice = Choose(logits, RouterShape(experts, used, normed));
    for (size_t rank = 0; rank < choice.size(); ++rank) {
      EXPECT_EQ(choice[rank].expert, order[rank]);
      const double wanted = std::exp(double{logits[static_cast<size_t>(order[rank])]}) / sum;
      EXPECT_NEAR(choice[rank].weight, wanted, 1e-5);
    }
  }
}

TEST(ExpertChoiceTest, WeightsAreScaled) {
  ModelShape shape = RouterShape(4, 2, true);
  shape.expert_weight_scale = 2.5f;
  const std::vector<ExpertChoice> choice = Choose({1, 3, 1, 3}, shape);
  EXPECT_EQ(choice[0].expert, 1);
  EXPECT_EQ(choice[1].expert, 3);
  EXPECT_FLOAT_EQ(choice[0].weight, 1.25f);
  EXPECT_FLOAT_EQ(choice[1].weight, 1.25f);
}

TEST(ExpertChoiceTest, LogitsThatAreNoNumbersStillChooseDistinctExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& logits :
       {std::vector<float>{nan, nan, nan, nan}, std::vector<float>{1, nan, 2, nan}}) {
    std::set<int32_t> experts;
    for (const ExpertChoice& one : Choose(logits, RouterShape(4, 3, true))) {
      EXPECT_GE(one.expert, 0);
      EXPECT_LT(one.expert, 4);
      experts.insert(one.expert);
    }
    EXPECT_EQ(experts.size(), 3u);
  }
}

// Architecture and type.
class ExpertModelTest : public testing::TestWithParam<std::pair<std::string, std::string>> {
 protected:
  ExpertModelTest() : shape_(*FindSynthShape("tiny-moe")) {
    shape_.architecture = GetParam().first;
    if (FindArchitecture(shape_.architecture)->needs_window) shape_.sliding_window = 33;
    path_ = WriteTiny(folder_, shape_, *FindSynthType(GetParam().second));
    tokens_ = SomeTokens(kRows, shape_.vocab_size);
  }

  std::unique_ptr<Model> Open(Target target, int32_t threads, int32_t piece_rows = 256) {
    ModelOptions options;
    options.target = KernelsFor(target)->name;
    options.threads = threads;
    options.max_piece_rows = piece_rows;
    return OpenTiny(folder_, path_, options);
  }

  const TestFolder folder_;
  SynthShape shape_;
  std::string path_;
  std::vector<int32_t> tokens_;
};

TEST_P(ExpertModelTest, ARowsBitsDependOnNothingElse) {
  const auto vocabulary = static_cast<size_t>(shape_.vocab_size);
  for (const Target target : SupportedTargets()) {
    SCOPED_TRACE(KernelsFor(target)->name);
    const auto model = Open(target, 2);
    ASSERT_NE(model, nullptr);
    const std::vector<float> want =
        RunRows(*model, ScratchKv(model->info(), kRows), PlainRows(tokens_));
    for (const auto& [threads, piece_rows] :
         {std::pair(1, 1), std::pair(2, 7), std::pair(1, 64), std::pair(5, 64)}) {
      const auto other = Open(target, threads, piece_rows);
      EXPECT_EQ(want, RunRows(*other, ScratchKv(other->info(), kRows), PlainRows(tokens_)))
          << threads << " threads, pieces of " << piece_rows;
    }
    for (const size_t cut : {size_t{1}, size_t{5}, size_t{33}}) {
      const ScratchKv kv(model->info(), kRows);
      for (size_t first = 0; first < tokens_.size(); first += cut) {
        const size_t count = std::min(cut, tokens_.size() - first);
        const std::vector<float> got = RunRows(
            *model, kv,
            PlainRows(std::span(tokens_).subspan(first, count), static_cast<int32_t>(first)));
        ASSERT_EQ(0, std::memcmp(got.data(), &want[first * vocabulary], got.size() * sizeof(float)))
            << "from " << first << ", " << cut << " at a time";
      }
    }
  }
}

TEST_P(ExpertModelTest, LevelsDescribeWhatATokenReads) {
  const auto model = Open(BestTarget(), 1);
  ASSERT_NE(model, nullptr);
  ASSERT_EQ(model->info().levels.size(), 1u);
  EXPECT_EQ(model->info().d_ff, shape_.experts_used * shape_.d_ff);
  const int64_t all_experts =
      int64_t{3} * shape_.layers * shape_.experts * shape_.d_ff * shape_.d_model;
  EXPECT_GT(model->info().parameters, all_experts);
  EXPECT_LT(model->info().levels[0].flops_per_token, 2 * all_experts);
  EXPECT_LT(2 * model->info().levels[0].weight_bytes, model->info().weight_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Types, ExpertModelTest,
    testing::Values(std::pair("qwen3moe", "q4_0"), std::pair("qwen3moe", "q8_0"),
                    std::pair("qwen3moe", "f16"), std::pair("qwen3moe", "f32"),
                    std::pair("gpt-oss", "mxfp4"), std::pair("gpt-oss", "f16")),
    [](const auto& tested) {
      return (tested.param.first == "gpt-oss" ? "gpt_oss_" : "") + tested.param.second;
    });

// A copy of tiny-moe whose tensors `change` changes or, by returning false, leaves out.
absl::Status LayoutWith(const std::function<bool(TensorInfo*)>& change) {
  const TestFolder folder;
  const std::string path = WriteTiny(folder, *FindSynthShape("tiny-moe"), GgmlType::kQ8_0);
  const auto file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  GgufWriter writer;
  writer.CopyMetadata(*file);
  for (const TensorInfo& tensor : file->tensors()) {
    TensorInfo changed = tensor;
    if (change(&changed))
      writer.AddTensor(changed.name, changed.type, changed.dims, file->Data(tensor));
  }
  const absl::Status written = writer.Write(folder / "changed.gguf");
  if (!written.ok()) return written;
  const auto copy = GgufFile::Open(folder / "changed.gguf");
  return copy.ok() ? PlanLayout(*copy).status() : copy.status();
}

TEST(ExpertFileTest, AFileIsRefusedByTheTensor) {
  EXPECT_TRUE(LayoutWith([](TensorInfo*) { return true; }).ok());
  const absl::Status missing =
      LayoutWith([](TensorInfo* t) { return t->name != "blk.1.ffn_up_exps.weight"; });
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("blk.1.ffn_up_exps.weight"));
  const absl::Status flat = LayoutWith([](TensorInfo* t) {
    if (t->name == "blk.2.ffn_down_exps.weight") t->dims = {t->dims[0], t->rows()};
    return true;
  });
  EXPECT_EQ(flat.code(), absl::StatusCode::kInvalidArgument) << flat;
  EXPECT_THAT(std::string(flat.message()),
              HasSubstr("blk.2.ffn_down_exps.weight has 2 dimensions"));
  const absl::Status few = LayoutWith([](TensorInfo* t) {
    if (t->name == "blk.0.ffn_gate_exps.weight") std::swap(t->dims[1], t->dims[2]);
    return true;
  });
  EXPECT_THAT(std::string(few.message()), HasSubstr("asks for three, the last of 10 experts"));
}

}  // namespace
}  // namespace withy::engine
