#include "engine/gguf/writer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/gguf/output_file.h"
#include "engine/gguf/quants.h"

namespace withy::engine {
namespace {

constexpr uint32_t kWrittenVersion = 3;
constexpr size_t kMaxWrittenNameBytes = 63;  // other runtimes refuse longer names
constexpr uint64_t kProgressStep = 1 << 20;

template <typename T>
constexpr GgufValueType ValueTypeOf() {
  if constexpr (std::is_same_v<T, bool>) return GgufValueType::kBool;
  if constexpr (std::is_same_v<T, uint8_t>) return GgufValueType::kUint8;
  if constexpr (std::is_same_v<T, int8_t>) return GgufValueType::kInt8;
  if constexpr (std::is_same_v<T, uint16_t>) return GgufValueType::kUint16;
  if constexpr (std::is_same_v<T, int16_t>) return GgufValueType::kInt16;
  if constexpr (std::is_same_v<T, uint32_t>) return GgufValueType::kUint32;
  if constexpr (std::is_same_v<T, int32_t>) return GgufValueType::kInt32;
  if constexpr (std::is_same_v<T, uint64_t>) return GgufValueType::kUint64;
  if constexpr (std::is_same_v<T, int64_t>) return GgufValueType::kInt64;
  if constexpr (std::is_same_v<T, float>) return GgufValueType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return GgufValueType::kFloat64;
}

template <typename T>
void AppendScalar(std::string& out, T value) {
  static_assert(sizeof(bool) == 1);
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void AppendType(std::string& out, GgufValueType type) {
  AppendScalar(out, static_cast<uint32_t>(type));
}

void AppendString(std::string& out, std::string_view text) {
  AppendScalar<uint64_t>(out, text.size());
  out.append(text);
}

std::span<const uint8_t> AsBytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Bytes of a tensor of this type and shape. Errors: INVALID_ARGUMENT.
absl::StatusOr<uint64_t> TensorBytes(GgmlType type, std::span<const int64_t> dims) {
  if (dims.empty() || dims.size() > kGgufMaxDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", dims.size(), " dimensions, limits 1 to ", kGgufMaxDims));
  }
  WITHY_ASSIGN_OR_RETURN(uint64_t bytes, RowBytes(type, dims[0]));
  for (const int64_t dim : dims) {
    if (dim < 1) {
      return absl::InvalidArgumentError(absl::StrCat("has dimension ", dim, ", limit 1"));
    }
  }
  for (const int64_t dim : dims.subspan(1)) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) {
      return absl::InvalidArgumentError("is too large for 64-bit sizes");
    }
  }
  return bytes;
}

}  // namespace

void GgufWriter::Put(std::string_view key, std::string encoded) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  if (found != entries_.end()) {
    found->encoded = std::move(encoded);
  } else {
    entries_.push_back({std::string(key), std::move(encoded)});
  }
}

template <typename T>
void GgufWriter::Set(std::string_view key, T value) {
  std::string encoded;
  AppendType(encoded, ValueTypeOf<T>());
  AppendScalar(encoded, value);
  Put(key, std::move(encoded));
}

template <typename T>
void GgufWriter::SetArray(std::string_view key, std::span<const T> values) {
  std::string encoded;
  AppendType(encoded, GgufValueType::kArray);
  AppendType(encoded, ValueTypeOf<T>());
  AppendScalar<uint64_t>(encoded, values.size());
  encoded.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  Put(key, std::move(encoded));
}

#define WITHY_GGUF_SCALAR(T)                             \
  template void GgufWriter::Set<T>(std::string_view, T); \
  template void GgufWriter::SetArray<T>(std::string_view, std::span<const T>);
WITHY_GGUF_SCALAR(bool)
WITHY_GGUF_SCALAR(uint8_t)
WITHY_GGUF_SCALAR(int8_t)
WITHY_GGUF_SCALAR(uint16_t)
WITHY_GGUF_SCALAR(int16_t)
WITHY_GGUF_SCALAR(uint32_t)
WITHY_GGUF_SCALAR(int32_t)
WITHY_GGUF_SCALAR(uint64_t)
WITHY_GGUF_SCALAR(int64_t)
WITHY_GGUF_SCALAR(float)
WITHY_GGUF_SCALAR(double)
#undef WITHY_GGUF_SCALAR

void GgufWriter::SetString(std::string_view key, std::string_view value) {
  std::string encoded;
  AppendType(encoded, GgufValueType::kString);
  AppendString(encoded, value);
  Put(key, std::move(encoded));
}

void GgufWriter::SetStringArray(std::string_view key, std::span<const std::string> values) {
  std::string encoded;
  AppendType(encoded, GgufValueType::kArray);
  AppendType(encoded, GgufValueType::kString);
  AppendScalar<uint64_t>(encoded, values.size());
  for (const std::string& value : values) AppendString(encoded, value);
  Put(key, std::move(encoded));
}

void GgufWriter::CopyMetadata(const GgufFile& file,
                              const std::function<bool(std::string_view)>& skip) {
  for (const MetadataEntry& entry : file.metadata()) {
    if (DescribesStorage(entry.key) || (skip && skip(entry.key))) continue;
    std::string encoded;
    AppendType(encoded, entry.type);
    if (entry.type == GgufValueType::kArray) {
      AppendType(encoded, entry.element_type);
      AppendScalar<uint64_t>(encoded, entry.count);
    }
    if (entry.type == GgufValueType::kString) {
      AppendScalar<uint64_t>(encoded, entry.payload.size());
    }
    encoded.append(reinterpret_cast<const char*>(entry.payload.data()), entry.payload.size());
    Put(entry.key, std::move(encoded));
  }
}

void GgufWriter::AddTensor(std::string name, GgmlType type, std::vector<int64_t> dims,
                           std::span<const uint8_t> data) {
  AddTensor(std::move(name), type, std::move(dims),
            [data](const TensorSink& sink) { return sink(data); });
}

void GgufWriter::AddTensor(std::string name, GgmlType type, std::vector<int64_t> dims,
                           TensorSource source) {
  tensors_.push_back({std::move(name), type, std::move(dims), std::move(source)});
}

absl::StatusOr<uint64_t> GgufWriter::Alignment() const {
  for (const Entry& entry : entries_) {
    if (entry.key != "general.alignment") continue;
    uint32_t value = 0;
    std::string expected;
    AppendType(expected, GgufValueType::kUint32);
    const bool is_uint32 = entry.encoded.size() == 8 && entry.encoded.starts_with(expected);
    if (is_uint32) std::memcpy(&value, entry.encoded.data() + 4, sizeof(value));
    if (!is_uint32 || !std::has_single_bit(value) || value < 8 || value > kGgufMaxAlignment) {
      return absl::InvalidArgumentError(absl::StrCat(
          "general.alignment must be a uint32 power of two from 8 to ", kGgufMaxAlignment));
    }
    return value;
  }
  return kGgufDefaultAlignment;
}

absl::StatusOr<GgufWriter::Table> GgufWriter::Layout(std::span<const Entry> entries,
                                                     std::vector<const Tensor*> tensors,
                                                     uint64_t alignment) {
  Table table;
  std::string& header = table.header;
  AppendScalar(header, kGgufMagic);
  AppendScalar(header, kWrittenVersion);
  AppendScalar<uint64_t>(header, tensors.size());
  AppendScalar<uint64_t>(header, entries.size());
  for (const Entry& entry : entries) {
    AppendString(header, entry.key);
    header.append(entry.encoded);
  }
  std::set<std::string_view> names;
  uint64_t offset = 0;
  for (const Tensor* tensor : tensors) {
    if (tensor->name.empty() || tensor->name.size() > kMaxWrittenNameBytes) {
      return absl::InvalidArgumentError(absl::StrCat("tensor name \"", tensor->name, "\" has ",
                                                     tensor->name.size(), " bytes, limits 1 to ",
                                                     kMaxWrittenNameBytes));
    }
    if (!names.insert(tensor->name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", tensor->name, "\" is added twice"));
    }
    const absl::StatusOr<uint64_t> bytes = TensorBytes(tensor->type, tensor->dims);
    if (!bytes.ok()) {
      return Annotate(bytes.status(), absl::StrCat("tensor \"", tensor->name, "\""));
    }
    table.tensor_bytes.push_back(*bytes);
    AppendString(header, tensor->name);
    AppendScalar(header, static_cast<uint32_t>(tensor->dims.size()));
    for (const int64_t dim : tensor->dims) AppendScalar(header, dim);
    AppendScalar(header, static_cast<uint32_t>(tensor->type));
    AppendScalar(header, offset);
    offset += AlignUp(*bytes, alignment);
  }
  header.append(AlignUp(header.size(), alignment) - header.size(), '\0');
  table.tensors = std::move(tensors);
  table.alignment = alignment;
  table.bytes = header.size() + offset;
  return table;
}

absl::StatusOr<std::vector<GgufWriter::Table>> GgufWriter::Tables(uint64_t alignment) const {
  std::vector<const Tensor*> plain;
  std::vector<const Tensor*> own;
  for (const Tensor& tensor : tensors_) {
    (tensor.name.starts_with(kGgufOwnPrefix) ? own : plain).push_back(&tensor);
  }
  std::vector<Entry> entries = entries_;
  std::erase_if(entries, [](const Entry& entry) { return entry.key == kGgufOwnTensors; });
  std::vector<Table> tables;
  if (own.empty()) {
    WITHY_ASSIGN_OR_RETURN(tables.emplace_back(), Layout(entries, plain, alignment));
    return tables;
  }
  const auto where = [](uint64_t offset) {
    std::string encoded;
    AppendType(encoded, GgufValueType::kUint64);
    AppendScalar(encoded, offset);
    return encoded;
  };
  entries.push_back({std::string(kGgufOwnTensors), where(0)});
  WITHY_ASSIGN_OR_RETURN(const Table measured, Layout(entries, plain, alignment));
  entries.back().encoded = where(measured.bytes);
  WITHY_ASSIGN_OR_RETURN(tables.emplace_back(), Layout(entries, plain, alignment));
  WITHY_ASSIGN_OR_RETURN(tables.emplace_back(), Layout({}, own, kGgufDefaultAlignment));
  return tables;
}

absl::Status GgufWriter::Write(const std::string& path,
                               const std::function<void(uint64_t, uint64_t)>& progress) const {
  const absl::StatusOr<uint64_t> alignment = Alignment();
  if (!alignment.ok()) return Annotate(alignment.status(), path);
  const absl::StatusOr<std::vector<Table>> tables = Tables(*alignment);
  if (!tables.ok()) return Annotate(tables.status(), path);
  uint64_t total = 0;
  for (const Table& table : *tables) total += table.bytes;

  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, OutputFile::Create(path));
  uint64_t reported = 0;
  for (const Table& table : *tables) {
    WITHY_RETURN_IF_ERROR(file->Append(AsBytes(table.header)));
    for (size_t i = 0; i < table.tensors.size(); ++i) {
      const std::string& name = table.tensors[i]->name;
      const uint64_t bytes = table.tensor_bytes[i];
      uint64_t left = bytes;
      const TensorSink sink = [&](std::span<const uint8_t> piece) -> absl::Status {
        if (piece.size() > left) {
          return absl::InvalidArgumentError(absl::StrCat(
              path, ": tensor \"", name, "\" has more than the ", bytes, " bytes of its shape"));
        }
        left -= piece.size();
        WITHY_RETURN_IF_ERROR(file->Append(piece));
        if (progress && file->bytes_written() - reported >= kProgressStep) {
          reported = file->bytes_written();
          progress(reported, total);
        }
        return absl::OkStatus();
      };
      WITHY_RETURN_IF_ERROR(table.tensors[i]->source(sink));
      if (left != 0) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", name, "\" lacks ", left,
                                                       " of the ", bytes, " bytes of its shape"));
      }
      const std::string padding(AlignUp(bytes, table.alignment) - bytes, '\0');
      WITHY_RETURN_IF_ERROR(file->Append(AsBytes(padding)));
    }
  }
  return file->Commit();
}

}  // namespace withy::engine
