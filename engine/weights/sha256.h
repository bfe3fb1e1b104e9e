// SHA-256 of files and of bytes in memory, as sha256sum prints it. Neighbours: overlay.cc knows by
// it which file an overlay belongs to; cli/models/ checks downloads. source_identity.h has the
// faster digest that packed files are known by.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"

namespace withy::engine {

// 64 hexadecimal digits in lower case.
std::string Sha256Of(std::span<const uint8_t> bytes);

// The same of all parts of a model, one after the other, as `cat PART... | sha256sum` prints it.
std::string Sha256Of(const GgufFile& file);

// The same of a file's content. Errors: of the file system, naming the path.
absl::StatusOr<std::string> Sha256OfFile(const std::string& path);

}  // namespace withy::engine
