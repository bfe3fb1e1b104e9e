#include "engine/gguf/reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/gguf/parser.h"
#include "engine/gguf/split.h"

namespace withy::engine {
namespace {

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// An integer of any width; nullopt for unsigned 64-bit values above INT64_MAX.
std::optional<int64_t> LoadInt(GgufValueType type, const uint8_t* bytes) {
  switch (type) {
    case GgufValueType::kUint8:
      return Load<uint8_t>(bytes);
    case GgufValueType::kInt8:
      return Load<int8_t>(bytes);
    case GgufValueType::kUint16:
      return Load<uint16_t>(bytes);
    case GgufValueType::kInt16:
      return Load<int16_t>(bytes);
    case GgufValueType::kUint32:
      return Load<uint32_t>(bytes);
    case GgufValueType::kInt32:
      return Load<int32_t>(bytes);
    case GgufValueType::kInt64:
      return Load<int64_t>(bytes);
    case GgufValueType::kUint64: {
      const uint64_t value = Load<uint64_t>(bytes);
      if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

bool IsInteger(GgufValueType type) {
  return ScalarBytes(type) != 0 && type != GgufValueType::kFloat32 &&
         type != GgufValueType::kFloat64 && type != GgufValueType::kBool;
}

bool IsFloat(GgufValueType type) {
  return type == GgufValueType::kFloat32 || type == GgufValueType::kFloat64;
}

double LoadFloat(GgufValueType type, const uint8_t* bytes) {
  return type == GgufValueType::kFloat32 ? Load<float>(bytes) : Load<double>(bytes);
}

// The value of `result`, or `fallback` if the key was missing.
template <typename T>
absl::StatusOr<T> OrFallback(absl::StatusOr<T> result, T fallback) {
  if (absl::IsNotFound(result.status())) return fallback;
  return result;
}

absl::Status WrongType(const GgufFile& file, const MetadataEntry& entry, std::string_view wanted) {
  std::string type(ValueTypeName(entry.type));
  if (entry.type == GgufValueType::kArray) {
    absl::StrAppend(&type, " of ", ToAbsl(ValueTypeName(entry.element_type)));
  }
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": metadata key \"",
                                                 ToAbsl(entry.key), "\" is ", type, ", expected ",
                                                 ToAbsl(wanted)));
}

}  // namespace

int64_t TensorInfo::rows() const {
  int64_t rows = 1;
  for (size_t i = 1; i < dims.size(); ++i) rows *= dims[i];
  return rows;
}

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  WITHY_ASSIGN_OR_RETURN(GgufFile file, GgufParser::OpenOne(path));
  WITHY_RETURN_IF_ERROR(GgufJoiner::Join(file));
  return file;
}

absl::StatusOr<GgufFile> GgufParser::OpenOne(const std::string& path) {
  // Non-blocking, so that a pipe is refused instead of waited for.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoError(absl::StrCat("open model file ", path));
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": is not a GGUF file (",
        S_ISDIR(info.st_mode)   ? "it is a folder: name the .gguf file in it; a folder of "
                                  "safetensors is converted with "
                                  "convert_hf_to_gguf.py of llama.cpp"
        : S_ISREG(info.st_mode) ? "it is empty: download or copy it again"
                                : "it is not a regular file",
        ")"));
  }
  GgufFile file;
  const size_t bytes = static_cast<size_t>(info.st_size);
  void* mapping = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  const absl::Status mapped =
      mapping == MAP_FAILED ? ErrnoError(absl::StrCat("map model file ", path)) : absl::OkStatus();
  close(fd);
  WITHY_RETURN_IF_ERROR(mapped);
  file.mapped_ = true;
  file.bytes_ = {static_cast<const uint8_t*>(mapping), bytes};
  file.parts_ = {{path, file.bytes_}};
  file.path_ = path;
  WITHY_RETURN_IF_ERROR(Annotate(GgufParser::Parse(file), path));
  return file;
}

absl::StatusOr<GgufFile> GgufFile::FromBytes(std::span<const uint8_t> bytes, std::string name) {
  GgufFile file;
  file.bytes_ = bytes;
  file.path_ = std::move(name);
  file.parts_ = {{file.path_, bytes}};
  WITHY_RETURN_IF_ERROR(Annotate(GgufParser::Parse(file), file.path_));
  return file;
}

GgufFile::GgufFile(GgufFile&& other) noexcept { *this = std::move(other); }

GgufFile& GgufFile::operator=(GgufFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(parts_, other.parts_);
  std::swap(mapped_, other.mapped_);
  std::swap(version_, other.version_);
  std::swap(alignment_, other.alignment_);
  std::swap(metadata_, other.metadata_);
  std::swap(tensors_, other.tensors_);
  std::swap(metadata_index_, other.metadata_index_);
  std::swap(tensor_index_, other.tensor_index_);
  return *this;
}

GgufFile::~GgufFile() {
  if (!mapped_) return;
  for (const GgufPart& part : parts_) {
    munmap(const_cast<uint8_t*>(part.bytes.data()), part.bytes.size());
  }
}

const MetadataEntry* GgufFile::FindMetadata(std::string_view key) const {
  const auto found = metadata_index_.find(key);
  return found == metadata_index_.end() ? nullptr : &metadata_[found->second];
}

absl::StatusOr<const MetadataEntry*> GgufFile::Require(std::string_view key) const {
  const MetadataEntry* entry = FindMetadata(key);
  if (entry != nullptr) return entry;
  return absl::NotFoundError(
      absl::StrCat(path_, ": metadata key \"", ToAbsl(key), "\" is missing"));
}

absl::StatusOr<std::string_view> GgufFile::GetString(std::string_view key) const {
  WITHY_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key));
  if (entry->type != GgufValueType::kString) return WrongType(*this, *entry, "string");
  return std::string_view(reinterpret_cast<const char*>(entry->payload.data()),
                          entry->payload.size());
}

absl::StatusOr<uint64_t> GgufFile::GetUint(std::string_view key) const {
  WITHY_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key));
  if (entry->type == GgufValueType::kUint64) return Load<uint64_t>(entry->payload.data());
  WITHY_ASSIGN_OR_RETURN(const int64_t value, GetInt(key));
  if (value >= 0) return static_cast<uint64_t>(value);
  return absl::InvalidArgumentError(absl::StrCat(path_, ": metadata key \"", ToAbsl(key), "\" is ",
                                                 value, ", it must not be negative"));
}

absl::StatusOr<int64_t> GgufFile::GetInt(std::string_view key) const {
  WITHY_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key));
  if (!IsInteger(entry->type)) return WrongType(*this, *entry, "an integer");
  const std::optional<int64_t> value = LoadInt(entry->type, entry->payload.data());
  if (!value.has_value()) return WrongType(*this, *entry, "an integer below 2^63");
  return *value;
}

absl::StatusOr<double> GgufFile::GetFloat(std::string_view key) const {
  WITHY_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key));
  if (!IsFloat(entry->type)) return WrongType(*this, *entry, "float32 or float64");
  return LoadFloat(entry->type, entry->payload.data());
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key) const {
  WITHY_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key));
  if (entry->type != GgufValueType::kBool) return WrongType(*this, *entry, "bool");
  return entry->payload[0] != 0;
}

absl::StatusOr<std::vector<std::string_view>> GgufFile::GetStringArray(std::string_view key) const {
  WITHY_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key));
  if (entry->type != GgufValueType::kArray || entry->element_type != GgufValueType::kString) {
    return WrongType(*this, *entry, "array of string");
  }
  std::vector<std::string_view> strings;
  strings.reserve(entry->count);
  const uint8_t* next = entry->payload.data();
  for (uint64_t i = 0; i < entry->count; ++i) {
    const uint64_t length = Load<uint64_t>(next);
    strings.emplace_back(reinterpret_cast<const char*>(next + sizeof(length)), length);
    next += sizeof(length) + length;
  }
  return strings;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetIntArray(std::string_view key) const {
  WITHY_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key));
  const GgufValueType type = entry->element_type;
  const bool is_bool = type == GgufValueType::kBool;
  if (entry->type != GgufValueType::kArray || !(IsInteger(type) || is_bool)) {
    return WrongType(*this, *entry, "array of integers");
  }
  std::vector<int64_t> values;
  values.reserve(entry->count);
  const uint8_t* next = entry->payload.data();
  for (uint64_t i = 0; i < entry->count; ++i, next += ScalarBytes(type)) {
    const std::optional<int64_t> value = LoadInt(is_bool ? GgufValueType::kUint8 : type, next);
    if (!value.has_value()) return WrongType(*this, *entry, "array of integers below 2^63");
    values.push_back(*value);
  }
  return values;
}

absl::StatusOr<std::vector<float>> GgufFile::GetFloatArray(std::string_view key) const {
  WITHY_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key));
  if (entry->type != GgufValueType::kArray || !IsFloat(entry->element_type)) {
    return WrongType(*this, *entry, "array of float32 or float64");
  }
  std::vector<float> values;
  values.reserve(entry->count);
  const uint8_t* next = entry->payload.data();
  for (uint64_t i = 0; i < entry->count; ++i, next += ScalarBytes(entry->element_type)) {
    values.push_back(static_cast<float>(LoadFloat(entry->element_type, next)));
  }
  return values;
}

absl::StatusOr<uint64_t> GgufFile::GetArrayCount(std::string_view key) const {
  WITHY_ASSIGN_OR_RETURN(const MetadataEntry* entry, Require(key));
  if (entry->type != GgufValueType::kArray) return WrongType(*this, *entry, "array");
  return entry->count;
}

absl::StatusOr<std::string_view> GgufFile::GetStringOr(std::string_view key,
                                                       std::string_view fallback) const {
  return OrFallback(GetString(key), fallback);
}
absl::StatusOr<uint64_t> GgufFile::GetUintOr(std::string_view key, uint64_t fallback) const {
  return OrFallback(GetUint(key), fallback);
}
absl::StatusOr<int64_t> GgufFile::GetIntOr(std::string_view key, int64_t fallback) const {
  return OrFallback(GetInt(key), fallback);
}
absl::StatusOr<double> GgufFile::GetFloatOr(std::string_view key, double fallback) const {
  return OrFallback(GetFloat(key), fallback);
}
absl::StatusOr<bool> GgufFile::GetBoolOr(std::string_view key, bool fallback) const {
  return OrFallback(GetBool(key), fallback);
}

const TensorInfo* GgufFile::FindTensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

absl::StatusOr<const TensorInfo*> GgufFile::GetTensor(std::string_view name) const {
  const TensorInfo* tensor = FindTensor(name);
  if (tensor != nullptr) return tensor;
  return absl::NotFoundError(absl::StrCat(path_, ": tensor \"", ToAbsl(name), "\" is missing"));
}

}  // namespace withy::engine
