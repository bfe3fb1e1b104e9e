// Read-only view of a memory-mapped safetensors file: validated JSON header and tensor bytes.
// Neighbour: import_mobilebert.h turns tensors into a TLM. Knows no models; trusts nothing in the
// file.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace withy::engine {

struct SafeTensor {
  std::string type;            // "F32", "BF16", "I64" ...
  std::vector<int64_t> shape;  // outermost first; empty: a scalar
  uint64_t offset = 0;         // of the first byte, from the start of the file
  uint64_t bytes = 0;

  int64_t elements() const;
};

// Immutable after opening; thread-safe. The file must not be truncated while mapped.
class SafetensorsFile {
 public:
  // Checks the whole structure: afterwards every tensor lies inside the file, has the length
  // implied by its type and shape, and overlaps no other. Errors: NotFound/PermissionDenied (open),
  // InvalidArgument naming file, tensor, value and limit.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  // The same for bytes that the caller keeps alive; `name` replaces the path in messages.
  static absl::StatusOr<SafetensorsFile> FromBytes(std::span<const uint8_t> bytes,
                                                   std::string name);

  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;
  ~SafetensorsFile();

  const std::string& path() const { return path_; }
  const std::map<std::string, SafeTensor, std::less<>>& tensors() const { return tensors_; }
  const SafeTensor* Find(std::string_view name) const;  // null if missing

  // Converts a tensor of type F32, F16, BF16 or F64 to floats. Errors: NotFound (missing),
  // Unimplemented (its type), InvalidArgument (values.size() is not its number of elements); each
  // names file and tensor.
  absl::Status Read(std::string_view name, std::span<float> values) const;

 private:
  SafetensorsFile() = default;
  absl::Status Parse();

  std::string path_;
  void* mapping_ = nullptr;  // bytes_.size() bytes; null if the bytes are borrowed
  std::span<const uint8_t> bytes_;
  std::map<std::string, SafeTensor, std::less<>> tensors_;
};

}  // namespace withy::engine
