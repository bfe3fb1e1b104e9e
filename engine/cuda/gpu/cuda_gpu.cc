// GPUs by the CUDA runtime, which is linked statically and finds the driver when it is first
// called.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory_limits.h"
#include "base/status.h"
#include "engine/cuda/gpu/cublas.h"
#include "engine/cuda/gpu/open_gpu.h"
#include "engine/cuda/gpu/self_check.h"
#include "engine/cuda/kernels/cuda_kernels.h"

namespace withy::engine::cuda {
namespace {

constexpr uint32_t kSharedOfAnyCard = 48 << 10;  // more has to be asked for
constexpr size_t kPinnedBytes = size_t{4} << 20;

std::string Version(int number) { return absl::StrCat(number / 1000, ".", number % 1000 / 10); }

std::string ErrorText(cudaError_t error) {
  return absl::StrCat(cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

absl::Status Check(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the GPU failed while it ", std::string(what), ": ", ErrorText(error)));
}

// Why no GPU can be counted.
absl::Status ExplainNoDevices(cudaError_t error) {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) {
    return absl::NotFoundError(
        "there is no NVIDIA driver: libcuda.so.1 was not found (on a Jetson it comes with JetPack; "
        "elsewhere install the driver)");
  }
  dlclose(driver);
  int supported = 0;
  int built = 0;
  cudaDriverGetVersion(&supported);
  cudaRuntimeGetVersion(&built);
  if (error == cudaErrorInsufficientDriver || (supported > 0 && supported < built)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the NVIDIA driver supports CUDA ", Version(supported), ", this build needs ",
        Version(built), ": update the driver, or build withy with an older CUDA toolkit"));
  }
  return absl::NotFoundError(absl::StrCat("the NVIDIA driver finds no GPU: ", ErrorText(error),
                                          " (are /dev/nvidia* or /dev/nvhost* readable?)"));
}

class CudaGraph final : public LaunchQueue::Graph {
 public:
  CudaGraph(cudaGraphExec_t graph, cudaStream_t stream) : graph_(graph), stream_(stream) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
  absl::Status Play() override {
    return Check(cudaGraphLaunch(graph_, stream_), "started a graph");
  }

 private:
  const cudaGraphExec_t graph_;
  const cudaStream_t stream_;
};

// Launches into a stream. What fails is told by the next Wait.
class CudaQueue final : public LaunchQueue {
 public:
  // `overlaps`: kernels may start before the one before them has ended.
  void Use(cudaStream_t stream, bool overlaps) {
    stream_ = stream;
    overlaps_ = overlaps;
  }
  // Of launches since the last call.
  cudaError_t TakeError() { return std::exchange(error_, cudaSuccess); }

 private:
  void Start(const LaunchShape& shape, const void* args) override {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = {static_cast<unsigned>(shape.grid.x), static_cast<unsigned>(shape.grid.y),
                      static_cast<unsigned>(shape.grid.z)};
    config.blockDim = {static_cast<unsigned>(shape.threads), 1, 1};
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = stream_;
    config.attrs = &attribute;
    config.numAttrs = shape.early && overlaps_ && !apart() ? 1 : 0;
    if (shape.shared_bytes > kSharedOfAnyCard) {
      cudaFuncSetAttribute(shape.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shape.shared_bytes));  // the launch tells of an error
    }
    void* arguments[] = {const_cast<void*>(args)};
    const cudaError_t error = cudaLaunchKernelExC(&config, shape.kernel, arguments);
    if (error != cudaSuccess && error_ == cudaSuccess) error_ = error;
  }

  std::unique_ptr<Graph> Record(const LaunchList& list) override {
    if (cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
      cudaGetLastError();
      return nullptr;
    }
    for (size_t i = 0; i < list.size(); ++i) Start(list.shape(i), list.args(i));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cudaError_t error = cudaStreamEndCapture(stream_, &graph);
    if (error == cudaSuccess) error = TakeError();
    if (error == cudaSuccess) error = cudaGraphInstantiate(&executable, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (error == cudaSuccess) return std::make_unique<CudaGraph>(executable, stream_);
    TakeError();
    cudaGetLastError();
    return nullptr;
  }

  cudaStream_t stream_ = nullptr;
  bool overlaps_ = false;
  cudaError_t error_ = cudaSuccess;
};
// Of the kernel module; empty where it does not say.
std::string DriverVersion() {
  std::string version;
  std::ifstream file("/sys/module/nvidia/version");
  std::getline(file, version);
  return version;
}

GpuFacts FactsOf(const cudaDeviceProp& properties) {
  int supported = 0;
  int built = 0;
  cudaDriverGetVersion(&supported);
  cudaRuntimeGetVersion(&built);
  const std::string version = DriverVersion();
  GpuFacts facts;
  facts.driver = absl::StrCat(version, version.empty() ? "" : ", ", "CUDA ", Version(supported));
  facts.built = absl::StrCat("CUDA ", Version(built));
  facts.integrated = properties.integrated != 0;
  facts.manages_at_once = properties.concurrentManagedAccess != 0;
  facts.l2_bytes = static_cast<uint64_t>(properties.l2CacheSize);
  facts.total_bytes = properties.totalGlobalMem;
  return facts;
}

// Copies to the device by way of pinned memory, so that the source may change at once.
class PinnedCopies {
 public:
  PinnedCopies() = default;
  PinnedCopies(const PinnedCopies&) = delete;
  PinnedCopies& operator=(const PinnedCopies&) = delete;
  ~PinnedCopies() {
    for (Pinned& pinned : pinned_) {
      if (pinned.event != nullptr) cudaEventDestroy(pinned.event);
      if (pinned.memory != nullptr) cudaFreeHost(pinned.memory);
    }
  }

  absl::Status Prepare() {
    for (Pinned& pinned : pinned_) {
      WITHY_RETURN_IF_ERROR(Check(cudaMallocHost(&pinned.memory, kPinnedBytes), "pinned memory"));
      WITHY_RETURN_IF_ERROR(
          Check(cudaEventCreateWithFlags(&pinned.event, cudaEventDisableTiming), "made an event"));
    }
    return absl::OkStatus();
  }

  absl::Status Copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    for (size_t at = 0; at < bytes; at += kPinnedBytes) {
      Pinned& pinned = pinned_[next_++ % pinned_.size()];
      WITHY_RETURN_IF_ERROR(Check(cudaEventSynchronize(pinned.event), "copied to the device"));
      const size_t part = std::min(kPinnedBytes, bytes - at);
      std::memcpy(pinned.memory, static_cast<const std::byte*>(from) + at, part);
      WITHY_RETURN_IF_ERROR(Check(cudaMemcpyAsync(static_cast<std::byte*>(to) + at, pinned.memory,
                                                  part, cudaMemcpyHostToDevice, stream),
                                  "copied to the device"));
      WITHY_RETURN_IF_ERROR(Check(cudaEventRecord(pinned.event, stream), "copied to the device"));
    }
    return absl::OkStatus();
  }

 private:
  struct Pinned {
    void* memory = nullptr;
    cudaEvent_t event = nullptr;  // the last copy out of it
  };

  std::array<Pinned, 2> pinned_ = {};
  size_t next_ = 0;
};

class CudaGpu final : public Gpu {
 public:
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(int32_t index) {
    int count = 0;
    const cudaError_t counted = cudaGetDeviceCount(&count);
    if (counted != cudaSuccess || count == 0) return ExplainNoDevices(counted);
    if (index >= count) {
      return absl::NotFoundError(
          absl::StrCat("there is no GPU number ", index, "; there are ", count, ", from 0 on"));
    }
    std::unique_ptr<CudaGpu> gpu(new CudaGpu(index));
    WITHY_RETURN_IF_ERROR(gpu->Prepare());
    WITHY_RETURN_IF_ERROR(SelfCheck(*gpu));
    return gpu;
  }

  ~CudaGpu() override {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    if (stage_stream_ != nullptr) cudaStreamSynchronize(stage_stream_);
    dense_.reset();
    for (const auto& [base, registered] : registered_) cudaHostUnregister(base);
    const auto destroy = [](const auto& events) {
      for (const cudaEvent_t event : events) {
        if (event != nullptr) cudaEventDestroy(event);
      }
    };
    destroy(marks_);
    destroy(copied_);
    destroy(left_);
    if (stage_stream_ != nullptr) cudaStreamDestroy(stage_stream_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  std::string_view target() const override { return target_; }
  std::string_view description() const override { return description_; }
  GpuFacts facts() const override {
    GpuFacts facts = facts_;
    facts.free_bytes = FreeBytes();
    return facts;
  }
  const Kernels& kernels() const override { return CudaKernels(); }
  LaunchQueue& queue() override {
    cudaSetDevice(index_);  // of the calling thread
    return queue_;
  }

  void* stream() override {
    cudaSetDevice(index_);
    return stream_;
  }
  absl::StatusOr<DenseMath*> OpenDense() override {
    if (dense_ == nullptr) {
      WITHY_ASSIGN_OR_RETURN(dense_, OpenCublas(*this));
    }
    return dense_.get();
  }
  // A board's GPU takes tens of milliseconds for a layer of 2,048 rows, in which nothing can stop.
  int32_t dense_piece_rows() const override { return facts_.integrated ? 512 : 2048; }

  absl::StatusOr<void*> Allocate(MemoryWay way, size_t bytes) override {
    cudaSetDevice(index_);
    void* memory = nullptr;
    cudaError_t error = cudaSuccess;
    switch (way) {
      case MemoryWay::kHost:
        error = cudaHostAlloc(&memory, bytes, cudaHostAllocMapped);
        break;
      case MemoryWay::kManaged:
        error = cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal);
        break;
      default:
        error = cudaMalloc(&memory, bytes);
    }
    if (error == cudaSuccess) return memory;
    cudaGetLastError();  // an allocation that fails leaves the device usable
    if (error != cudaErrorMemoryAllocation) return Check(error, "allocated memory");
    return absl::ResourceExhaustedError(absl::StrCat(
        description_, " has no ", bytes, " bytes left (", FreeBytes(),
        " are free): choose a smaller model, or set model.weight_budget_bytes or model.device"));
  }
  void Free(MemoryWay way, void* memory) override {
    way == MemoryWay::kHost ? cudaFreeHost(memory) : cudaFree(memory);
  }

  absl::Status Upload(void* to, const void* from, size_t bytes) override {
    cudaSetDevice(index_);
    return copies_.Copy(to, from, bytes, stream_);
  }
  absl::Status UploadToStage(int stage, void* to, const void* from, size_t bytes) override {
    cudaSetDevice(index_);
    const cudaEvent_t copied = copied_[static_cast<size_t>(stage)];
    const cudaEvent_t left = left_[static_cast<size_t>(stage)];
    WITHY_RETURN_IF_ERROR(Check(cudaStreamWaitEvent(stage_stream_, left, 0), "waited for a stage"));
    WITHY_RETURN_IF_ERROR(stage_copies_.Copy(to, from, bytes, stage_stream_));
    WITHY_RETURN_IF_ERROR(Check(cudaEventRecord(copied, stage_stream_), "copied to a stage"));
    return Check(cudaStreamWaitEvent(stream_, copied, 0), "waited for a stage");
  }
  absl::Status LeaveStage(int stage) override {
    return Check(cudaEventRecord(left_[static_cast<size_t>(stage)], stream_), "left a stage");
  }
  absl::Status Download(void* to, const void* from, size_t bytes) override {
    WITHY_RETURN_IF_ERROR(
        Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "computed"));
    return Wait();
  }
  absl::Status Zero(void* to, size_t bytes) override {
    return Check(cudaMemsetAsync(to, 0, bytes, stream_), "cleared memory");
  }

  absl::StatusOr<uint8_t*> MapKv(const KvMemory& memory) override {
    if (reads_host_memory_ || memory.bytes == 0) return reinterpret_cast<uint8_t*>(memory.base);
    const auto found = registered_.find(memory.base);
    const bool prepared = found != registered_.end() && found->second.bytes == memory.bytes &&
                          found->second.mapping == memory.mapping;
    if (!prepared) WITHY_RETURN_IF_ERROR(Register(memory));
    ++registered_[memory.base].uses;
    void* device = nullptr;
    WITHY_RETURN_IF_ERROR(
        Check(cudaHostGetDevicePointer(&device, memory.base, 0), "mapped the KV memory"));
    return static_cast<uint8_t*>(device);
  }
  void UnmapKv(const KvMemory& memory) override {
    const auto found = registered_.find(memory.base);
    if (found == registered_.end() || --found->second.uses > 0 || memory.mapping != 0) return;
    cudaHostUnregister(memory.base);
    registered_.erase(found);
  }

  absl::Status Mark(int index) override {
    WITHY_RETURN_IF_ERROR(Check(queue_.TakeError(), "started a kernel"));
    return Check(cudaEventRecord(marks_[static_cast<size_t>(index)], stream_), "computed");
  }
  absl::Status WaitFor(int index) override {
    return Check(cudaEventSynchronize(marks_[static_cast<size_t>(index)]), "computed");
  }
  absl::Status Wait() override {
    WITHY_RETURN_IF_ERROR(Check(queue_.TakeError(), "started a kernel"));
    return Check(cudaStreamSynchronize(stream_), "computed");
  }

 private:
  // Memory of KV blocks that is registered with CUDA.
  struct Registered {
    size_t bytes = 0;
    uint64_t mapping = 0;
    int uses = 0;
  };

  explicit CudaGpu(int32_t index) : index_(index) {}

  absl::Status Prepare() {
    WITHY_RETURN_IF_ERROR(Check(cudaSetDevice(index_), "was opened"));
    cudaDeviceProp properties;
    WITHY_RETURN_IF_ERROR(
        Check(cudaGetDeviceProperties(&properties, index_), "was asked for its properties"));
    facts_ = FactsOf(properties);
    reads_host_memory_ = properties.pageableMemoryAccessUsesHostPageTables != 0;
    description_ = absl::StrCat(properties.name, " (cuda:", index_, ", sm_", properties.major,
                                properties.minor, ")");
    target_ = absl::StrCat("cuda-sm_", properties.major, properties.minor);
    const int image = CheckKernelImage();
    if (image != cudaSuccess) {
      cudaGetLastError();
      return absl::FailedPreconditionError(absl::StrCat(
          "this build has no kernels for ", description_, ": ",
          ErrorText(static_cast<cudaError_t>(image)),
          " (it has sm_87, sm_90, sm_110, and what can be compiled from them at start)"));
    }
    WITHY_RETURN_IF_ERROR(
        Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "made a stream"));
    WITHY_RETURN_IF_ERROR(
        Check(cudaStreamCreateWithFlags(&stage_stream_, cudaStreamNonBlocking), "made a stream"));
    queue_.Use(stream_, properties.major >= 9);
    const auto make = [](auto& events) -> absl::Status {
      for (cudaEvent_t& event : events) {
        WITHY_RETURN_IF_ERROR(
            Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "made an event"));
      }
      return absl::OkStatus();
    };
    WITHY_RETURN_IF_ERROR(make(marks_));
    WITHY_RETURN_IF_ERROR(make(copied_));
    WITHY_RETURN_IF_ERROR(make(left_));
    WITHY_RETURN_IF_ERROR(copies_.Prepare());
    return stage_copies_.Prepare();
  }

  // Views that overlap are of memory that was given back since.
  absl::Status Register(const KvMemory& memory) {
    for (auto it = registered_.begin(); it != registered_.end();) {
      const bool overlaps =
          it->first < memory.base + memory.bytes && memory.base < it->first + it->second.bytes;
      if (overlaps) {
        WITHY_RETURN_IF_ERROR(Wait());
        cudaHostUnregister(it->first);
        cudaGetLastError();
        it = registered_.erase(it);
      } else {
        ++it;
      }
    }
    const cudaError_t error = cudaHostRegister(memory.base, memory.bytes, cudaHostRegisterMapped);
    if (error != cudaSuccess) {
      cudaGetLastError();
      return absl::FailedPreconditionError(absl::StrCat(
          description_, " cannot read the KV memory (", memory.bytes, " bytes): ", ErrorText(error),
          "; set model.device to cpu, or a smaller store.arena_bytes"));
    }
    registered_[memory.base] = {memory.bytes, memory.mapping, 0};
    return absl::OkStatus();
  }

  // On a board that shares memory, CUDA does not count what the kernel can reclaim.
  uint64_t FreeBytes() const {
    if (facts_.integrated) return MemoryFree();
    size_t free = 0;
    size_t total = 0;
    cudaSetDevice(index_);
    cudaMemGetInfo(&free, &total);
    return free;
  }

  const int32_t index_;
  std::string target_;  // "cuda-sm_87": what is measured on one kind of GPU says nothing of another
  std::string description_;
  GpuFacts facts_;
  // By the CPU's page tables, as Thor and GB10 do. Where the driver only moves pages to the card
  // and back, memory is registered all the same.
  bool reads_host_memory_ = false;
  cudaStream_t stream_ = nullptr;
  CudaQueue queue_;
  std::array<cudaEvent_t, kMarks> marks_ = {};
  PinnedCopies copies_;
  cudaStream_t stage_stream_ = nullptr;           // copies to stages, beside the kernels of stream_
  std::array<cudaEvent_t, kStages> copied_ = {};  // of stage_stream_
  std::array<cudaEvent_t, kStages> left_ = {};    // of stream_
  PinnedCopies stage_copies_;
  std::map<std::byte*, Registered> registered_;  // by base
  std::unique_ptr<DenseMath> dense_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gpu>> OpenCudaGpu(int32_t index) { return CudaGpu::Open(index); }

}  // namespace withy::engine::cuda
