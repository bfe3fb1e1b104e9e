#include "engine/cuda/executor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/cuda/run.h"

namespace withy::engine::cuda {

CudaExecutor::CudaExecutor(Gpu& gpu, const PackedFile& file, const ModelFacts& facts,
                           const Tap& tap, WeightStream* stream, KernelObserver* observer,
                           const ExecutorOptions& options)
    : gpu_(gpu),
      facts_(facts),
      bound_(file, facts),
      key_bias_(facts, bound_),
      angles_(facts.shape.rope_frequencies, facts.shape.rope_scales[0],
              facts.shape.rope_pairing == RopePairing::kAdjacent, 2 * facts.shape.head_dim),
      tap_(tap),
      stream_(stream),
      observer_(observer),
      options_(options),
      target_(gpu_.target()),
      kv_mirror_(gpu_, {facts.shape.layers, facts.shape.kv_heads, facts.shape.head_dim}) {}

absl::StatusOr<std::unique_ptr<CudaExecutor>> CudaExecutor::Create(
    std::unique_ptr<Gpu> gpu, const PackedFile& file, const ModelFacts& facts, const Tap& tap,
    WeightStream* stream, KernelObserver* observer, const ExecutorOptions& options) {
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<CudaExecutor> executor,
                         CreateOn(*gpu, file, facts, tap, stream, observer, options));
  executor->owned_gpu_ = std::move(gpu);
  return executor;
}

absl::StatusOr<std::unique_ptr<CudaExecutor>> CudaExecutor::CreateOn(
    Gpu& gpu, const PackedFile& file, const ModelFacts& facts, const Tap& tap, WeightStream* stream,
    KernelObserver* observer, const ExecutorOptions& options) {
  const std::string beyond = BeyondLlama(facts.shape);
  if (!beyond.empty()) {
    return absl::UnimplementedError(
        absl::StrCat(file.path(), ": the architecture ", facts.shape.architecture, ", with ",
                     beyond, ", is not computed on GPUs: set device to cpu or auto"));
  }
  std::unique_ptr<CudaExecutor> executor(
      new CudaExecutor(gpu, file, facts, tap, stream, observer, options));
  if (stream != nullptr) gpu.queue().KeepApart();
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

absl::Status CudaExecutor::UseDense(DenseMath& math, int32_t least_rows, int32_t piece_rows) {
  WITHY_ASSIGN_OR_RETURN(auto dense, NewDensePath(gpu_, math, facts_.shape, piece_rows));
  // Passes of so many rows must find memory, too: for two, since one may be paused.
  const ModelShape& s = facts_.shape;
  const size_t floats_of_row =
      4 * static_cast<size_t>(s.d_model) + 3 * static_cast<size_t>(s.q_rows()) +
      2 * static_cast<size_t>(s.kv_rows()) + 2 * static_cast<size_t>(s.d_ff);
  Buffer passes(gpu_);
  WITHY_RETURN_IF_ERROR(
      passes.Reserve(2 * static_cast<size_t>(piece_rows) * floats_of_row * sizeof(float)));
  dense_ = std::move(dense);
  options_.dense_rows = least_rows;
  piece_rows_ = piece_rows;
  target_ = absl::StrCat(ToAbsl(gpu_.target()), "-f16");
  return absl::OkStatus();
}

std::unique_ptr<ProgramRun> CudaExecutor::NewRun() { return std::make_unique<CudaRun>(*this); }

}  // namespace withy::engine::cuda
