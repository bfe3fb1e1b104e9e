// Parses and checks a GGUF file's structure. Every length is compared with the remaining bytes
// before anything is read or reserved, so that the file's size limits time and memory.
#include "engine/gguf/parser.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/gguf/foreign_file.h"

namespace withy::engine {
namespace {

constexpr uint64_t kMaxKeyBytes = 65535;       // the format's own limit
constexpr uint64_t kMaxTensorNameBytes = 256;  // the format says 64; longer ones are harmless
constexpr uint64_t kMaxElements = uint64_t{1} << 48;
constexpr uint64_t kMinMetadataBytes = 8 + 4 + 1;        // key length, value type, shortest value
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;  // name length, dims, one dim, type, offset
constexpr size_t kMaxReserve = 4096;

// A name from the file, made safe and short for messages.
std::string Quote(std::string_view name) {
  constexpr size_t kShown = 80;
  std::string text = absl::CHexEscape(ToAbsl(name.substr(0, kShown)));
  if (name.size() > kShown) text += "...";
  return absl::StrCat("\"", text, "\"");
}

// Reads forward through bytes; every read checks the remaining length.
class Cursor {
 public:
  explicit Cursor(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  template <typename T>
  absl::Status Read(T* value, std::string_view what) {
    if (left() < sizeof(T)) return Truncated(what, sizeof(T));
    std::memcpy(value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return absl::OkStatus();
  }

  absl::StatusOr<std::span<const uint8_t>> Take(uint64_t count, std::string_view what) {
    if (left() < count) return Truncated(what, count);
    const std::span<const uint8_t> taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

  absl::StatusOr<std::string_view> ReadString(uint64_t limit, std::string_view what) {
    uint64_t length = 0;
    WITHY_RETURN_IF_ERROR(Read(&length, what));
    if (length > limit) {
      return absl::InvalidArgumentError(
          absl::StrCat(ToAbsl(what), " is ", length, " bytes long, limit ", limit));
    }
    WITHY_ASSIGN_OR_RETURN(const auto taken, Take(length, what));
    return std::string_view(reinterpret_cast<const char*>(taken.data()), taken.size());
  }

 private:
  absl::Status Truncated(std::string_view what, uint64_t wanted) const {
    return absl::InvalidArgumentError(absl::StrCat("truncated: ", ToAbsl(what), " needs ", wanted,
                                                   " bytes at offset ", position_,
                                                   ", the file has ", left(), " left"));
  }

  std::span<const uint8_t> bytes_;
  uint64_t position_ = 0;
};

absl::Status CheckCount(std::string_view what, uint64_t count, uint64_t bytes_each, uint64_t left) {
  if (count <= left / bytes_each) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("claims ", count, " ", ToAbsl(what), ", but the ",
                                                 left, " bytes left hold at most ",
                                                 left / bytes_each));
}

// Skips `count` strings, checking that their bytes lie inside the file.
absl::Status SkipStrings(Cursor& cursor, uint64_t count, std::string_view what) {
  WITHY_RETURN_IF_ERROR(CheckCount("strings", count, sizeof(uint64_t), cursor.left()));
  for (uint64_t i = 0; i < count; ++i) {
    WITHY_RETURN_IF_ERROR(cursor.ReadString(UINT64_MAX, what).status());
  }
  return absl::OkStatus();
}

absl::Status ReadArrayHeader(Cursor& cursor, MetadataEntry& entry) {
  uint32_t element_type = 0;
  WITHY_RETURN_IF_ERROR(cursor.Read(&element_type, "array element type"));
  WITHY_RETURN_IF_ERROR(cursor.Read(&entry.count, "array length"));
  entry.element_type = static_cast<GgufValueType>(element_type);
  if (entry.element_type == GgufValueType::kArray) {
    return absl::InvalidArgumentError("is an array of arrays, which is not supported");
  }
  if (entry.element_type == GgufValueType::kString) return absl::OkStatus();
  const uint32_t bytes_each = ScalarBytes(entry.element_type);
  if (bytes_each == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("has unknown element type ", element_type, " (known: 0 to 12)"));
  }
  return CheckCount("array elements", entry.count, bytes_each, cursor.left());
}

absl::Status ReadValue(Cursor& cursor, std::span<const uint8_t> bytes, MetadataEntry& entry) {
  if (entry.type == GgufValueType::kArray) WITHY_RETURN_IF_ERROR(ReadArrayHeader(cursor, entry));
  const GgufValueType element =
      entry.type == GgufValueType::kArray ? entry.element_type : entry.type;
  if (entry.type == GgufValueType::kString) {
    WITHY_ASSIGN_OR_RETURN(const std::string_view text, cursor.ReadString(UINT64_MAX, "string"));
    entry.payload = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
    return absl::OkStatus();
  }
  const uint64_t begin = cursor.position();
  if (element == GgufValueType::kString) {
    WITHY_RETURN_IF_ERROR(SkipStrings(cursor, entry.count, "array string"));
    entry.payload = bytes.subspan(begin, cursor.position() - begin);
    return absl::OkStatus();
  }
  const uint32_t bytes_each = ScalarBytes(element);
  if (bytes_each == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has unknown value type ", static_cast<uint32_t>(entry.type), " (known: 0 to 12)"));
  }
  WITHY_ASSIGN_OR_RETURN(entry.payload, cursor.Take(entry.count * bytes_each, "value"));
  return absl::OkStatus();
}

absl::StatusOr<MetadataEntry> ReadEntry(Cursor& cursor, std::span<const uint8_t> bytes) {
  MetadataEntry entry;
  WITHY_ASSIGN_OR_RETURN(entry.key, cursor.ReadString(kMaxKeyBytes, "metadata key"));
  uint32_t type = 0;
  absl::Status status = cursor.Read(&type, "value type");
  if (status.ok()) {
    entry.type = static_cast<GgufValueType>(type);
    status = ReadValue(cursor, bytes, entry);
  }
  if (!status.ok()) return Annotate(status, absl::StrCat("metadata key ", Quote(entry.key)));
  return entry;
}

absl::Status ReadDims(Cursor& cursor, TensorInfo& tensor) {
  uint32_t dim_count = 0;
  WITHY_RETURN_IF_ERROR(cursor.Read(&dim_count, "dimension count"));
  if (dim_count < 1 || dim_count > kGgufMaxDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", dim_count, " dimensions, limits 1 to ", kGgufMaxDims));
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dim_count; ++i) {
    uint64_t dim = 0;
    WITHY_RETURN_IF_ERROR(cursor.Read(&dim, "dimension"));
    if (dim < 1 || dim > kMaxElements / elements) {
      return absl::InvalidArgumentError(
          absl::StrCat("has dimension ", i, " of ", dim, ", limits 1 and 2^48 elements in all"));
    }
    elements *= dim;
    tensor.dims.push_back(static_cast<int64_t>(dim));
  }
  return absl::OkStatus();
}

// Reads everything but the name. `tensor.offset` is still relative to the data section.
absl::Status ReadTensorBody(Cursor& cursor, TensorInfo& tensor) {
  WITHY_RETURN_IF_ERROR(ReadDims(cursor, tensor));
  uint32_t type = 0;
  WITHY_RETURN_IF_ERROR(cursor.Read(&type, "tensor type"));
  WITHY_RETURN_IF_ERROR(cursor.Read(&tensor.offset, "tensor offset"));
  tensor.type = static_cast<GgmlType>(type);
  const GgmlTypeTraits* traits = FindTypeTraits(tensor.type);
  if (traits == nullptr) return absl::OkStatus();  // its bytes reach to the next tensor
  if (tensor.cols() % traits->block_elements != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("of type ", ToAbsl(traits->name), " has rows of ", tensor.cols(),
                     " elements, not a multiple of ", traits->block_elements));
  }
  tensor.bytes =
      static_cast<uint64_t>(tensor.elements()) / traits->block_elements * traits->block_bytes;
  return absl::OkStatus();
}

}  // namespace

absl::Status GgufParser::Parse(GgufFile& file) {
  WITHY_RETURN_IF_ERROR(ParseTable(file));
  return AddOwnTensors(file);
}

absl::Status GgufParser::AddOwnTensors(GgufFile& file) {
  WITHY_ASSIGN_OR_RETURN(const uint64_t begin, file.GetUintOr(kGgufOwnTensors, 0));
  if (begin == 0) return absl::OkStatus();
  if (begin % file.alignment_ != 0 || begin >= file.bytes_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        ToAbsl(kGgufOwnTensors), " is ", begin, "; it must be a multiple of ", file.alignment_,
        " within the file's ", file.bytes_.size(), " bytes (truncated download?)"));
  }
  GgufFile own;
  own.bytes_ = file.bytes_.subspan(begin);
  WITHY_RETURN_IF_ERROR(
      Annotate(ParseTable(own), absl::StrCat(ToAbsl(kGgufOwnTensors), " at ", begin)));
  std::vector<std::string_view> names(own.tensors_.size());  // views into the file's bytes
  for (const auto& [name, index] : own.tensor_index_) names[index] = name;
  for (size_t i = 0; i < names.size(); ++i) {
    if (!file.tensor_index_.emplace(names[i], file.tensors_.size()).second) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(names[i]), " occurs twice"));
    }
    own.tensors_[i].offset += begin;
    file.tensors_.push_back(std::move(own.tensors_[i]));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ParseTable(GgufFile& file) {
  Cursor cursor(file.bytes_);
  uint64_t tensor_count = 0;
  uint64_t entry_count = 0;
  WITHY_RETURN_IF_ERROR(ParseHeader(file));
  (void)cursor.Take(2 * sizeof(uint32_t), "header");
  WITHY_RETURN_IF_ERROR(cursor.Read(&tensor_count, "tensor count"));
  WITHY_RETURN_IF_ERROR(cursor.Read(&entry_count, "metadata count"));
  WITHY_RETURN_IF_ERROR(
      CheckCount("metadata entries", entry_count, kMinMetadataBytes, cursor.left()));
  WITHY_RETURN_IF_ERROR(CheckCount("tensors", tensor_count, kMinTensorBytes, cursor.left()));

  file.metadata_.reserve(std::min<uint64_t>(entry_count, kMaxReserve));
  for (uint64_t i = 0; i < entry_count; ++i) {
    WITHY_ASSIGN_OR_RETURN(const MetadataEntry entry, ReadEntry(cursor, file.bytes_));
    if (!file.metadata_index_.emplace(entry.key, i).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("metadata key ", Quote(entry.key), " occurs twice"));
    }
    file.metadata_.push_back(entry);
  }
  WITHY_RETURN_IF_ERROR(ParseAlignment(file));

  file.tensors_.reserve(std::min<uint64_t>(tensor_count, kMaxReserve));
  for (uint64_t i = 0; i < tensor_count; ++i) {
    WITHY_ASSIGN_OR_RETURN(const std::string_view name,
                           cursor.ReadString(kMaxTensorNameBytes, "tensor name"));
    TensorInfo tensor;
    tensor.name = std::string(name);
    if (const absl::Status status = ReadTensorBody(cursor, tensor); !status.ok()) {
      return Annotate(status, absl::StrCat("tensor ", Quote(name)));
    }
    if (!file.tensor_index_.emplace(name, i).second) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quote(name), " occurs twice"));
    }
    file.tensors_.push_back(std::move(tensor));
  }
  return PlaceTensors(file, cursor.position());
}

absl::Status GgufParser::ParseHeader(GgufFile& file) {
  Cursor cursor(file.bytes_);
  uint32_t magic = 0;
  (void)cursor.Read(&magic, "magic");  // a shorter file is not a GGUF one either
  if (magic != kGgufMagic) {
    return absl::InvalidArgumentError(
        absl::StrCat("is not a GGUF file: ", DescribeForeignFile(file.bytes_)));
  }
  WITHY_RETURN_IF_ERROR(cursor.Read(&file.version_, "version"));
  if (file.version_ == 2 || file.version_ == 3) return absl::OkStatus();
  const bool swapped = file.version_ != 0 && (file.version_ & 0xFFFF) == 0;
  return absl::InvalidArgumentError(
      swapped
          ? "is a big-endian GGUF file; only little-endian ones can be read: convert it with "
            "gguf-convert-endian FILE little (PyPI package gguf), or take the little-endian file"
          : absl::StrCat("has GGUF version ", file.version_, "; versions 2 and 3 can be read: ",
                         file.version_ == 1 ? "take a newer file of the model, or convert the "
                                              "model again with llama.cpp"
                                            : "update withy, or convert the model again with "
                                              "llama.cpp of the present format"));
}

absl::Status GgufParser::ParseAlignment(GgufFile& file) {
  WITHY_ASSIGN_OR_RETURN(file.alignment_,
                         file.GetUintOr("general.alignment", kGgufDefaultAlignment));
  if (!std::has_single_bit(file.alignment_) || file.alignment_ < 8 ||
      file.alignment_ > kGgufMaxAlignment) {
    return absl::InvalidArgumentError(absl::StrCat("general.alignment is ", file.alignment_,
                                                   "; it must be a power of two from 8 to ",
                                                   kGgufMaxAlignment));
  }
  return absl::OkStatus();
}

void GgufParser::SizeUnknownTypes(GgufFile& file, uint64_t data_bytes) {
  const auto unknown = [](const TensorInfo& tensor) {
    return FindTypeTraits(tensor.type) == nullptr;
  };
  if (std::none_of(file.tensors_.begin(), file.tensors_.end(), unknown)) return;
  std::vector<uint64_t> ends = {data_bytes};
  for (const TensorInfo& tensor : file.tensors_) ends.push_back(tensor.offset);
  std::sort(ends.begin(), ends.end());
  for (TensorInfo& tensor : file.tensors_) {
    if (!unknown(tensor)) continue;
    const auto end = std::upper_bound(ends.begin(), ends.end(), tensor.offset);
    tensor.bytes = end == ends.end() ? 0 : *end - tensor.offset;
  }
}

absl::Status GgufParser::PlaceTensors(GgufFile& file, uint64_t header_end) {
  const uint64_t data_begin =
      (header_end + file.alignment_ - 1) / file.alignment_ * file.alignment_;
  const uint64_t data_bytes = file.bytes_.size() > data_begin ? file.bytes_.size() - data_begin : 0;
  SizeUnknownTypes(file, data_bytes);
  for (TensorInfo& tensor : file.tensors_) {
    if (tensor.offset % file.alignment_ != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quote(tensor.name), " has offset ", tensor.offset,
                       ", not a multiple of the alignment ", file.alignment_));
    }
    if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quote(tensor.name), " has ", tensor.bytes, " bytes at offset ", tensor.offset,
          ", but the file's tensor data is ", data_bytes, " bytes long (truncated download?)"));
    }
    tensor.offset += data_begin;
  }
  return absl::OkStatus();
}

}  // namespace withy::engine
