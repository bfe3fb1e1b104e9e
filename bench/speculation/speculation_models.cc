#include "bench/speculation/speculation_models.h"

#include <filesystem>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/config.h"
#include "base/config/defaults.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/writer.h"
#include "engine/model/plan_weights.h"
#include "engine/weights/layout.h"
#include "offline/inflate/inflate.h"

namespace withy::bench {
namespace {

namespace fs = std::filesystem;

std::string PathIn(const std::string& directory, const std::string& path, std::string_view what) {
  std::error_code ignored;
  fs::create_directories(directory, ignored);
  return (fs::path(directory) /
          absl::StrCat(fs::path(path).stem().string(), "-", ToAbsl(what), ".gguf"))
      .string();
}

// One tensor's elements as `type`.
absl::Status Convert(const engine::TensorInfo& tensor, std::span<const uint8_t> bytes,
                     engine::GgmlType type, const engine::TensorSink& sink) {
  const auto cols = static_cast<size_t>(tensor.cols());
  const auto rows = static_cast<size_t>(tensor.rows());
  WITHY_ASSIGN_OR_RETURN(const uint64_t row_bytes, engine::RowBytes(type, tensor.cols()));
  const size_t source_bytes = bytes.size() / rows;
  std::vector<float> values(cols);
  std::vector<uint8_t> out(row_bytes);
  for (size_t row = 0; row < rows; ++row) {
    WITHY_RETURN_IF_ERROR(
        engine::Dequantize(tensor.type, bytes.subspan(row * source_bytes, source_bytes), values));
    WITHY_RETURN_IF_ERROR(engine::Quantize(type, values, out));
    WITHY_RETURN_IF_ERROR(sink(out));
  }
  return absl::OkStatus();
}

}  // namespace

std::string PocketFile(const std::string& name) {
  return (fs::path(DefaultModelsDir()) / name).string();
}

absl::StatusOr<std::string> Inflated(const std::string& path, const std::string& shape,
                                     const std::string& directory) {
  const std::string out = PathIn(directory, path, shape);
  if (fs::exists(out)) return out;
  WITHY_ASSIGN_OR_RETURN(const inflate::TargetShape target, inflate::FindTargetShape(shape));
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(path));
  constexpr uint64_t kSeed = 1;
  WITHY_RETURN_IF_ERROR(inflate::Inflate(file, target, shape, kSeed, out));
  return out;
}

absl::StatusOr<std::string> Requantised(const std::string& path, engine::GgmlType type,
                                        const std::string& directory) {
  const std::string out = PathIn(directory, path, engine::TypeName(type));
  if (fs::exists(out)) return out;
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(path));
  engine::GgufWriter writer;
  writer.CopyMetadata(file);
  for (const engine::TensorInfo& tensor : file.tensors()) {
    const bool matrix = tensor.name.starts_with("blk.") && tensor.dims.size() == 2;
    if (!matrix) {
      writer.AddTensor(tensor.name, tensor.type, tensor.dims, file.Data(tensor));
      continue;
    }
    writer.AddTensor(tensor.name, type, tensor.dims,
                     [&file, &tensor, type](const engine::TensorSink& sink) {
                       return Convert(tensor, file.Data(tensor), type, sink);
                     });
  }
  WITHY_RETURN_IF_ERROR(writer.Write(out));
  return out;
}

absl::StatusOr<uint64_t> HalfStreamedBudget(const std::string& path) {
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(path));
  WITHY_ASSIGN_OR_RETURN(const engine::PackedLayout layout, engine::PlanLayout(file));
  const engine::UnpackedWeights weights(layout);
  const uint64_t least = engine::LeastWeightBudget(weights.tensors, weights.facts);
  return least + (std::max(layout.data_bytes, least) - least) / 2;
}

absl::StatusOr<PairFiles> FindPair(const std::string& target, const std::string& draft,
                                   const std::string& shape, const std::string& draft_shape,
                                   const std::string& directory) {
  PairFiles files;
  if (!target.empty()) files.target = target;
  if (!draft.empty()) files.draft = draft;
  if (shape.empty()) return files;
  WITHY_ASSIGN_OR_RETURN(files.target, Inflated(files.target, shape, directory));
  if (draft_shape.empty()) return files;
  WITHY_ASSIGN_OR_RETURN(files.draft, Inflated(files.draft, draft_shape, directory));
  return files;
}

absl::Status CheckVocabularies(const engine::ModelBundle& target, const engine::ModelBundle& draft,
                               const PairFiles& files) {
  if (target.tokenizer->fingerprint() == draft.tokenizer->fingerprint()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the draft ", files.draft,
                                                 " has another vocabulary than ", files.target,
                                                 ": choose a draft with the target's tokenizer"));
}

}  // namespace withy::bench
