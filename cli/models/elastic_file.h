// The elastic form of a downloaded GGUF, made by an overlay that ships with withy (models/). It
// lies beside the plain file and is made once. Neighbours: models.cc has the commands,
// engine/weights/overlay.h applies overlays, model_fetch.h downloads. A TLM that ships for the
// elastic file, NAME.tlm.gguf beside NAME.overlay.gguf, is copied to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/models/model_fetch.h"

namespace withy::cli {

struct ElasticFile {
  // What to serve: the elastic file, or the plain one if no overlay is for it.
  std::string path = {};
  std::string overlay = {};          // file name of the overlay; empty: none is for the plain file
  std::vector<int32_t> levels = {};  // in per cent, without the full one
  bool made = false;                 // by this call, not by an earlier one
  std::string tlm = {};  // of the elastic file, beside it, where the service looks; may be empty
};

// "FILE.elastic.gguf" of "FILE.gguf".
std::string ElasticPath(const std::string& plain);

// Looks in `overlay_dir` for the *.overlay.gguf that was made for `plain`, known by its SHA-256,
// and applies it, unless an earlier call did and the result is whole: it has the SHA-256 that the
// file ELASTIC.sha256 beside it says (as sha256sum writes it), and was made of the same two files.
// A missing directory has no overlays. May be called by several processes at once. Errors: as
// engine::ApplyOverlay; those of the file system and of an overlay that cannot be read, if no other
// is for `plain`; each says how to serve the plain file.
absl::StatusOr<ElasticFile> EnsureElastic(const std::string& plain, const std::string& overlay_dir,
                                          const FetchProgress& progress);

}  // namespace withy::cli
