// Converts GGUF files to packed files and caches them, so that each model is packed once.
// Neighbours: layout.h plans the file, row_decoder.h converts rows, packed_file.h reads the result.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cpu/thread_pool.h"
#include "engine/gguf/reader.h"
#include "engine/weights/packed_format.h"

namespace withy::engine {

// Told why a packed file is damaged that is packed again. Called on the calling thread.
using DamageReport = std::function<void(const absl::Status& damage)>;

// Share done in [0, 1] and the current activity. Called on the calling thread.
using PackProgress = std::function<void(double done, std::string_view what)>;

// Writes the packed form of `file`, whose identity is `source`, to `path` atomically. Memory: a few
// MiB and the largest O or down matrix. `kv_epoch`: PackedTrailer::kv_epoch. Errors: as PlanLayout;
// CANCELLED once `*cancel` is true;
// RESOURCE_EXHAUSTED before anything is written if the disk lacks room (gives free and required
// bytes); others of the file system; all name the path.
absl::Status PackGguf(const GgufFile& file, const SourceIdentity& source, const std::string& path,
                      ThreadPool& pool, const PackProgress& progress = nullptr,
                      uint32_t kv_epoch = 0, const std::atomic<bool>* cancel = nullptr);

// Returns the path of an up-to-date packed file of `gguf_path` in `cache_dir` ("" =
// DefaultCacheDir). Packs the GGUF if the packed file is missing, damaged, or made from other bytes
// (source_identity.h). What was written is read back from the disk and checked, every byte.
// Concurrent processes pack once; the others wait. Errors: as GgufFile::Open, PackGguf;
// PERMISSION_DENIED naming the directory if it is not writable; ABORTED if the GGUF changes
// meanwhile; DATA_LOSS if the disk does not give back what was written; CANCELLED once `*cancel` is
// true.
absl::StatusOr<std::string> EnsurePacked(const std::string& gguf_path, const std::string& cache_dir,
                                         ThreadPool& pool, const PackProgress& progress = nullptr,
                                         const DamageReport& on_damage = nullptr,
                                         const std::atomic<bool>* cancel = nullptr);

// Removes the packed file of `gguf_path`, which is damaged as `damage` says, so that the next
// EnsurePacked reports that and packs it again. Errors: FAILED_PRECONDITION if it cannot be
// removed.
absl::Status DiscardPacked(const std::string& gguf_path, const std::string& cache_dir,
                           const absl::Status& damage);

// `error`, of opening the GGUF. If it is gone, also what is known of the packed file that was made
// from it, and what to do.
absl::Status WithPackedState(const absl::Status& error, const std::string& gguf_path,
                             const std::string& cache_dir);

// Path where EnsurePacked keeps the packed file of `gguf_path`; it need not exist. Pure, except
// that it resolves links in the path.
std::string PackedPath(const std::string& gguf_path, const std::string& cache_dir);

// $XDG_CACHE_HOME/withy, else $HOME/.cache/withy, else the directory of `gguf_path`.
std::string DefaultCacheDir(const std::string& gguf_path);

}  // namespace withy::engine
