#include "engine/cuda/executor.h"

#include <utility>

#include "base/status.h"
#include "engine/cuda/run.h"

namespace withy::engine::cuda {

CudaExecutor::CudaExecutor(Gpu& gpu, const PackedFile& file, const ModelFacts& facts,
                           const Tap& tap, WeightStream* stream, KernelObserver* observer,
                           const ExecutorOptions& options)
    : gpu_(gpu),
      facts_(facts),
      bound_(file, facts),
      key_bias_(facts, bound_),
      tap_(tap),
      stream_(stream),
      observer_(observer),
      options_(options) {}

absl::StatusOr<std::unique_ptr<Executor>> CudaExecutor::Create(
    std::unique_ptr<Gpu> gpu, const PackedFile& file, const ModelFacts& facts, const Tap& tap,
    WeightStream* stream, KernelObserver* observer, const ExecutorOptions& options) {
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                         CreateOn(*gpu, file, facts, tap, stream, observer, options));
  static_cast<CudaExecutor&>(*executor).owned_gpu_ = std::move(gpu);
  return executor;
}

absl::StatusOr<std::unique_ptr<Executor>> CudaExecutor::CreateOn(
    Gpu& gpu, const PackedFile& file, const ModelFacts& facts, const Tap& tap, WeightStream* stream,
    KernelObserver* observer, const ExecutorOptions& options) {
  std::unique_ptr<CudaExecutor> executor(
      new CudaExecutor(gpu, file, facts, tap, stream, observer, options));
  if (observer != nullptr) {
    executor->clock_ = std::make_unique<GpuClock>(gpu, observer->clock());
    WITHY_RETURN_IF_ERROR(executor->clock_->Open());
  }
  const bool embeds = stream == nullptr || !stream->StreamsEmbedding();
  WITHY_ASSIGN_OR_RETURN(executor->weights_,
                         DeviceWeights::Create(gpu, facts, executor->bound_, executor->key_bias_,
                                               options.weights, stream != nullptr, embeds));
  return executor;
}

std::unique_ptr<ProgramRun> CudaExecutor::NewRun() { return std::make_unique<CudaRun>(*this); }

}  // namespace withy::engine::cuda
