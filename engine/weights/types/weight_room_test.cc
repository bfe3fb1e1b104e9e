#include "engine/weights/types/weight_room.h"

#include <memory>
#include <string>
#include <vector>

#include "engine/cpu/packed_matrix.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kMib = uint64_t{1} << 20;

PackedTensor MatrixOf(const std::string& name, WeightType type, int n_out, int n_in) {
  PackedTensor tensor;
  tensor.name = name;
  tensor.kind = PackedKind::kMatrix;
  tensor.matrix = {.type = type, .n_out = n_out, .n_in = n_in, .panel_inputs = n_in};
  tensor.bytes = PackedBytes(tensor.matrix);
  return tensor;
}

// 1 Gi weights in F16, a sixteenth of them in the output head.
std::vector<PackedTensor> LargeModel(WeightType type = WeightType::kF16) {
  std::vector<PackedTensor> tensors = {MatrixOf("token_embd", type, 1 << 16, 1 << 10)};
  for (int i = 0; i < 15; ++i) {
    tensors.push_back(MatrixOf("blk." + std::to_string(i) + ".ffn_up", type, 1 << 16, 1 << 10));
  }
  return tensors;
}

uint64_t BytesOf(const std::vector<PackedTensor>& tensors) {
  uint64_t bytes = 0;
  for (const PackedTensor& tensor : tensors) bytes += tensor.bytes;
  return bytes;
}

TEST(WeightRoomTest, SmallerTypesTakeLess) {
  const std::vector<TypeSize> sizes = SmallerTypes(LargeModel());
  ASSERT_EQ(sizes.size(), 2u);
  EXPECT_EQ(sizes[0].type, "Q8_0");
  EXPECT_EQ(sizes[0].bytes, 1088 * kMib);  // 8.5 bits a weight
  EXPECT_EQ(sizes[1].type, "Q4_0");
  EXPECT_EQ(sizes[1].bytes, (15 * 36 + 68) * kMib) << "the head in 8 bits";
  EXPECT_EQ(SmallerTypes(LargeModel(WeightType::kF32)).front().type, "F16");
  EXPECT_EQ(SmallerTypes(LargeModel(WeightType::kQ8)).front().type, "Q4_0");
  EXPECT_TRUE(SmallerTypes(LargeModel(WeightType::kQ4)).empty());
}

struct Room {
  uint64_t limit = 0;
  uint64_t used = 0;
  std::string file = kBoardLimit;
};

std::string RefusalOf(const Room& room, uint64_t budget_bytes = 0) {
  const std::vector<PackedTensor> tensors = LargeModel();
  const std::vector<MemoryLimit> limits = {
      {.bytes = room.limit, .used_bytes = room.used, .file = room.file}};
  const absl::Status status = CheckWeightRoom({.tensors = tensors,
                                               .data_bytes = BytesOf(tensors),
                                               .budget_bytes = budget_bytes,
                                               .least_budget_bytes = 300 * kMib},
                                              limits);
  EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  return std::string(status.message());
}

TEST(WeightRoomTest, TheRefusalNamesWhatFits) {
  EXPECT_THAT(RefusalOf({1500 * kMib, 200 * kMib}),
              AllOf(HasSubstr("weights 2048 MiB + buffers 48 MiB > allowed 1500 MiB"),
                    HasSubstr("1300 MiB are free"),
                    HasSubstr("a file of the model in Q8_0 (1088 MiB) or Q4_0 (608 MiB)"),
                    HasSubstr("set weight_budget_bytes: " + std::to_string(1252 * kMib))));
  EXPECT_THAT(RefusalOf({900 * kMib, 100 * kMib}),
              AllOf(HasSubstr("in Q4_0 (608 MiB);"), Not(HasSubstr("Q8_0"))));
  EXPECT_THAT(RefusalOf({600 * kMib, 0}),
              AllOf(HasSubstr("free: set weight_budget_bytes: " + std::to_string(552 * kMib)),
                    Not(HasSubstr("Q4_0"))));
  EXPECT_THAT(RefusalOf({256 * kMib, 0}),
              AllOf(HasSubstr("serve a smaller model: its least weight budget is 300 MiB, its "
                              "smallest type Q4_0 (608 MiB)"),
                    Not(HasSubstr("set weight_budget_bytes"))));
}

TEST(WeightRoomTest, ABudgetTakesWhatIsFree) {
  const std::string cgroup = "/sys/fs/cgroup/memory.max";
  EXPECT_EQ(RefusalOf({1000 * kMib, 200 * kMib, cgroup}, 700 * kMib), "");
  EXPECT_THAT(RefusalOf({1000 * kMib, 300 * kMib, cgroup}, 700 * kMib),
              AllOf(HasSubstr("weights 700 MiB (weight_budget_bytes) + buffers 48 MiB > allowed "
                              "1000 MiB (/sys/fs/cgroup/memory.max), of which 700 MiB are free"),
                    HasSubstr("lower weight_budget_bytes to " + std::to_string(652 * kMib)),
                    Not(HasSubstr("a file of the model"))));
  // Of the board all counts, which may have swap; so does a cgroup for mapped weights.
  EXPECT_EQ(RefusalOf({1000 * kMib, 300 * kMib}, 700 * kMib), "");
  EXPECT_EQ(RefusalOf({2100 * kMib, 2000 * kMib, cgroup}), "");
  EXPECT_EQ(RefusalOf({2100 * kMib, 2000 * kMib, cgroup}, 4000 * kMib) == "", false);
}

}  // namespace
}  // namespace withy::engine
