// Keys of a model's shape in GGUF metadata, and errors about them. Neighbours: shape.cc,
// rope_reader.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/gguf/reader.h"

namespace withy::engine {

class ShapeKeys {
 public:
  // The file must outlive it. Keys begin with the name of the architecture.
  ShapeKeys(const GgufFile& file, std::string architecture)
      : file_(file), architecture_(std::move(architecture)) {}

  const GgufFile& file() const { return file_; }

  std::string Key(std::string_view suffix) const {
    return absl::StrCat(architecture_, ".", ToAbsl(suffix));
  }

  absl::Status Wrong(std::string_view key, int64_t value, std::string_view wanted) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": ", ToAbsl(key), " is ", value,
                                                   "; it must be ", ToAbsl(wanted)));
  }

  // A number from 0 on; `fallback` if the key is missing.
  absl::Status ReadFactor(std::string_view suffix, float fallback, float* out) const {
    const std::string key = Key(suffix);
    WITHY_ASSIGN_OR_RETURN(const double value, file_.GetFloatOr(key, fallback));
    if (!(value >= 0.0 && value < 1e9)) {
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": ", key, " is ", value,
                                                     "; it must be at least 0 and below 1e9"));
    }
    *out = static_cast<float>(value);
    return absl::OkStatus();
  }

 private:
  const GgufFile& file_;
  const std::string architecture_;
};

}  // namespace withy::engine
