// Joins the parts of a split GGUF into one model. Neighbours: reader.h opens each part. gguf-split
// of llama.cpp names the parts NAME-00001-of-00003.gguf and on; the first has the metadata, each
// has its own tensors and the keys split.no, split.count and split.tensors.count.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/gguf/reader.h"

namespace withy::engine {

// The paths of all parts of the model whose first part has this path; only `path` if it is not
// named as a first part. Pure: looks at no file.
std::vector<std::string> GgufPartPaths(const std::string& path);

class GgufJoiner {
 public:
  // Opens the other parts of the model whose first part `file` is, and adds their tensors. Does
  // nothing to a file that is not split. Errors: as GgufFile::Open.
  static absl::Status Join(GgufFile& file);

 private:
  // Checks the keys of the part with this index against those of the first.
  static absl::Status CheckPart(const GgufFile& first, const GgufFile& part, uint64_t index);
  static absl::Status Add(GgufFile& first, GgufFile part);
};

}  // namespace withy::engine
