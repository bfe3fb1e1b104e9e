// Model::Open: opens a packed file directly, a GGUF through the cache of packed files.
#include <fcntl.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory_limits.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "engine/cpu/thread_pool.h"
#include "engine/model/devices.h"
#include "engine/model/model.h"
#include "engine/model/packed_model.h"
#include "engine/weights/packed_check.h"
#include "engine/weights/packer.h"

namespace withy::engine {
namespace {

// Caches and few page walks serve smaller models.
constexpr uint64_t kLeastCopiedBytes = uint64_t{32} << 20;

// There must be twice the room that the weights take, in what the board and the cgroup allow and in
// what is free at present.
bool RoomForCopy(uint64_t bytes) {
  return bytes >= kLeastCopiedBytes && 2 * bytes <= MemoryAllowed() && 2 * bytes <= MemoryFree();
}

// A budget is taken from memory at once, and a kernel that has no room for it kills the process.
// The board may have swap: of it, only what it has in all counts.
absl::Status CheckBudget(uint64_t budget_bytes) {
  constexpr uint64_t kBufferBytes = uint64_t{48} << 20;  // of a pass and of the program
  constexpr int kMib = 20;
  for (const MemoryLimit& limit : MemoryLimits()) {
    const bool board = limit.file == kBoardLimit;
    if (budget_bytes + kBufferBytes <= (board ? limit.bytes : limit.room_bytes())) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for the model: weights ", budget_bytes >> kMib, " MiB (weight_budget_bytes) + ",
        "buffers ", kBufferBytes >> kMib, " MiB > allowed ", limit.bytes >> kMib, " MiB (",
        limit.file, "; ", limit.used_bytes >> kMib,
        " MiB of it are in use): lower weight_budget_bytes, or raise the limit"));
  }
  return absl::OkStatus();
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
  if (options.weight_budget_bytes > 0) {
    WITHY_RETURN_IF_ERROR(CheckBudget(options.weight_budget_bytes));
    for (const std::string& read : {path, packed}) DropFromCache(read);
    return PackedModel::Open(std::move(file), options);
  }
  using Place = ModelOptions::WeightPlace;
  if (options.weight_place == Place::kCopied ||
      (options.weight_place == Place::kAuto && RoomForCopy(file->data_bytes()))) {
    WITHY_RETURN_IF_ERROR(file->MoveToMemory());
  } else {
    WITHY_RETURN_IF_ERROR(CheckPackedOnce(packed, CheckedMemoPath(path, options.cache_dir)));
  }
  return PackedModel::Open(std::move(file), options);
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
        absl::StrCat("max_piece_rows is ", options.max_piece_rows, "; it must be at least 1, or 0 for what the device computes at once"));
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
