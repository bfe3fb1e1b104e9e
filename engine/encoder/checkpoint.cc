#include "engine/encoder/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/encoder/weights.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/writer.h"

namespace withy::engine {
namespace {

constexpr float kDeviation = 0.02f;
constexpr double kMinSloLength = 0.1;

// Normal random numbers that are equal on every platform.
class Normal {
 public:
  explicit Normal(uint64_t seed) : random_(seed) {}
  double operator()() {
    const double u = (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53;
    const double v = static_cast<double>(random_() >> 11) * 0x1p-53;
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
  }

 private:
  std::mt19937_64 random_;
};

double Dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// `count` orthonormal vectors of `width` dimensions; count <= width.
std::vector<std::vector<double>> Orthonormal(size_t count, size_t width, uint64_t seed) {
  Normal normal(seed);
  std::vector<std::vector<double>> made;
  while (made.size() < count) {
    std::vector<double> v(width);
    for (double& x : v) x = normal();
    for (int round = 0; round < 2; ++round) {  // twice, because one pass leaves rounding errors
      for (const std::vector<double>& other : made) {
        const double along = Dot(v, other);
        for (size_t i = 0; i < width; ++i) v[i] -= along * other[i];
      }
    }
    const double length = std::sqrt(Dot(v, v));
    if (length < 1e-6) continue;
    for (double& x : v) x /= length;
    made.push_back(std::move(v));
  }
  return made;
}

absl::Status CheckVocab(const TlmShape& shape, const WordPieceVocab& vocab) {
  if (vocab.size() == shape.encoder.vocab) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the vocabulary has ", vocab.size(), " tokens, but the shape says ", shape.encoder.vocab,
      "; give the vocabulary the model was made with, SLO tokens included"));
}

GgmlType FileType(const TensorSpec& spec, GgmlType type) {
  const bool wide = spec.role == TensorRole::kTokens || spec.role == TensorRole::kMatrix;
  if (!wide) return GgmlType::kF32;
  const GgmlTypeTraits* traits = FindTypeTraits(type);
  return traits != nullptr && spec.dims[0] % traits->block_elements == 0 ? type : GgmlType::kF32;
}

absl::Status CheckValues(const TlmTensor& tensor) {
  const auto wanted = static_cast<size_t>(tensor.spec.elements());
  if (tensor.values.size() != wanted) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", tensor.spec.name, " has ", tensor.values.size(), " values, its shape ", wanted));
  }
  for (size_t i = 0; i < wanted; ++i) {
    if (std::isfinite(tensor.values[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.spec.name, " holds ",
                                                   tensor.values[i], " at ", i,
                                                   "; weights must be finite numbers"));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<float>* TlmCheckpoint::Find(std::string_view name) const {
  for (const TlmTensor& tensor : tensors) {
    if (tensor.spec.name == name) return &tensor.values;
  }
  return nullptr;
}

std::vector<float>* TlmCheckpoint::Find(std::string_view name) {
  return const_cast<std::vector<float>*>(std::as_const(*this).Find(name));
}

void InitTensor(TensorRole role, uint64_t seed, std::span<float> values) {
  if (role == TensorRole::kBias || role == TensorRole::kScale) {
    std::fill(values.begin(), values.end(), role == TensorRole::kScale ? 1.0f : 0.0f);
    return;
  }
  Normal normal(seed);
  for (float& value : values) value = kDeviation * static_cast<float>(normal());
}

absl::StatusOr<std::vector<int32_t>> SloTokenIds(const WordPieceVocab& vocab, int32_t slo_steps,
                                                 std::string_view where) {
  std::vector<int32_t> ids;
  for (const auto text : {&TtftToken, &TpotToken}) {
    for (int32_t step = 1; step <= slo_steps; ++step) {
      ids.push_back(vocab.Find(text(step)));
      if (ids.back() >= 0) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          ToAbsl(where), ": the vocabulary lacks the SLO token ", text(step), " of ", slo_steps,
          " steps; make the file again with its SLO tokens in the vocabulary"));
    }
  }
  return ids;
}

absl::Status InitSloRows(std::span<const int32_t> rows, int32_t embedding, uint64_t seed,
                         std::span<float> tokens) {
  const auto width = static_cast<size_t>(embedding);
  if (rows.size() > width) {
    return absl::InvalidArgumentError(
        absl::StrCat(rows.size(), " SLO tokens cannot have orthogonal rows of ", embedding,
                     " dimensions; use fewer slo_steps or a wider token embedding"));
  }
  double length = 0;
  size_t others = 0;
  for (size_t row = 0; row * width < tokens.size(); ++row) {
    if (std::find(rows.begin(), rows.end(), static_cast<int32_t>(row)) != rows.end()) continue;
    double squares = 0;
    for (const float x : tokens.subspan(row * width, width)) squares += double{x} * x;
    length += std::sqrt(squares);
    ++others;
  }
  length = std::max(kMinSloLength, others == 0 ? 0 : length / static_cast<double>(others));
  const std::vector<std::vector<double>> vectors = Orthonormal(rows.size(), width, seed);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<float> to = tokens.subspan(static_cast<size_t>(rows[i]) * width, width);
    for (size_t d = 0; d < width; ++d) to[d] = static_cast<float>(length * vectors[i][d]);
  }
  return absl::OkStatus();
}

absl::StatusOr<TlmCheckpoint> MakeTlmCheckpoint(const TlmShape& shape, const WordPieceVocab& vocab,
                                                uint64_t seed) {
  WITHY_RETURN_IF_ERROR(CheckTlmShape(shape, "TLM shape"));
  WITHY_RETURN_IF_ERROR(CheckVocab(shape, vocab));
  WITHY_ASSIGN_OR_RETURN(const std::vector<int32_t> slo,
                         SloTokenIds(vocab, shape.slo_steps, "TLM vocabulary"));
  TlmCheckpoint made{.shape = shape, .vocab = vocab, .tensors = {}};
  for (TensorSpec& spec : TlmTensors(shape)) {
    TlmTensor tensor{.spec = std::move(spec), .values = {}};
    tensor.values.resize(static_cast<size_t>(tensor.spec.elements()));
    InitTensor(tensor.spec.role, ++seed, tensor.values);
    if (tensor.spec.role == TensorRole::kTokens) {
      WITHY_RETURN_IF_ERROR(InitSloRows(slo, shape.encoder.embedding, seed, tensor.values));
    }
    made.tensors.push_back(std::move(tensor));
  }
  return made;
}

absl::Status WriteTlm(const TlmCheckpoint& checkpoint, GgmlType type, const std::string& path) {
  WITHY_RETURN_IF_ERROR(CheckTlmShape(checkpoint.shape, path));
  WITHY_RETURN_IF_ERROR(CheckVocab(checkpoint.shape, checkpoint.vocab));
  if (type != GgmlType::kF32 && type != GgmlType::kF16 && type != GgmlType::kBF16 &&
      type != GgmlType::kQ8_0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": TLM files are written as F32, F16, ",
                                                   "BF16 or Q8_0, not ", ToAbsl(TypeName(type))));
  }
  GgufWriter writer;
  WriteTlmShape(checkpoint.shape, &writer);
  WriteVocab(checkpoint.vocab, &writer);
  const std::vector<TensorSpec> wanted = TlmTensors(checkpoint.shape);
  std::vector<std::vector<uint8_t>> bytes(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (i >= checkpoint.tensors.size() || checkpoint.tensors[i].spec.name != wanted[i].name) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the checkpoint lacks tensor ", wanted[i].name, " at its place"));
    }
    const TlmTensor& tensor = checkpoint.tensors[i];
    WITHY_RETURN_IF_ERROR(Annotate(CheckValues(tensor), path));
    const GgmlType to = FileType(wanted[i], type);
    WITHY_ASSIGN_OR_RETURN(const uint64_t size, RowBytes(to, wanted[i].elements()));
    bytes[i].resize(size);
    WITHY_RETURN_IF_ERROR(Annotate(Quantize(to, tensor.values, bytes[i]), wanted[i].name));
    writer.AddTensor(wanted[i].name, to, wanted[i].dims, bytes[i]);
  }
  return writer.Write(path);
}

absl::StatusOr<TlmCheckpoint> ReadTlm(const std::string& path) {
  WITHY_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  TlmCheckpoint read;
  WITHY_ASSIGN_OR_RETURN(read.shape, ReadTlmShape(file));
  WITHY_ASSIGN_OR_RETURN(read.vocab, ReadVocab(file));
  WITHY_RETURN_IF_ERROR(Annotate(CheckVocab(read.shape, read.vocab), path));
  for (TensorSpec& spec : TlmTensors(read.shape)) {
    WITHY_ASSIGN_OR_RETURN(const TensorInfo* info, FindTlmTensor(file, spec));
    TlmTensor tensor{.spec = std::move(spec), .values = {}};
    tensor.values.resize(static_cast<size_t>(tensor.spec.elements()));
    WITHY_RETURN_IF_ERROR(Annotate(Dequantize(info->type, file.Data(*info), tensor.values), path));
    read.tensors.push_back(std::move(tensor));
  }
  return read;
}

}  // namespace withy::engine
