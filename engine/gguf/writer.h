// Writes GGUF files (version 3) atomically: metadata of every type, tensors from memory or
// streamed. Neighbours: reader.h reads them, quants.h makes tensor bytes.
//
//   GgufWriter writer;
//   writer.SetString("general.architecture", "llama");
//   writer.Set<uint32_t>("llama.block_count", 8);
//   writer.AddTensor("token_embd.weight", GgmlType::kQ8_0, {512, 4096}, bytes);
//   WITHY_RETURN_IF_ERROR(writer.Write("models/pocket.gguf"));
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/types.h"

namespace withy::engine {

// Receives the next bytes of a streamed tensor. The source must return its error.
using TensorSink = std::function<absl::Status(std::span<const uint8_t>)>;
// Produces all bytes of one tensor, in order, in pieces of any size. Called once per Write().
using TensorSource = std::function<absl::Status(const TensorSink&)>;

// Not thread-safe. Setting a key again replaces its value but not its position.
class GgufWriter {
 public:
  // T: bool, (u)int8_t … (u)int64_t, float, double.
  template <typename T>
  void Set(std::string_view key, T value);
  template <typename T>
  void SetArray(std::string_view key, std::span<const T> values);
  void SetString(std::string_view key, std::string_view value);
  void SetStringArray(std::string_view key, std::span<const std::string> values);

  // Copies all metadata entries of `file`, except keys for which `skip` returns true, and those of
  // its storage (DescribesStorage).
  void CopyMetadata(const GgufFile& file,
                    const std::function<bool(std::string_view)>& skip = nullptr);

  // Tensors whose names begin with "withy." go into a second GGUF after the data of the first one
  // (kGgufOwnTensors): other runtimes refuse files with unknown tensors but do not look there.
  // `data` is borrowed until Write() returns.
  void AddTensor(std::string name, GgmlType type, std::vector<int64_t> dims,
                 std::span<const uint8_t> data);
  void AddTensor(std::string name, GgmlType type, std::vector<int64_t> dims, TensorSource source);

  // Writes a temporary file beside `path`, syncs it, renames it to `path`, syncs the directory. On
  // any error `path` is unchanged and the temporary file is removed. `progress`, if set, is called
  // with (bytes written, total bytes) at most once per MiB. Errors: InvalidArgument (duplicate or
  // empty tensor name, dims that do not fit the type, a tensor with too many or too few bytes for
  // its shape, an alignment that is not a power of two >= 8), ResourceExhausted or others of the
  // file system, naming the path.
  absl::Status Write(const std::string& path,
                     const std::function<void(uint64_t, uint64_t)>& progress = nullptr) const;

 private:
  struct Entry {
    std::string key;
    std::string encoded;  // value type and value as stored in the file
  };
  struct Tensor {
    std::string name;
    GgmlType type;
    std::vector<int64_t> dims;
    TensorSource source;
  };

  // One GGUF: everything before its tensor data, padded, and the size of each tensor.
  struct Table {
    std::vector<const Tensor*> tensors;
    std::string header;
    std::vector<uint64_t> tensor_bytes;
    uint64_t alignment = 0;
    uint64_t bytes = 0;  // total
  };

  void Put(std::string_view key, std::string encoded);
  absl::StatusOr<uint64_t> Alignment() const;
  static absl::StatusOr<Table> Layout(std::span<const Entry> entries,
                                      std::vector<const Tensor*> tensors, uint64_t alignment);
  // One table, or the table of foreign tensors and then the table of ours.
  absl::StatusOr<std::vector<Table>> Tables(uint64_t alignment) const;

  std::vector<Entry> entries_;
  std::vector<Tensor> tensors_;
};

}  // namespace withy::engine
