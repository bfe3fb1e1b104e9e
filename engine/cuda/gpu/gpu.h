// A GPU as the executor sees it: memory, copies, one stream of kernels. Neighbours: cuda_gpu.cc is
// the one of CUDA, on_cpu/gpu_on_cpu.h the one for tests, kernels.h the table of launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/shared_memory.h"
#include "engine/cuda/gpu/dense_math.h"
#include "engine/cuda/gpu/launch_queue.h"
#include "engine/cuda/kernels/kernels.h"
#include "engine/kv/memory.h"

namespace withy::engine::cuda {

// How kernels reach memory.
enum class MemoryWay : uint8_t {
  kDevice,      // of the GPU
  kHost,        // pinned; the host reads and writes it, too: what kernels wrote, once they are done
  kManaged,     // the driver moves it to who accesses it
  kRegistered,  // as the arena of KV: a sealed memfd, mapped by Gpu::MapKv. Of a Buffer only
};

// What a GPU is, for people and for choices of memory.
struct GpuFacts {
  std::string driver;  // "580.65.06, CUDA 13.0"; empty: not known
  std::string built;   // "CUDA 13.0"
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t l2_bytes = 0;
  bool integrated = false;       // its memory is the board's
  bool manages_at_once = false;  // managed memory, while the host accesses it, too
};

// For one thread at a time. What is queued runs in order: copies, kernels, marks. A kernel that
// fails makes every later call fail with the same error.
class Gpu {
 public:
  static constexpr int kMarks = 4;
  static constexpr int kStages = 2;

  virtual ~Gpu() = default;
  // Name of the kernels, for Model::target(): "cuda", "cuda-on-cpu".
  virtual std::string_view target() const = 0;
  // For people: "NVIDIA Orin (cuda:0, sm_87)".
  virtual std::string_view description() const = 0;
  // Whether how long its kernels take says anything: it is a card, which is checked and measured
  // before it serves.
  virtual bool has_times() const { return true; }
  virtual GpuFacts facts() const = 0;
  virtual const Kernels& kernels() const = 0;
  virtual LaunchQueue& queue() = 0;
  virtual void* stream() = 0;  // of the queue, for libraries: cudaStream_t
  // Products of large F16 matrices, opened when it is first asked for; it lives as long as the GPU.
  // Errors: naming what is missing. Nothing else needs it.
  virtual absl::StatusOr<DenseMath*> OpenDense() = 0;
  // Rows of a prompt that are worth computing at once where these products are used.
  virtual int32_t dense_piece_rows() const = 0;

  // Memory for kernels, aligned to 256 bytes; its contents are undefined. Errors:
  // RESOURCE_EXHAUSTED naming device, bytes asked for and free.
  virtual absl::StatusOr<void*> Allocate(MemoryWay way, size_t bytes) = 0;
  virtual void Free(MemoryWay way, void* memory) = 0;
  // `from` may change once it returns.
  virtual absl::Status Upload(void* to, const void* from, size_t bytes) = 0;
  // Waits for what is queued, then for the copy.
  virtual absl::Status Download(void* to, const void* from, size_t bytes) = 0;
  virtual absl::Status Zero(void* to, size_t bytes) = 0;
  // Copies into stage `stage` (memory of the caller's, the same for each) beside what is queued:
  // the copy starts once what was queued before the last LeaveStage(stage) is done; what is queued
  // from now on comes after the copy. `from` may change once it returns.
  virtual absl::Status UploadToStage(int stage, void* to, const void* from, size_t bytes) = 0;
  // What is queued from now on does not read the stage before the next copy into it.
  virtual absl::Status LeaveStage(int stage) = 0;
  // Address at which kernels access the memory of KV blocks. Memory that may be unmapped
  // (KvMemory::mapping is 0) stays prepared until as many UnmapKv; what is queued must be done by
  // then.
  virtual absl::StatusOr<uint8_t*> MapKv(const KvMemory& memory) = 0;
  virtual void UnmapKv(const KvMemory& memory) = 0;

  // Queues mark `index`; WaitFor returns once everything queued before it is done.
  virtual absl::Status Mark(int index) = 0;
  virtual absl::Status WaitFor(int index) = 0;
  // Waits for all that is queued.
  virtual absl::Status Wait() = 0;
};

// Memory for kernels that grows. Owned by one thread at a time; the GPU must outlive it.
class Buffer {
 public:
  explicit Buffer(Gpu& gpu, MemoryWay way = MemoryWay::kDevice) : gpu_(&gpu), way_(way) {}
  Buffer(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  // Makes room for `bytes`; contents are lost when it has to grow, which waits for what is queued.
  absl::Status Reserve(size_t bytes);
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  size_t bytes() const { return bytes_; }
  // Where the host accesses the memory; null: it cannot.
  std::byte* host() const;

 private:
  void Free();

  Gpu* gpu_;
  MemoryWay way_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  SharedMemory shared_;  // kRegistered
};

}  // namespace withy::engine::cuda
