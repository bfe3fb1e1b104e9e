// The models of the speculation benchmarks: the pocket pair, the same in published shapes, and
// copies of a model in fewer bits. Neighbours: speculation.cc and speculation_figures.cc measure
// with them; offline/inflate makes them larger.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gguf/types.h"
#include "engine/model/bundle.h"

namespace withy::bench {

// models/NAME beside this program's tree.
std::string PocketFile(const std::string& name);
inline constexpr char kPocketTarget[] = "withy-pocket-q8_0.gguf";
inline constexpr char kPocketDraft[] = "withy-pocket-draft-q8_0.gguf";

// The model at `path` in a published shape (offline/inflate), in `directory`; made if it is not
// there. Its path. Errors: as inflate::Inflate.
absl::StatusOr<std::string> Inflated(const std::string& path, const std::string& shape,
                                     const std::string& directory);

// The model at `path` with the matrices of its layers as `type`: what reading fewer bits of each
// costs in answers (STI's shards); made if it is not there. Errors: UNIMPLEMENTED (a type that
// cannot be converted), others of reading and writing.
absl::StatusOr<std::string> Requantised(const std::string& path, engine::GgmlType type,
                                        const std::string& directory);

// A weight budget with which half of what can be streamed is. Errors: of reading the file;
// INVALID_ARGUMENT: it cannot be served.
absl::StatusOr<uint64_t> HalfStreamedBudget(const std::string& path);

// The GGUF files of a target and its draft.
struct PairFiles {
  std::string target = PocketFile(kPocketTarget);
  std::string draft = PocketFile(kPocketDraft);
};

// `target` and `draft`: files that take the place of the pocket pair's, if not empty. `shape`: that
// the target is inflated to, and then the draft to `draft_shape`; empty: they are not. Errors: as
// Inflated.
absl::StatusOr<PairFiles> FindPair(const std::string& target, const std::string& draft,
                                   const std::string& shape, const std::string& draft_shape,
                                   const std::string& directory);

// Errors: INVALID_ARGUMENT (vocabularies that differ), naming both files.
absl::Status CheckVocabularies(const engine::ModelBundle& target, const engine::ModelBundle& draft,
                               const PairFiles& files);

}  // namespace withy::bench
