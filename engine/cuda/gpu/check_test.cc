// What is checked and measured of a GPU before it serves, in the runner: kernels against the CPU,
// and the ways to memory. Faults are found, and say what they are.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/cuda/gpu/memory_ways.h"
#include "engine/cuda/gpu/self_check.h"
#include "engine/cuda/on_cpu/gpu_on_cpu.h"
#include "engine/model/gpu_check.h"
#include "engine/model/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using cuda::MemoryWay;
using cuda::WayResult;
using on_cpu::GpuOnCpu;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// A card, as far as one can tell, with kernels that may be exchanged.
class Card : public GpuOnCpu {
 public:
  explicit Card(const cuda::Kernels& kernels = GpuOnCpu().kernels()) : kernels_(kernels) {}
  const cuda::Kernels& kernels() const override { return kernels_; }
  bool has_times() const override { return card; }

  bool card = false;

 private:
  const cuda::Kernels kernels_;
};

const cuda::Kernels& Right() {
  static const cuda::Kernels kernels = GpuOnCpu().kernels();
  return kernels;
}

// Tables in which one kernel does not do its work.
std::vector<std::pair<std::string, cuda::Kernels>> BrokenTables() {
  std::vector<std::pair<std::string, cuda::Kernels>> tables;
  const auto add = [&](const char* name) -> cuda::Kernels& {
    return tables.emplace_back(name, Right()).second;
  };
  add("embed").embed = [](cuda::LaunchSink& stream, const cuda::EmbedArgs& args, int) {
    Right().embed(stream, args, 1);
  };
  add("norm").norm = [](cuda::LaunchSink& stream, const cuda::NormArgs& args, int) {
    Right().norm(stream, args, 1);
  };
  add("store_kv").store_kv = [](cuda::LaunchSink& stream, cuda::StoreKvArgs const& args) {
    cuda::StoreKvArgs wrong = args;
    wrong.shape.interleaved = !wrong.shape.interleaved;
    Right().store_kv(stream, wrong);
  };
  add("rotation of queries").store_kv = [](cuda::LaunchSink& stream,
                                           const cuda::StoreKvArgs& args) {
    cuda::StoreKvArgs wrong = args;
    wrong.shape.scale *= 4;
    Right().store_kv(stream, wrong);
  };
  add("key bias").attend_tiles = [](cuda::LaunchSink& stream, const cuda::AttendArgs& args) {
    cuda::AttendArgs wrong = args;
    wrong.bias.pairs = nullptr;
    Right().attend_tiles(stream, wrong);
  };
  add("gather").gather = [](cuda::LaunchSink&, const cuda::GatherArgs&) {};
  add("keep").keep = [](cuda::LaunchSink&, const cuda::KeepArgs&) {};
  add("attend").attend = [](cuda::LaunchSink& stream, const cuda::AttendArgs& args) {
    cuda::AttendArgs wrong = args;
    wrong.shape.scale *= 4;
    Right().attend(stream, wrong);
  };
  add("attend tiles").attend_tiles = [](cuda::LaunchSink& stream, const cuda::AttendArgs& args) {
    cuda::AttendArgs wrong = args;
    wrong.tile_count = 1;
    Right().attend_tiles(stream, wrong);
  };
  add("merge").merge = [](cuda::LaunchSink& stream, const cuda::AttendArgs& args) {
    cuda::AttendArgs wrong = args;
    wrong.runs = 1;
    Right().merge(stream, wrong);
  };
  add("gate and up").products = [](cuda::LaunchSink& stream, const cuda::ProductArgs& args,
                                   cuda::ProductPath path, bool fused) {
    if (!fused) Right().products(stream, args, path, fused);
  };
  return tables;
}

TEST(GpuCheckTest, KernelsThatAreRightPass) {
  GpuOnCpu gpu(on_cpu::RunnerOptions{.checks = true, .counts = true});
  const auto check = CheckGpu(gpu);
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_GE(check->rows, 10);
  EXPECT_GE(check->least_cosine, 0.9999);
  EXPECT_TRUE(gpu.runner().watch().findings().empty());
  // Every kernel of a pass is part of it.
  for (const char* name : {"repack", "embed", "norm", "product", "gate_up", "store_kv", "gather",
                           "keep", "attend", "attend_tiles", "merge"}) {
    EXPECT_EQ(gpu.runner().watch().counts().count(name), 1u) << name;
  }
}

TEST(GpuCheckTest, EachKernelThatIsWrongIsFound) {
  for (const auto& [name, kernels] : BrokenTables()) {
    Card gpu(kernels);
    const auto check = CheckGpu(gpu);
    EXPECT_EQ(check.status().code(), absl::StatusCode::kFailedPrecondition) << name;
    EXPECT_THAT(check.status().ToString(),
                AllOf(HasSubstr("self-check failed"), HasSubstr("model.device")))
        << name;
  }
}

// The CPU goes on in place of a card that fails; the log says why in one line.
TEST(GpuCheckTest, ACardThatFailsDoesNotServe) {
  const TestFolder folder;
  const std::string path = WriteTiny(folder, TinyShape(), GgmlType::kQ8_0);
  ModelOptions options;
  options.cache_dir = folder.path();
  options.threads = 1;
  options.open_gpu = [](int32_t) {
    auto gpu = std::make_unique<Card>(BrokenTables()[0].second);
    gpu->card = true;
    return gpu;
  };
  std::string told;
  options.on_device = [&told](std::string_view line) { told = line; };
  options.device = "auto";
  const auto model = Model::Open(path, options);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_NE((*model)->target(), "cuda-on-cpu");
  EXPECT_THAT(told, HasSubstr("on the CPU: self-check failed: row 1 of a small model"));
  EXPECT_EQ(told.find('\n'), std::string::npos);
  options.device = "cuda";
  const auto refused = Model::Open(path, options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().ToString(), HasSubstr("device \"cuda\": self-check failed"));
}

TEST(GpuCheckTest, ACardThatIsRightServes) {
  const TestFolder folder;
  ModelOptions options;
  options.cache_dir = folder.path();
  options.threads = 1;
  options.matrix_unit_rows = 4;  // measuring takes long in the runner, as it does of cuBLAS
  options.exact_prefill = true;
  options.open_gpu = [](int32_t) {
    auto gpu = std::make_unique<Card>();
    gpu->card = true;
    return gpu;
  };
  std::string told;
  options.on_device = [&told](std::string_view line) { told = line; };
  options.device = "auto";
  const auto model = Model::Open(WriteTiny(folder, TinyShape(), GgmlType::kQ8_0), options);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->target(), "cuda-on-cpu");
  EXPECT_THAT(told, StartsWith("the model is computed on the runner"));
}

TEST(MemoryWaysTest, EveryWayIsRight) {
  GpuOnCpu gpu(on_cpu::RunnerOptions{.checks = true});
  const auto results = cuda::MeasureMemory(gpu, /*all=*/true);
  ASSERT_TRUE(results.ok()) << results.status();
  ASSERT_EQ(results->size(), 3u);
  for (const WayResult& result : *results) {
    EXPECT_EQ(result.wrong, 0u) << cuda::MemoryWayName(result.way);
    EXPECT_GT(result.bytes, 0u);
    EXPECT_EQ(result.left_out, "");
  }
  EXPECT_TRUE(cuda::CheckMemory(*results).ok());
  EXPECT_EQ(gpu.mapped(), 0u) << "nothing stays registered";
  EXPECT_TRUE(gpu.runner().watch().findings().empty())
      << on_cpu::Describe(gpu.runner().watch().findings().front());
}

// A card that reads host memory as it once was: what it maps is a copy.
class StaleCard final : public GpuOnCpu {
 public:
  absl::StatusOr<uint8_t*> MapKv(const KvMemory& memory) override {
    copy_.assign(memory.base, memory.base + memory.bytes);
    runner().watch().Allow(copy_.data(), copy_.size());
    return reinterpret_cast<uint8_t*>(copy_.data());
  }
  void UnmapKv(const KvMemory&) override {}

 private:
  std::vector<std::byte> copy_;
};

TEST(MemoryWaysTest, MemoryThatIsNotTheHostsIsFound) {
  StaleCard gpu;
  const auto results = cuda::MeasureMemory(gpu, /*all=*/false);
  ASSERT_TRUE(results.ok()) << results.status();
  const absl::Status status = cuda::CheckMemory(*results);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(),
              AllOf(HasSubstr("registered memory differ"), HasSubstr("model.device")));
}

// One word of a buffer that is wrong counts, wherever it is.
TEST(MemoryWaysTest, ReadingCountsWrongWords) {
  GpuOnCpu gpu;
  constexpr int64_t kCount = 10'007;  // of 16 bytes: no multiple of anything
  cuda::Buffer memory(gpu, MemoryWay::kHost);
  cuda::Buffer wrong(gpu, MemoryWay::kHost);
  ASSERT_TRUE(memory.Reserve(kCount * 16).ok());
  ASSERT_TRUE(wrong.Reserve(4 * sizeof(int32_t)).ok());
  const cuda::MemoryArgs args = {.memory = memory.as<uint8_t>(),
                                 .count = kCount,
                                 .seed = 5,
                                 .blocks = 4,
                                 .wrong = wrong.as<int32_t>()};
  const auto count = [&] {
    gpu.kernels().read_memory(gpu.queue(), args);
    int32_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += wrong.as<int32_t>()[i];
    return sum;
  };
  gpu.kernels().fill_memory(gpu.queue(), args);
  EXPECT_EQ(count(), 0);
  auto* const words = memory.as<uint32_t>();
  int32_t changed = 0;
  for (const int64_t at : {int64_t{0}, int64_t{12'345}, 4 * kCount - 1, int64_t{1024 * 4 * 3}}) {
    words[at] ^= 1u << (at % 32);
    EXPECT_EQ(count(), ++changed) << at;
  }
}

TEST(MemoryWaysTest, WeightsGoWhereTheyAreReadFastest) {
  const auto best = [](double device, double registered, uint64_t wrong, double managed) {
    const std::vector<WayResult> results = {
        {.way = MemoryWay::kDevice, .bytes = 1, .bytes_per_second = device},
        {.way = MemoryWay::kRegistered, .bytes = 1, .bytes_per_second = registered, .wrong = wrong},
        {.way = MemoryWay::kManaged, .bytes = 1, .bytes_per_second = managed}};
    return cuda::WayForWeights(results);
  };
  EXPECT_EQ(best(100, 20, 0, 99), MemoryWay::kDevice);
  EXPECT_EQ(best(100, 105, 0, 108), MemoryWay::kDevice) << "not by a tenth";
  EXPECT_EQ(best(100, 150, 0, 120), MemoryWay::kRegistered);
  EXPECT_EQ(best(100, 150, 1, 120), MemoryWay::kManaged) << "fast, but wrong";
  EXPECT_EQ(best(0, 0, 0, 0), MemoryWay::kDevice) << "nothing was measured";
}

TEST(MemoryWaysTest, BuffersMayBeInAnyWay) {
  for (const MemoryWay way : {MemoryWay::kManaged, MemoryWay::kRegistered}) {
    GpuOnCpu gpu;
    cuda::Buffer memory(gpu, way);
    ASSERT_TRUE(memory.Reserve(100).ok());
    ASSERT_TRUE(memory.Reserve(5000).ok()) << "grows";
    ASSERT_NE(memory.host(), nullptr);
    const cuda::Buffer moved(std::move(memory));
    EXPECT_EQ(moved.host(), moved.as<std::byte>());
  }
}

}  // namespace
}  // namespace withy::engine
