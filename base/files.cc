#include "base/files.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/fnv1a.h"

namespace withy {

namespace fs = std::filesystem;

absl::Status CheckOutput(const std::string& path, const std::vector<std::string>& inputs) {
  std::error_code error;  // "there is no such file" is no error here
  fs::path directory = fs::path(path).parent_path();
  if (directory.empty()) directory = ".";
  if (!fs::is_directory(directory, error)) {
    return absl::NotFoundError(
        absl::StrCat(path, ": there is no directory ", directory.string(), ": make it first"));
  }
  if (fs::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a directory: name a file"));
  }
  const bool there = fs::exists(path, error);
  if (access(directory.c_str(), W_OK) != 0 || (there && access(path.c_str(), W_OK) != 0)) {
    return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be written"));
  }
  for (const std::string& input : inputs) {
    if (there && !input.empty() && fs::equivalent(path, input, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is what is read: give what is written another name"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FileDigest(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  Fnv1a hash;
  std::array<char, 1 << 16> bytes;
  do {
    in.read(bytes.data(), bytes.size());
    hash.AddBytes(std::string_view(bytes.data(), static_cast<size_t>(in.gcount())));
  } while (in);
  if (!in.eof()) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return absl::StrFormat("%016x", hash.value());
}

}  // namespace withy
