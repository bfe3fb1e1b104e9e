// The device for tests, "cuda-on-cpu": CUDA's kernels in the runner, device memory in memory of the
// process. Neighbours: runner.h, ../gpu.h. No part of the product.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/gpu/gpu.h"
#include "engine/cuda/on_cpu/dense_on_cpu.h"
#include "engine/cuda/on_cpu/runner.h"

namespace withy::engine::on_cpu {

// Runs each launch at once; plays lists as a card plays graphs.
class RunnerQueue final : public cuda::LaunchQueue {
 public:
  explicit RunnerQueue(Runner& runner) : runner_(runner) {}

 private:
  void Start(const cuda::LaunchShape& shape, const void* args) override;
  std::unique_ptr<Graph> Record(const cuda::LaunchList& list) override;

  Runner& runner_;
};

class GpuOnCpu : public cuda::Gpu {
 public:
  explicit GpuOnCpu(const RunnerOptions& options = {}) : runner_(options), queue_(runner_) {}
  ~GpuOnCpu() override;

  std::string_view target() const override { return "cuda-on-cpu"; }
  std::string_view description() const override { return "the runner of CUDA kernels on the CPU"; }
  bool has_times() const override { return false; }
  cuda::GpuFacts facts() const override;
  const cuda::Kernels& kernels() const override;
  cuda::LaunchQueue& queue() override { return queue_; }
  void* stream() override { return &runner_; }
  absl::StatusOr<cuda::DenseMath*> OpenDense() override { return &dense_; }
  int32_t dense_piece_rows() const override { return 256; }
  absl::StatusOr<void*> Allocate(cuda::MemoryWay way, size_t bytes) override;
  void Free(cuda::MemoryWay way, void* memory) override;
  absl::Status Upload(void* to, const void* from, size_t bytes) override;
  absl::Status Download(void* to, const void* from, size_t bytes) override;
  absl::Status Zero(void* to, size_t bytes) override;
  absl::Status UploadToStage(int stage, void* to, const void* from, size_t bytes) override;
  absl::Status LeaveStage(int stage) override;
  absl::StatusOr<uint8_t*> MapKv(const KvMemory& memory) override;
  void UnmapKv(const KvMemory& memory) override;
  absl::Status Mark(int) override { return absl::OkStatus(); }
  absl::Status WaitFor(int) override { return absl::OkStatus(); }
  absl::Status Wait() override { return absl::OkStatus(); }

  Runner& runner() { return runner_; }
  DenseOnCpu& dense() { return dense_; }
  size_t mapped() const { return mapped_.size(); }  // memories of KV that passes use

 private:
  Runner runner_;
  RunnerQueue queue_;
  DenseOnCpu dense_;
  std::map<void*, size_t> allocations_;
  std::array<bool, kStages> staged_ = {};  // copied to, and not left since
  std::map<std::byte*, int> mapped_;       // views in use, by base
};

}  // namespace withy::engine::on_cpu
