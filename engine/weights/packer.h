// Makes packed files from GGUF files, and keeps them in a cache directory so that this happens once
// a model. Neighbours: layout.h says what goes where, row_decoder.h converts rows, packed_file.h
// reads the result.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cpu/thread_pool.h"
#include "engine/gguf/reader.h"
#include "engine/weights/packed_format.h"

namespace withy::engine {

// Share done in [0, 1] and what is being done; called from the calling thread.
using PackProgress = std::function<void(double done, std::string_view what)>;

// Writes the packed form of `file`, whose identity is `source`, to `path`, whole or not at all.
// Memory: a few MiB and the largest O or down matrix. Errors: as PlanLayout; RESOURCE_EXHAUSTED
// before anything is written when the disk lacks the room, with what is there and what is needed;
// others from the disk; all name the path.
absl::Status PackGguf(const GgufFile& file, const SourceIdentity& source, const std::string& path,
                      ThreadPool& pool, const PackProgress& progress = nullptr);

// Path of an up-to-date packed file of the GGUF at `gguf_path`, in `cache_dir` ("" picks the
// default, see DefaultCacheDir), packing when it is missing, damaged, or made from other bytes than
// the GGUF has now (see source_identity.h). Processes that ask at the same time pack once: the
// others wait. Errors: as GgufFile::Open, PackGguf; PERMISSION_DENIED naming the directory when it
// cannot be written; ABORTED when the GGUF changes meanwhile.
absl::StatusOr<std::string> EnsurePacked(const std::string& gguf_path, const std::string& cache_dir,
                                         ThreadPool& pool, const PackProgress& progress = nullptr);

// Where EnsurePacked keeps the packed file of `gguf_path`; it need not be there. Pure but for
// resolving links in the path.
std::string PackedPath(const std::string& gguf_path, const std::string& cache_dir);

// $XDG_CACHE_HOME/withy, else $HOME/.cache/withy, else the directory of `gguf_path`.
std::string DefaultCacheDir(const std::string& gguf_path);

}  // namespace withy::engine
