// withyctl calibrate --cupti: its measurement with the runner as the card and a witness that
// records what the runner launches.
#include "cli/profile/stamp_times.h"

#include <memory>
#include <utility>

#include "base/ticks.h"
#include "engine/cuda/on_cpu/gpu_on_cpu.h"
#include "engine/model/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

using engine::cuda::KernelTime;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Kernels in the order of their launches, as CUPTI names them.
struct LaunchLog {
  std::vector<KernelTime> kernels = {};
};

class LoggedQueue final : public engine::cuda::LaunchQueue {
 public:
  LoggedQueue(engine::on_cpu::Runner& runner, LaunchLog& log) : runner_(runner), log_(log) {}

 private:
  void Start(const engine::cuda::LaunchShape& shape, const void* args) override {
    const std::string name(shape.name);
    const auto started = static_cast<uint64_t>(SteadyNowNs());
    runner_.Launch(shape.name, {shape.grid.x, shape.grid.y, shape.grid.z}, shape.threads,
                   shape.shared_bytes, [&] { shape.call(shape.kernel, args); });
    log_.kernels.push_back({name == "stamp" ? "_ZN5withy11StampKernelE" : name, started,
                            static_cast<uint64_t>(SteadyNowNs())});
  }
  std::unique_ptr<Graph> Record(const engine::cuda::LaunchList&) override { return nullptr; }

  engine::on_cpu::Runner& runner_;
  LaunchLog& log_;
};

class LoggedGpu final : public engine::on_cpu::GpuOnCpu {
 public:
  explicit LoggedGpu(LaunchLog& log) : queue_(runner(), log) {}
  engine::cuda::LaunchQueue& queue() override { return queue_; }

 private:
  LoggedQueue queue_;
};

class LogWitness final : public engine::cuda::Cupti {
 public:
  explicit LogWitness(LaunchLog& log) : log_(log) {}
  // Loses the first record so many times.
  int loses = 0;

  absl::StatusOr<std::vector<KernelTime>> Take() override {
    std::vector<KernelTime> kernels = std::exchange(log_.kernels, {});
    if (!kernels.empty() && loses > 0) {
      kernels.erase(kernels.begin());
      --loses;
    }
    return kernels;
  }

 private:
  LaunchLog& log_;
};

class StampTimesTest : public testing::Test {
 protected:
  absl::StatusOr<std::vector<StampTimes>> Measure(const std::string& device) {
    engine::ModelOptions options;
    options.device = device;
    options.cache_dir = folder_.path();
    options.open_gpu = [this](int32_t) { return std::make_unique<LoggedGpu>(log_); };
    return MeasureStamps(engine::WriteTiny(folder_, engine::TinyShape(), engine::GgmlType::kQ8_0),
                         options, witness_, nullptr);
  }

  engine::TestFolder folder_;
  LaunchLog log_;
  LogWitness witness_{log_};
};

TEST_F(StampTimesTest, EachOperationIsTimedByBoth) {
  witness_.loses = 3;  // measured again
  const auto times = Measure("cuda");
  ASSERT_TRUE(times.ok()) << times.status();
  ASSERT_EQ(times->size(), 2u);
  for (const StampTimes& pass : *times) {
    EXPECT_GE(pass.ops.size(), 8u) << pass.pass;
    for (const auto& op : pass.ops) {
      EXPECT_GT(op.count, 0u);
      EXPECT_GT(op.recorded_us, 0) << pass.pass << " " << engine::OpName(op.kind);
      // A stamp is the time of a kernel behind the operation's: the interval contains them, but for
      // the error of the clocks.
      EXPECT_GE(op.stamped_us + 50.0 * static_cast<double>(op.count), op.recorded_us);
    }
  }
  EXPECT_THAT(StampTable(*times),
              AllOf(HasSubstr("decode"), HasSubstr("prefill"), HasSubstr("CUPTI us")));
}

TEST_F(StampTimesTest, RecordsThatNeverFitAreNoTimes) {
  witness_.loses = 1'000'000;
  const auto times = Measure("cuda");
  EXPECT_EQ(times.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(times.status().ToString(), HasSubstr("CUPTI recorded"));
}

TEST_F(StampTimesTest, AModelOnTheCpuHasNone) {
  const auto times = Measure("cpu");
  EXPECT_EQ(times.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(times.status().ToString(), HasSubstr("model.device"));
  EXPECT_EQ(StampTable({}), "");
}

}  // namespace
}  // namespace withy::cli
