// Model::Open: opens a packed file directly, a GGUF through the cache of packed files.
#include <fcntl.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/memory_limits.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "engine/cpu/thread_pool.h"
#include "engine/model/devices.h"
#include "engine/model/model.h"
#include "engine/model/packed_model.h"
#include "engine/model/plan_weights.h"
#include "engine/weights/packed_check.h"
#include "engine/weights/packer.h"
#include "engine/weights/types/weight_room.h"

namespace withy::engine {
namespace {

// Caches and few page walks serve smaller models.
constexpr uint64_t kLeastCopiedBytes = uint64_t{32} << 20;

// There must be twice the room that the weights take, in what the board and the cgroup allow and in
// what is free at present.
bool RoomForCopy(uint64_t bytes) {
  return bytes >= kLeastCopiedBytes && 2 * bytes <= MemoryAllowed() && 2 * bytes <= MemoryFree();
}

// Refuses weights for which the system has no memory.
absl::Status CheckRoom(const PackedFile& file, const ModelOptions& options) {
  const std::vector<MemoryLimit> limits = MemoryLimits(options.hooks.memory_root);
  WeightNeed need{.tensors = file.tensors(),
                  .data_bytes = file.data_bytes(),
                  .budget_bytes = options.weight_budget_bytes};
  if (CheckWeightRoom(need, limits).ok()) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(const ModelFacts facts, ReadFacts(file, options.levels));
  need.least_budget_bytes = LeastWeightBudget(file.tensors(), facts);
  return Annotate(CheckWeightRoom(need, limits), file.path());
}

// What packing or recognising a file has left in the page cache would count beside a budget.
void DropFromCache(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.valid()) posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

// Checks the weights of `packed`, the file of `path`, on their way to memory, or where they are
// mapped.
absl::StatusOr<std::unique_ptr<Model>> OpenPacked(const std::string& path,
                                                  const std::string& packed,
                                                  const ModelOptions& options) {
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<PackedFile> file,
                         PackedFile::Open(packed, PackedFile::Verify::kHead));
  WITHY_ASSIGN_OR_RETURN(OpenedDevice device, OpenDevice(options));
  if (options.weight_budget_bytes > 0) {
    WITHY_RETURN_IF_ERROR(CheckRoom(*file, options));
    for (const std::string& read : {path, packed}) DropFromCache(read);
    return PackedModel::Open(std::move(file), std::move(device), options);
  }
  using Place = ModelOptions::WeightPlace;
  if (options.weight_place != Place::kMapped && device.gpu == nullptr) {
    WITHY_RETURN_IF_ERROR(CheckRoom(*file, options));
  }
  // A GPU gets a copy of its own; another one beside it would take a board's memory twice.
  const bool copies = options.weight_place == Place::kAuto && device.gpu == nullptr;
  if (options.weight_place == Place::kCopied || (copies && RoomForCopy(file->data_bytes()))) {
    WITHY_RETURN_IF_ERROR(file->MoveToMemory());
  } else {
    WITHY_RETURN_IF_ERROR(CheckPackedOnce(packed, CheckedMemoPath(path, options.cache_dir)));
  }
  return PackedModel::Open(std::move(file), std::move(device), options);
}

}  // namespace

absl::Status Model::Forward(const Batch& batch, float* logits, const std::atomic<bool>* cancel) {
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<Pass> pass, Begin(batch, logits));
  if (!pass->Run(cancel)) {
    WITHY_RETURN_IF_ERROR(pass->status());
    if (pass->WaitsForKv()) {
      return absl::FailedPreconditionError("KV blocks of a context are not in place yet");
    }
    return absl::CancelledError("the forward pass was cancelled");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Model>> Model::Open(const std::string& path,
                                                   const ModelOptions& options) {
  if (options.max_piece_rows < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_piece_rows is ", options.max_piece_rows,
                     "; it must be at least 1, or 0 for what the device computes at once"));
  }
  WITHY_ASSIGN_OR_RETURN(const int threads, CheckDevice(options));
  if (PackedFile::LooksPacked(path)) return OpenPacked(path, path, options);
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<Model>> {
    absl::StatusOr<std::string> packed;
    {
      ThreadPool pool(threads);
      packed = EnsurePacked(path, options.cache_dir, pool, options.progress, options.on_damage);
    }
    WITHY_RETURN_IF_ERROR(packed.status());
    return OpenPacked(path, *packed, options);
  };
  auto model = open();
  if (!absl::IsDataLoss(model.status())) return model;
  WITHY_RETURN_IF_ERROR(DiscardPacked(path, options.cache_dir, model.status()));
  return open();
}

}  // namespace withy::engine
