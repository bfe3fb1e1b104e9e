#include "engine/encoder/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status.h"
#include "base/strings.h"
#include "base/unique_fd.h"
#include "engine/gguf/quants.h"

namespace withy::engine {
namespace {

using Json = nlohmann::json;

// Format: u64 header length, JSON header, tensor bytes. https://huggingface.co/docs/safetensors
constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = uint64_t{64} << 20;
constexpr int kMaxDepth = 8;  // JSON nesting; the format needs 3
constexpr size_t kMaxDims = 8;

struct TypeBytes {
  std::string_view name;
  uint64_t bytes;
};
constexpr std::array<TypeBytes, 14> kTypes = {{{"F64", 8},
                                               {"F32", 4},
                                               {"F16", 2},
                                               {"BF16", 2},
                                               {"I64", 8},
                                               {"I32", 4},
                                               {"I16", 2},
                                               {"I8", 1},
                                               {"U64", 8},
                                               {"U32", 4},
                                               {"U16", 2},
                                               {"U8", 1},
                                               {"BOOL", 1},
                                               {"F8_E4M3", 1}}};

// nullopt if the value is not an integer from 0 to 2^62.
std::optional<int64_t> Natural(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const uint64_t n = value.get<uint64_t>();
  if (n > uint64_t{1} << 62) return std::nullopt;
  return static_cast<int64_t>(n);
}

// Bytes of `shape` elements of the type; nullopt if the type is unknown or the size overflows.
std::optional<uint64_t> BytesOf(std::string_view type, const std::vector<int64_t>& shape) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [type](const TypeBytes& t) { return t.name == type; });
  if (found == kTypes.end()) return std::nullopt;
  uint64_t bytes = found->bytes;
  for (const int64_t dim : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) return std::nullopt;
  }
  return bytes;
}

// Parses one entry of the header; `data_bytes` bytes follow the header.
absl::StatusOr<SafeTensor> ParseTensor(const Json& entry, uint64_t data_bytes) {
  const auto bad = [](const std::string& what) { return absl::InvalidArgumentError(what); };
  if (!entry.is_object()) return bad("is not an object");
  const auto type = entry.find("dtype");
  const auto shape = entry.find("shape");
  const auto offsets = entry.find("data_offsets");
  if (type == entry.end() || !type->is_string()) return bad("has no dtype string");
  if (shape == entry.end() || !shape->is_array()) return bad("has no shape array");
  if (shape->size() > kMaxDims) {
    return bad(absl::StrCat("has ", shape->size(), " dimensions, limit ", kMaxDims));
  }
  SafeTensor tensor{.type = type->get<std::string>(), .shape = {}};
  for (const Json& dim : *shape) {
    const std::optional<int64_t> n = Natural(dim);
    if (!n) return bad("has a dimension that is not an integer from 0 to 2^62");
    tensor.shape.push_back(*n);
  }
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2) {
    return bad("has no pair of data_offsets");
  }
  const std::optional<int64_t> begin = Natural((*offsets)[0]);
  const std::optional<int64_t> end = Natural((*offsets)[1]);
  if (!begin || !end || *begin > *end || static_cast<uint64_t>(*end) > data_bytes) {
    return bad(absl::StrCat("has data_offsets that do not lie in order within the file's ",
                            data_bytes, " bytes of data"));
  }
  tensor.offset = static_cast<uint64_t>(*begin);
  tensor.bytes = static_cast<uint64_t>(*end - *begin);
  const std::optional<uint64_t> wanted = BytesOf(tensor.type, tensor.shape);
  if (!wanted || *wanted != tensor.bytes) {
    return bad(absl::StrCat("of type \"", tensor.type.substr(0, 16), "\" and shape [",
                            absl::StrJoin(tensor.shape, ", "), "] takes ", tensor.bytes,
                            " bytes, which type and shape do not need"));
  }
  return tensor;
}

template <typename T, typename Convert>
void CopyAs(const uint8_t* from, std::span<float> to, Convert convert) {
  for (size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    to[i] = convert(value);
  }
}

}  // namespace

int64_t SafeTensor::elements() const {
  uint64_t n = 1;  // unsigned: a dimension of 0 may follow large ones
  for (const int64_t dim : shape) n *= static_cast<uint64_t>(dim);
  return static_cast<int64_t>(n);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      bytes_(other.bytes_),
      tensors_(std::move(other.tensors_)) {}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) munmap(mapping_, bytes_.size());
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError("open " + path);
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return ErrnoError("stat " + path);
  if (!S_ISREG(info.st_mode) || info.st_size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a file with content; a safetensors file is wanted"));
  }
  SafetensorsFile file;
  file.path_ = path;
  const auto size = static_cast<size_t>(info.st_size);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (mapping == MAP_FAILED) return ErrnoError("map " + path);
  file.mapping_ = mapping;
  file.bytes_ = {static_cast<const uint8_t*>(mapping), size};
  WITHY_RETURN_IF_ERROR(file.Parse());
  return file;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::FromBytes(std::span<const uint8_t> bytes,
                                                           std::string name) {
  SafetensorsFile file;
  file.path_ = std::move(name);
  file.bytes_ = bytes;
  WITHY_RETURN_IF_ERROR(file.Parse());
  return file;
}

absl::Status SafetensorsFile::Parse() {
  const auto bad = [this](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", what, "; not a sound safetensors file: fetch it again"));
  };
  if (bytes_.size() < kLengthBytes) return bad(absl::StrCat("has ", bytes_.size(), " bytes"));
  uint64_t length = 0;
  std::memcpy(&length, bytes_.data(), sizeof length);
  const uint64_t most = std::min<uint64_t>(bytes_.size() - kLengthBytes, kMaxHeaderBytes);
  if (length > most) return bad(absl::StrCat("header length is ", length, ", limit ", most));
  const auto* text = reinterpret_cast<const char*>(bytes_.data()) + kLengthBytes;
  Json header;
  if (!ParseJson({text, length}, &header, kMaxDepth).ok() || !header.is_object()) {
    return bad("header is not a JSON object of tensors");
  }

  const uint64_t data_begin = kLengthBytes + length;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    auto tensor = ParseTensor(entry, bytes_.size() - data_begin);
    if (!tensor.ok()) {
      return bad(absl::StrCat("tensor ", name.substr(0, 200), " ", tensor.status().message()));
    }
    ranges.emplace_back(tensor->offset, tensor->offset + tensor->bytes);
    tensor->offset += data_begin;
    tensors_.emplace(name, *std::move(tensor));
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) {
      return bad(absl::StrCat("two tensors share byte ", ranges[i].first, " of the data"));
    }
  }
  return absl::OkStatus();
}

const SafeTensor* SafetensorsFile::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

absl::Status SafetensorsFile::Read(std::string_view name, std::span<float> values) const {
  const SafeTensor* tensor = Find(name);
  if (tensor == nullptr) {
    return absl::NotFoundError(absl::StrCat(path_, ": tensor ", ToAbsl(name), " is missing"));
  }
  if (static_cast<uint64_t>(tensor->elements()) != values.size()) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", ToAbsl(name), " has ",
                                                   tensor->elements(), " values, wanted ",
                                                   values.size()));
  }
  const uint8_t* from = bytes_.data() + tensor->offset;
  if (tensor->type == "F32") {
    std::memcpy(values.data(), from, values.size_bytes());
  } else if (tensor->type == "F16") {
    CopyAs<uint16_t>(from, values, HalfToFloat);
  } else if (tensor->type == "BF16") {
    CopyAs<uint16_t>(from, values, Bf16ToFloat);
  } else if (tensor->type == "F64") {
    CopyAs<double>(from, values, [](double x) { return static_cast<float>(x); });
  } else {
    return absl::UnimplementedError(absl::StrCat(path_, ": tensor ", ToAbsl(name), " is ",
                                                 tensor->type,
                                                 "; save the model as F32, F16 or BF16"));
  }
  return absl::OkStatus();
}

}  // namespace withy::engine
