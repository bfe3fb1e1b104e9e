// Model::Open: a packed file as it is, a GGUF by way of the cache.
#include <thread>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "engine/model/model.h"
#include "engine/model/packed_model.h"
#include "engine/weights/packer.h"

namespace withy::engine {
namespace {

constexpr int32_t kMaxThreads = 256;

absl::StatusOr<const Kernels*> ChooseKernels(const std::string& name) {
  if (name.empty()) return &DefaultKernels();
  Target target;
  if (ParseTarget(name, &target)) return KernelsFor(target);
  const std::string names = absl::StrJoin(SupportedTargets(), ", ", [](std::string* out, Target t) {
    out->append(KernelsFor(t)->name);
  });
  return absl::InvalidArgumentError(
      absl::StrCat("kernel target \"", name, "\" cannot run here; these can: ", names));
}

}  // namespace

absl::Status Model::Forward(const Batch& batch, float* logits, const std::atomic<bool>* cancel) {
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<Pass> pass, Begin(batch, logits));
  if (!pass->Run(cancel)) return absl::CancelledError("the forward pass was cancelled");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Model>> Model::Open(const std::string& path,
                                                   const ModelOptions& options) {
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.threads, "; it must be 0 to ", kMaxThreads));
  }
  if (options.max_piece_rows < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_piece_rows is ", options.max_piece_rows, "; it must be at least 1"));
  }
  WITHY_ASSIGN_OR_RETURN(const Kernels* kernels, ChooseKernels(options.target));
  const int32_t cores = std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  auto pool = std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : cores);
  std::string packed_path = path;
  if (!PackedFile::LooksPacked(path)) {
    WITHY_ASSIGN_OR_RETURN(packed_path,
                           EnsurePacked(path, options.cache_dir, *pool, options.progress));
  }
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<PackedFile> file, PackedFile::Open(packed_path));
  WITHY_ASSIGN_OR_RETURN(ModelWeights weights, CollectWeights(*file));
  if (!options.levels.empty()) {
    weights.levels = options.levels;
    weights.lora.clear();
    weights.lora_rank = 0;
  }
  WITHY_RETURN_IF_ERROR(CheckLevels(weights, weights.levels));
  return std::make_unique<PackedModel>(std::move(file), std::move(weights), std::move(pool),
                                       *kernels, options);
}

}  // namespace withy::engine
