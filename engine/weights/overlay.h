// Makes a plain GGUF elastic by an overlay: a small GGUF that has no weights of the model, only the
// order of its units, the extents of its levels and their LoRA (docs/formats-elastic.md, Overlays).
// Neighbours: levels.h reads levels; `withyctl models overlay` and `withyctl models get` call this.
//
//   WITHY_ASSIGN_OR_RETURN(const GgufFile plain, GgufFile::Open("plain.gguf"));
//   WITHY_ASSIGN_OR_RETURN(const GgufFile overlay, GgufFile::Open("plain.overlay.gguf"));
//   WITHY_RETURN_IF_ERROR(ApplyOverlay(plain, overlay, {}, "elastic.gguf"));
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/gguf/matrix_types.h"
#include "engine/gguf/reader.h"

namespace withy::engine {

// Keys of an overlay. SHA-256 of the whole plain file; u32[layers * heads] and u32[layers * d_ff]:
// position p of a layer has unit value[p] of the plain file. The elastic file keeps the first one.
inline constexpr std::string_view kOverlaySource = "withy.overlay.source_sha256";
inline constexpr std::string_view kOverlayHeads = "withy.overlay.heads";
inline constexpr std::string_view kOverlayNeurons = "withy.overlay.neurons";
// Keys of an elastic file that was made by one: the overlay's SHA-256, and kOverlayRevision (u32).
inline constexpr std::string_view kOverlayApplied = "withy.overlay.sha256";
inline constexpr std::string_view kOverlayAppliedBy = "withy.overlay.revision";
// Changes when ApplyOverlay writes other bytes than before.
inline constexpr uint32_t kOverlayRevision = 1;

struct OverlayOptions {
  // Type of all matrices whose rows or columns move. nullopt: each keeps its type and its blocks
  // are copied bit for bit; where columns leave their blocks (ffn_down, heads in K-quants), the
  // matrix becomes Q8_0.
  MatrixType type = {};
  // Matrices whose units stay where they are get that type, too, and without one floats become
  // Q8_0: for a model that is elasticized.
  bool every_matrix = false;
  // SHA-256 of the plain file, where the caller has just computed it; empty: it is computed here.
  std::string source_sha256 = {};
  // (bytes written, bytes in total)
  std::function<void(uint64_t, uint64_t)> progress = {};
};

// Writes the elastic model to `out` atomically, tensor by tensor; needs memory for a row of a
// matrix. Its full level computes what `plain` computes. Errors, each naming file, key or tensor,
// and what to do: as PlanLayout for `plain`; FAILED_PRECONDITION (the overlay is for another file),
// NOT_FOUND and INVALID_ARGUMENT (a key or tensor of the overlay is missing, of another shape, or
// no permutation that keeps KV groups; a level that cannot be read; `plain` has levels already);
// as GgufWriter::Write.
absl::Status ApplyOverlay(const GgufFile& plain, const GgufFile& overlay,
                          const OverlayOptions& options, const std::string& out);

// Whether a GGUF is an overlay.
bool IsOverlay(const GgufFile& file);

}  // namespace withy::engine
