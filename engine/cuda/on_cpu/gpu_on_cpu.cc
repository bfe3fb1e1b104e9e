#include "engine/cuda/on_cpu/gpu_on_cpu.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/memory_limits.h"
#include "engine/cuda/on_cpu/kernels_on_cpu.h"

namespace withy::engine::on_cpu {
namespace {

// The launches as they were recorded, with their arguments.
class RunnerGraph final : public cuda::LaunchQueue::Graph {
 public:
  RunnerGraph(const cuda::LaunchList& list, Runner& runner) : list_(list), runner_(runner) {}
  absl::Status Play() override {
    for (size_t i = 0; i < list_.size(); ++i) Run(list_.shape(i), list_.args(i), runner_);
    return absl::OkStatus();
  }
  static void Run(const cuda::LaunchShape& shape, const void* args, Runner& runner) {
    runner.Launch(shape.name, {shape.grid.x, shape.grid.y, shape.grid.z}, shape.threads,
                  shape.shared_bytes, [&] { shape.call(shape.kernel, args); });
  }

 private:
  const cuda::LaunchList list_;
  Runner& runner_;
};

}  // namespace

void RunnerQueue::Start(const cuda::LaunchShape& shape, const void* args) {
  RunnerGraph::Run(shape, args, runner_);
}

std::unique_ptr<cuda::LaunchQueue::Graph> RunnerQueue::Record(const cuda::LaunchList& list) {
  return std::make_unique<RunnerGraph>(list, runner_);
}

GpuOnCpu::~GpuOnCpu() {
  for (const auto& [memory, bytes] : allocations_) std::free(memory);
}

const cuda::Kernels& GpuOnCpu::kernels() const { return KernelsOnCpu(); }

cuda::GpuFacts GpuOnCpu::facts() const {
  cuda::GpuFacts facts;
  facts.total_bytes = MemoryAllowed();
  facts.free_bytes = MemoryFree();
  facts.integrated = facts.manages_at_once = true;
  return facts;
}

absl::StatusOr<void*> GpuOnCpu::Allocate(cuda::MemoryWay, size_t bytes) {
  constexpr size_t kAlignment = 256;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) return absl::ResourceExhaustedError("no memory for the test device");
  std::memset(memory, 0xff, rounded);  // floats that nobody has written are no numbers
  allocations_[memory] = rounded;
  runner_.watch().Allow(memory, rounded);
  return memory;
}

void GpuOnCpu::Free(cuda::MemoryWay, void* memory) {
  runner_.watch().Forbid(memory);
  allocations_.erase(memory);
  std::free(memory);
}

absl::Status GpuOnCpu::Upload(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return absl::OkStatus();
}

absl::Status GpuOnCpu::Download(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return absl::OkStatus();
}

absl::Status GpuOnCpu::Zero(void* to, size_t bytes) {
  std::memset(to, 0, bytes);
  return absl::OkStatus();
}

// A card would copy over what kernels still read.
absl::Status GpuOnCpu::UploadToStage(int stage, void* to, const void* from, size_t bytes) {
  if (std::exchange(staged_.at(static_cast<size_t>(stage)), true)) {
    return absl::InternalError("a stage is copied to again before it was left");
  }
  return Upload(to, from, bytes);
}

absl::Status GpuOnCpu::LeaveStage(int stage) {
  staged_.at(static_cast<size_t>(stage)) = false;
  return absl::OkStatus();
}

absl::StatusOr<uint8_t*> GpuOnCpu::MapKv(const KvMemory& memory) {
  runner_.watch().Allow(memory.base, memory.bytes);
  ++mapped_[memory.base];
  return reinterpret_cast<uint8_t*>(memory.base);
}

void GpuOnCpu::UnmapKv(const KvMemory& memory) {
  const auto found = mapped_.find(memory.base);
  if (found == mapped_.end() || --found->second > 0) return;
  mapped_.erase(found);
  if (memory.mapping == 0) runner_.watch().Forbid(memory.base);
}

}  // namespace withy::engine::on_cpu
