// withyctl device of a GPU, in the runner.
#include <algorithm>
#include <string>
#include <vector>

#include "cli/device_report.h"
#include "engine/cuda/on_cpu/gpu_on_cpu.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

using engine::on_cpu::GpuOnCpu;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::string> Lines(engine::cuda::Gpu& gpu) {
  std::vector<std::string> lines;
  for (const GpuFact& fact : ReportGpu(gpu)) lines.push_back(fact.what + ": " + fact.state);
  for (const std::string& line : lines) EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  return lines;
}

TEST(DeviceReportTest, TellsWhatAGpuIsAndWhetherItIsRight) {
  GpuOnCpu gpu;
  const std::vector<std::string> lines = Lines(gpu);
  EXPECT_THAT(lines, Contains("card: the runner of CUDA kernels on the CPU"));
  EXPECT_THAT(lines,
              Contains(AllOf(StartsWith("all kernels: passed"), HasSubstr("attend"),
                             HasSubstr("rows of a small model"), HasSubstr("cosine 0.9999"))));
  EXPECT_THAT(lines, Contains(AllOf(StartsWith("memory: "), HasSubstr("free, the board's"))));
  for (const char* way : {"device memory: ", "registered memory (KV): ", "managed memory: "}) {
    EXPECT_THAT(lines, Contains(AllOf(StartsWith(way), HasSubstr("right"))));
  }
  EXPECT_THAT(lines, Contains("weights: in device memory"));
  EXPECT_THAT(lines, Contains(AllOf(StartsWith("timer: steps of "), HasSubstr(" ns"))));
  EXPECT_THAT(lines, Contains("int8 products: not timed by mma"));
  EXPECT_THAT(lines, Contains(StartsWith("F16 products: not timed by ")));
  EXPECT_THAT(lines, Contains(StartsWith("matrix units: faster than dp4a from ")));
}

// A card without managed memory that reads host memory wrong and whose attention does nothing.
class BadCard final : public GpuOnCpu {
 public:
  BadCard() : kernels_(GpuOnCpu::kernels()) {
    kernels_.attend = [](engine::cuda::LaunchSink&, const engine::cuda::AttendArgs&) {};
  }
  const engine::cuda::Kernels& kernels() const override { return kernels_; }
  absl::StatusOr<void*> Allocate(engine::cuda::MemoryWay way, size_t bytes) override {
    if (way == engine::cuda::MemoryWay::kManaged) {
      return absl::InternalError("the GPU failed while it allocated memory: not supported");
    }
    return GpuOnCpu::Allocate(way, bytes);
  }
  absl::StatusOr<uint8_t*> MapKv(const engine::KvMemory& memory) override {
    if (memory.bytes > (1 << 20)) return GpuOnCpu::MapKv(memory);
    copy_.assign(memory.base, memory.base + memory.bytes);
    runner().watch().Allow(copy_.data(), copy_.size());
    return reinterpret_cast<uint8_t*>(copy_.data());
  }

 private:
  engine::cuda::Kernels kernels_;
  std::vector<std::byte> copy_;
};

TEST(DeviceReportTest, TellsWhatIsWrong) {
  BadCard gpu;
  const std::vector<std::string> lines = Lines(gpu);
  EXPECT_THAT(lines, Contains(StartsWith("all kernels: self-check failed: row ")));
  EXPECT_THAT(
      lines, Contains(AllOf(StartsWith("registered memory (KV): "), HasSubstr("words are WRONG"))));
  EXPECT_THAT(lines, Contains("managed memory: left out: the GPU failed while it allocated "
                              "memory: not supported"));
}

}  // namespace
}  // namespace withy::cli
