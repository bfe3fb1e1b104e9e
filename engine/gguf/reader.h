// Read-only view of a memory-mapped GGUF file, or of all parts of a split one: metadata, tensor
// table, tensor bytes. Neighbours: split.h joins the parts, writer.h writes such files, quants.h
// converts tensor bytes to floats. Does not compute or know model architectures.
//
//   WITHY_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open("models/pocket.gguf"));
//   WITHY_ASSIGN_OR_RETURN(uint64_t layers, file.GetUint("llama.block_count"));
//   WITHY_ASSIGN_OR_RETURN(const TensorInfo* embed, file.GetTensor("token_embd.weight"));
//   std::span<const uint8_t> bytes = file.Data(*embed);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gguf/types.h"

namespace withy::engine {

// One tensor of the file. dims are in ggml's order: dims[0] is the contiguous dimension (input
// features of a matrix), dims[1] is the number of rows.
struct TensorInfo {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<int64_t> dims;  // 1 to 4 entries, each >= 1
  uint64_t offset = 0;        // of the first byte, from the start of its part
  uint64_t bytes = 0;
  uint32_t part = 0;  // index in GgufFile::parts()

  int64_t cols() const { return dims[0]; }
  int64_t rows() const;  // product of dims[1..]
  int64_t elements() const { return cols() * rows(); }
};

// One metadata entry. `payload` points into the file: the scalar, the string's characters, or the
// array's elements as stored.
struct MetadataEntry {
  std::string_view key;
  GgufValueType type = GgufValueType::kUint32;
  GgufValueType element_type = GgufValueType::kUint32;  // arrays only
  uint64_t count = 1;                                   // elements of an array, else 1
  std::span<const uint8_t> payload;
};

// One file on disk. A model has one, unless it is split.
struct GgufPart {
  std::string path;
  std::span<const uint8_t> bytes;
};

// Immutable after opening, thread-safe. Views are valid while the GgufFile lives, also after a
// move. The file must not be truncated while mapped: reading it then raises SIGBUS.
class GgufFile {
 public:
  // Maps the file and checks its whole structure: afterwards every tensor lies inside the file and
  // every string inside the metadata. `path` of a split model: its first part; the others are found
  // by their names (split.h). Errors: NotFound/PermissionDenied (open; a part is missing),
  // InvalidArgument (not GGUF, version not 2 or 3, truncated, a size, count, type, offset or
  // alignment out of bounds, duplicate key or tensor name, a later part instead of the first, parts
  // that do not belong together), each naming the file, the item, the value and the limit.
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  // The same for bytes that the caller keeps alive; `name` replaces the path in messages. A part of
  // a split model is opened alone.
  static absl::StatusOr<GgufFile> FromBytes(std::span<const uint8_t> bytes, std::string name);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;
  ~GgufFile();

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  uint64_t alignment() const { return alignment_; }
  // Of a split model the first part, which has the metadata.
  std::span<const uint8_t> bytes() const { return bytes_; }
  std::span<const GgufPart> parts() const { return parts_; }

  // Metadata, in file order.
  std::span<const MetadataEntry> metadata() const { return metadata_; }
  const MetadataEntry* FindMetadata(std::string_view key) const;  // null if missing
  bool Has(std::string_view key) const { return FindMetadata(key) != nullptr; }

  // Errors of all getters: NotFound if the key is missing, InvalidArgument if its type or value
  // does not fit; both name file and key.
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  absl::StatusOr<uint64_t> GetUint(std::string_view key) const;  // any integer type, non-negative
  absl::StatusOr<int64_t> GetInt(std::string_view key) const;    // any integer type, in range
  absl::StatusOr<double> GetFloat(std::string_view key) const;   // float32 or float64
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::vector<std::string_view>> GetStringArray(std::string_view key) const;
  // Any integer or bool element type.
  absl::StatusOr<std::vector<int64_t>> GetIntArray(std::string_view key) const;
  // float32 or float64 elements.
  absl::StatusOr<std::vector<float>> GetFloatArray(std::string_view key) const;
  absl::StatusOr<uint64_t> GetArrayCount(std::string_view key) const;

  // Return `fallback` if the key is missing; a present key of a wrong type is still
  // InvalidArgument.
  absl::StatusOr<std::string_view> GetStringOr(std::string_view key,
                                               std::string_view fallback) const;
  absl::StatusOr<uint64_t> GetUintOr(std::string_view key, uint64_t fallback) const;
  absl::StatusOr<int64_t> GetIntOr(std::string_view key, int64_t fallback) const;
  absl::StatusOr<double> GetFloatOr(std::string_view key, double fallback) const;
  absl::StatusOr<bool> GetBoolOr(std::string_view key, bool fallback) const;

  // Tensors, in file order.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  const TensorInfo* FindTensor(std::string_view name) const;  // null if missing
  // Errors: NotFound naming file and tensor.
  absl::StatusOr<const TensorInfo*> GetTensor(std::string_view name) const;
  // The tensor's bytes; `tensor` must come from this file.
  std::span<const uint8_t> Data(const TensorInfo& tensor) const {
    return parts_[tensor.part].bytes.subspan(tensor.offset, tensor.bytes);
  }

 private:
  friend class GgufParser;
  friend class GgufJoiner;
  GgufFile() = default;
  absl::StatusOr<const MetadataEntry*> Require(std::string_view key) const;

  std::string path_;
  std::span<const uint8_t> bytes_;
  std::vector<GgufPart> parts_;  // the first has bytes_
  bool mapped_ = false;          // else the bytes are borrowed
  uint32_t version_ = 0;
  uint64_t alignment_ = kGgufDefaultAlignment;
  std::vector<MetadataEntry> metadata_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, size_t> metadata_index_;  // keys are views into bytes_
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

}  // namespace withy::engine
