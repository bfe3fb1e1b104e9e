#include "cli/study/requantize.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/writer.h"
#include "engine/weights/packed_file.h"

namespace withy::cli {
namespace {

using engine::GgmlType;
using engine::TensorInfo;

constexpr std::array<GgmlType, 6> kWritableTypes = {GgmlType::kF32,  GgmlType::kF16,
                                                    GgmlType::kBF16, GgmlType::kQ8_0,
                                                    GgmlType::kQ4_0, GgmlType::kQ4_1};

bool IsOurs(std::string_view name) { return name.starts_with(engine::kGgufOwnPrefix); }

// Streams a matrix row by row.
engine::TensorSource Converted(const engine::GgufFile& file, const TensorInfo& tensor,
                               GgmlType type) {
  return [&file, &tensor, type](const engine::TensorSink& sink) -> absl::Status {
    const auto columns = static_cast<size_t>(tensor.cols());
    WITHY_ASSIGN_OR_RETURN(const uint64_t from_bytes, engine::RowBytes(tensor.type, tensor.cols()));
    WITHY_ASSIGN_OR_RETURN(const uint64_t to_bytes, engine::RowBytes(type, tensor.cols()));
    std::vector<float> row(columns);
    std::vector<uint8_t> out(to_bytes);
    for (int64_t r = 0; r < tensor.rows(); ++r) {
      WITHY_RETURN_IF_ERROR(engine::Dequantize(
          tensor.type, file.Data(tensor).subspan(static_cast<uint64_t>(r) * from_bytes, from_bytes),
          row));
      WITHY_RETURN_IF_ERROR(Annotate(engine::Quantize(type, row, out), tensor.name));
      WITHY_RETURN_IF_ERROR(sink(out));
    }
    return absl::OkStatus();
  };
}

}  // namespace

absl::StatusOr<GgmlType> FindWritableType(std::string_view name) {
  std::string all;
  for (const GgmlType type : kWritableTypes) {
    const std::string known = absl::AsciiStrToLower(ToAbsl(engine::TypeName(type)));
    if (known == name) return type;
    absl::StrAppend(&all, all.empty() ? "" : ", ", known);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", ToAbsl(name), "\" is no type that can be written: ", all));
}

absl::Status Requantize(const std::string& from, GgmlType type, const std::string& to) {
  if (engine::PackedFile::LooksPacked(from)) {
    return absl::InvalidArgumentError(
        absl::StrCat(from, " is a packed file: --types needs the GGUF that it was made from"));
  }
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(from));
  engine::GgufWriter writer;
  writer.CopyMetadata(file, IsOurs);
  for (const TensorInfo& tensor : file.tensors()) {
    if (IsOurs(tensor.name)) continue;
    const bool matrix = tensor.dims.size() > 1;
    if (!matrix || !engine::RowBytes(type, tensor.cols()).ok()) {
      writer.AddTensor(tensor.name, tensor.type, tensor.dims, file.Data(tensor));
      continue;
    }
    if (!engine::CanDequantize(tensor.type)) {
      return absl::InvalidArgumentError(
          absl::StrCat(from, ": ", tensor.name, " is ", ToAbsl(engine::TypeName(tensor.type)),
                       ", which cannot be decoded: leave out --types, and give files made by "
                       "other tools with --model"));
    }
    writer.AddTensor(tensor.name, type, tensor.dims, Converted(file, tensor, type));
  }
  return writer.Write(to);
}

}  // namespace withy::cli
