#include "engine/cuda/gpu/cupti.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::engine::cuda {
namespace {

// What is used of cupti_activity.h and cupti_result.h (CUDA 12 and 13).
constexpr int kCuptiSuccess = 0;
constexpr int kCuptiMaxLimitReached = 12;  // the buffer has no more records
constexpr int kCuptiInsufficientPrivileges = 35;
constexpr int kCuptiMultipleSubscribers = 39;
constexpr int kCuptiConcurrentKernel = 10;  // CUpti_ActivityKind
constexpr uint32_t kCuptiFlushForced = 1;
constexpr size_t kCuptiBufferBytes = size_t{1} << 20;

// The beginning of CUpti_ActivityKernel5 to CUpti_ActivityKernel10, which all have alike.
struct CuptiKernel {
  int32_t kind;
  uint8_t cache_config;
  uint8_t shared_memory_config;
  uint16_t registers;
  int32_t cache_requested;
  int32_t cache_executed;
  uint64_t start;
  uint64_t end;
  uint64_t completed;
  uint32_t device_id;
  uint32_t context_id;
  uint32_t stream_id;
  int32_t grid[3];
  int32_t block[3];
  int32_t static_shared;
  int32_t dynamic_shared;
  uint32_t local_per_thread;
  uint32_t local_total;
  uint32_t correlation_id;
  int64_t grid_id;
  const char* name;
};
static_assert(offsetof(CuptiKernel, start) == 16 && offsetof(CuptiKernel, grid_id) == 96 &&
              offsetof(CuptiKernel, name) == 104);

// CUPTI calls functions without a context, on threads of its own.
std::mutex cupti_mutex;
std::vector<std::pair<uint8_t*, size_t>> cupti_filled;  // with bytes that are valid

void OnCuptiBufferWanted(uint8_t** buffer, size_t* size, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kCuptiBufferBytes));
  *size = *buffer == nullptr ? 0 : kCuptiBufferBytes;
  *most_records = 0;  // as many as fit
}

void OnCuptiBufferFilled(void*, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(cupti_mutex);
  cupti_filled.emplace_back(buffer, valid);
}

struct CuptiFunctions {
  int (*register_callbacks)(decltype(&OnCuptiBufferWanted),
                            decltype(&OnCuptiBufferFilled)) = nullptr;
  int (*enable)(int kind) = nullptr;
  int (*disable)(int kind) = nullptr;
  int (*flush)(uint32_t flag) = nullptr;
  int (*next)(uint8_t* buffer, size_t valid, void** record) = nullptr;
  int (*result_string)(int result, const char** text) = nullptr;
};

class LoadedCupti final : public Cupti {
 public:
  LoadedCupti(LibraryLoader loader, void* library)
      : loader_(std::move(loader)), library_(library) {}
  ~LoadedCupti() override {
    if (enabled_) {
      functions_.disable(kCuptiConcurrentKernel);
      functions_.flush(kCuptiFlushForced);
    }
    TakeBuffers([](uint8_t*, size_t) {});
    // The library stays loaded once it has recorded: its threads may be in it still.
    if (!enabled_) loader_.close(library_);
  }

  absl::Status Start() {
    WITHY_RETURN_IF_ERROR(Find("cuptiGetResultString", &functions_.result_string));
    WITHY_RETURN_IF_ERROR(Find("cuptiActivityRegisterCallbacks", &functions_.register_callbacks));
    WITHY_RETURN_IF_ERROR(Find("cuptiActivityEnable", &functions_.enable));
    WITHY_RETURN_IF_ERROR(Find("cuptiActivityDisable", &functions_.disable));
    WITHY_RETURN_IF_ERROR(Find("cuptiActivityFlushAll", &functions_.flush));
    WITHY_RETURN_IF_ERROR(Find("cuptiActivityGetNextRecord", &functions_.next));
    WITHY_RETURN_IF_ERROR(
        Accepted(functions_.register_callbacks(OnCuptiBufferWanted, OnCuptiBufferFilled)));
    WITHY_RETURN_IF_ERROR(Accepted(functions_.enable(kCuptiConcurrentKernel)));
    enabled_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<KernelTime>> Take() override {
    WITHY_RETURN_IF_ERROR(Accepted(functions_.flush(kCuptiFlushForced)));
    std::vector<KernelTime> times;
    absl::Status status;
    TakeBuffers([&](uint8_t* buffer, size_t valid) {
      void* record = nullptr;
      int result = kCuptiSuccess;
      while (valid > 0 && (result = functions_.next(buffer, valid, &record)) == kCuptiSuccess) {
        CuptiKernel kernel;
        std::memcpy(&kernel, record, sizeof(kernel));
        // A start of 0: CUPTI could not tell.
        if (kernel.kind != kCuptiConcurrentKernel || kernel.start == 0) continue;
        times.push_back({kernel.name == nullptr ? "" : kernel.name, kernel.start, kernel.end});
      }
      if (result != kCuptiMaxLimitReached) status.Update(Accepted(result));
    });
    WITHY_RETURN_IF_ERROR(status);
    std::sort(times.begin(), times.end(),
              [](const KernelTime& a, const KernelTime& b) { return a.started_ns < b.started_ns; });
    return times;
  }

 private:
  template <typename Function>
  absl::Status Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(loader_.symbol(library_, name));
    if (*function != nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("CUPTI lacks ", name, ": it must be of CUDA 12 or 13"));
  }

  absl::Status Accepted(int result) const {
    if (result == kCuptiSuccess) return absl::OkStatus();
    const char* text = nullptr;
    functions_.result_string(result, &text);
    const char* remedy = "";
    if (result == kCuptiInsufficientPrivileges) {
      remedy = ": run as root, or let all users profile (NVreg_RestrictProfilingToAdminUsers=0)";
    } else if (result == kCuptiMultipleSubscribers) {
      remedy = ": end the other profiler of this process (Nsight)";
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "CUPTI refuses with ", text == nullptr ? "" : text, " (", result, ")", remedy));
  }

  template <typename Visit>
  static void TakeBuffers(const Visit& visit) {
    std::vector<std::pair<uint8_t*, size_t>> buffers;
    {
      const std::lock_guard lock(cupti_mutex);
      buffers.swap(cupti_filled);
    }
    for (const auto& [buffer, valid] : buffers) {
      visit(buffer, valid);
      std::free(buffer);
    }
  }

  const LibraryLoader loader_;
  void* const library_;
  CuptiFunctions functions_;
  bool enabled_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Cupti>> Cupti::Open(const LibraryLoader& loader) {
  for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so"}) {
    void* const library = loader.open(name);
    if (library == nullptr) continue;
    auto cupti = std::make_unique<LoadedCupti>(loader, library);
    WITHY_RETURN_IF_ERROR(cupti->Start());
    return cupti;
  }
  return absl::NotFoundError(
      "neither libcupti.so.13 nor libcupti.so.12 nor libcupti.so was found: it comes with CUDA's "
      "toolkit; give its folder in LD_LIBRARY_PATH (on a Jetson "
      "/usr/local/cuda/extras/CUPTI/lib64)");
}

}  // namespace withy::engine::cuda
