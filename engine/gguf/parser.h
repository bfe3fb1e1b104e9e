// Parses and validates the bytes of a GgufFile. For reader.cc and split.cc only.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"

namespace withy::engine {

class GgufParser {
 public:
  // Maps one file and parses it, without the other parts of a split model. Errors: as
  // GgufFile::Open(). Defined in reader.cc.
  static absl::StatusOr<GgufFile> OpenOne(const std::string& path);
  // Fills everything except path and mapping. Errors: as GgufFile::Open(), without the file's name.
  static absl::Status Parse(GgufFile& file);

 private:
  // Parses metadata and tensors of one GGUF.
  static absl::Status ParseTable(GgufFile& file);
  // Adds the tensors of the second GGUF after the first one's data, if there is one
  // (kGgufOwnTensors).
  static absl::Status AddOwnTensors(GgufFile& file);
  static absl::Status ParseHeader(GgufFile& file);
  static absl::Status ParseAlignment(GgufFile& file);
  // Gives tensors of unknown types the bytes up to the next tensor.
  static void SizeUnknownTypes(GgufFile& file, uint64_t data_bytes);
  // Checks every tensor's place and makes its offset relative to the file.
  static absl::Status PlaceTensors(GgufFile& file, uint64_t header_end);
};

}  // namespace withy::engine
