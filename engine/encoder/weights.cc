#include "engine/encoder/weights.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/gguf/quants.h"
#include "engine/weights/layout.h"
#include "engine/weights/types/packed_type.h"
#include "engine/weights/types/row_decoder.h"

namespace withy::engine {
namespace {

// Packs tensors by name. Remembers the first error, so that loading code needs no error handling.
class Loader {
 public:
  Loader(const GgufFile& file, TlmWeights* weights)
      : file_(file), weights_(weights), e_(weights->shape.encoder) {
    for (TensorSpec& spec : TlmTensors(weights->shape)) specs_.push_back(std::move(spec));
  }

  absl::Status status() const { return status_; }

  void TokenRows() {
    const TensorInfo* info = Find("token_embd.weight");
    if (info == nullptr) return;
    const std::span<const uint8_t> data = file_.Data(*info);
    weights_->token_type = info->type;
    weights_->token_rows.assign(data.begin(), data.end());
    weights_->token_row_bytes = data.size() / static_cast<size_t>(e_.vocab);
  }

  const float* Floats(const std::string& name) {
    const TensorInfo* info = Find(name);
    if (info == nullptr) return nullptr;
    const auto n = static_cast<size_t>(info->elements());
    auto* values = reinterpret_cast<float*>(Room(n * sizeof(float)));
    Keep(Dequantize(info->type, file_.Data(*info), {values, n}));
    return values;
  }

  LinearWeights Linear(const std::string& name) {
    return {.w = Matrix(name + ".weight"), .bias = Floats(name + ".bias")};
  }

  NormWeights Norm(const std::string& name, float epsilon) {
    return {.kind = e_.norm,
            .epsilon = epsilon,
            .weight = Floats(name + ".weight"),
            .bias = Floats(name + ".bias")};
  }

  EncoderLayer Layer(const std::string& prefix) {
    EncoderLayer layer;
    if (e_.use_bottleneck) {
      layer.bottleneck_in = Linear(prefix + "bottleneck_in");
      layer.bottleneck_in_norm = Norm(prefix + "bottleneck_in_norm", e_.epsilon);
      layer.bottleneck_out = Linear(prefix + "bottleneck_out");
      layer.bottleneck_out_norm = Norm(prefix + "bottleneck_out_norm", e_.epsilon);
    }
    if (e_.use_bottleneck && e_.shared_qk) {
      layer.bottleneck_qk = Linear(prefix + "bottleneck_qk");
      layer.bottleneck_qk_norm = Norm(prefix + "bottleneck_qk_norm", e_.epsilon);
    }
    layer.q = Linear(prefix + "attn_q");
    layer.k = Linear(prefix + "attn_k");
    layer.v = Linear(prefix + "attn_v");
    layer.output = Linear(prefix + "attn_output");
    layer.output_norm = Norm(prefix + "attn_output_norm", e_.epsilon);
    for (int32_t i = 0; i < e_.ffn_count; ++i) {
      const std::string ffn = absl::StrCat(prefix, "ffn.", i);
      const bool last = i + 1 == e_.ffn_count;
      layer.ffn.push_back({.up = Linear(ffn + ".up"),
                           .down = Linear(ffn + ".down"),
                           .norm = Norm(ffn + ".norm", last ? kDefaultNormEpsilon : e_.epsilon)});
    }
    return layer;
  }

  std::vector<EncoderLayer> Tower(const char* tower, int32_t layers) {
    std::vector<EncoderLayer> made;
    for (int32_t i = 0; i < layers && status_.ok(); ++i) {
      made.push_back(Layer(absl::StrCat(tower, ".", i, ".")));
    }
    return made;
  }

 private:
  const TensorInfo* Find(const std::string& name) {
    if (!status_.ok()) return nullptr;
    for (const TensorSpec& spec : specs_) {
      if (spec.name != name) continue;
      auto info = FindTlmTensor(file_, spec);
      Keep(info.status());
      return info.ok() ? *info : nullptr;
    }
    Keep(absl::InternalError(absl::StrCat("no tensor ", name, " in the shape's list")));
    return nullptr;
  }

  PackedMatrix Matrix(const std::string& name) {
    const TensorInfo* info = Find(name);
    if (info == nullptr) return {};
    const auto packed = PackedTypeFor(info->type);
    Keep(packed.status());
    if (!packed.ok()) return {};
    PackedMatrix matrix{.type = *packed,
                        .n_out = static_cast<int>(info->rows()),
                        .n_in = static_cast<int>(info->cols())};
    matrix.panel_inputs = matrix.padded_inputs();
    std::byte* to = Room(PackedBytes(matrix));
    ZeroPacked(matrix, to);
    RowDecoder decoder(info->type, *packed, info->cols(), {});
    const std::span<const uint8_t> data = file_.Data(*info);
    const size_t row_bytes = data.size() / static_cast<size_t>(matrix.n_out);
    for (int row = 0; row < matrix.n_out; ++row) {
      auto decoded = decoder.Decode(data.subspan(static_cast<size_t>(row) * row_bytes, row_bytes));
      Keep(decoded.status());
      if (!decoded.ok()) return {};
      PackRow(matrix, row, *decoded, to);
    }
    matrix.data = to;
    return matrix;
  }

  std::byte* Room(size_t bytes) {
    weights_->storage.emplace_back(bytes);
    return weights_->storage.back().data();
  }

  void Keep(const absl::Status& status) { status_.Update(status); }

  const GgufFile& file_;
  TlmWeights* weights_;
  const EncoderShape& e_;
  std::vector<TensorSpec> specs_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<const TensorInfo*> FindTlmTensor(const GgufFile& file, const TensorSpec& spec) {
  const TensorInfo* info = file.FindTensor(spec.name);
  if (info == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(file.path(), ": tensor ", spec.name, ", required by the file's withy.tlm ",
                     "and mobilebert keys, is missing; export the model again"));
  }
  std::vector<int64_t> dims = info->dims;
  while (dims.size() > spec.dims.size() && dims.back() == 1) dims.pop_back();
  if (dims != spec.dims) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), ": tensor ", spec.name, " has shape [", absl::StrJoin(info->dims, ", "),
        "], the file's keys say [", absl::StrJoin(spec.dims, ", "), "]; export the model again"));
  }
  const bool wide = spec.role == TensorRole::kTokens || spec.role == TensorRole::kMatrix;
  const GgmlTypeTraits* traits = FindTypeTraits(info->type);
  if (!wide && traits != nullptr && traits->block_elements > 1) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", spec.name, " is ",
                                                   ToAbsl(TypeName(info->type)),
                                                   "; it must be F32, F16 or BF16"));
  }
  if (!CanDequantize(info->type)) {
    return absl::UnimplementedError(absl::StrCat(file.path(), ": tensor ", spec.name, " is ",
                                                 ToAbsl(TypeName(info->type)),
                                                 "; write the model as F32 or Q8_0"));
  }
  return info;
}

absl::StatusOr<std::unique_ptr<TlmWeights>> LoadTlmWeights(const GgufFile& file) {
  auto weights = std::make_unique<TlmWeights>();
  WITHY_ASSIGN_OR_RETURN(weights->shape, ReadTlmShape(file));
  const TlmShape& shape = weights->shape;
  Loader loader(file, weights.get());
  loader.TokenRows();
  weights->positions = loader.Floats("position_embd.weight");
  weights->token_types = loader.Floats("token_types.weight");
  if (shape.encoder.has_transform()) weights->transform = loader.Linear("embd_transform");
  weights->embedding_norm = loader.Norm("embd_norm", kDefaultNormEpsilon);
  weights->shared = loader.Tower("shared", shape.shared_layers);
  weights->score = loader.Tower("score", shape.score_layers);
  weights->decision = loader.Tower("decision", shape.decision_layers);
  weights->keep = loader.Linear("score.keep");
  if (shape.pooler) weights->pooler = loader.Linear("decision.pooler");
  weights->prompt = loader.Linear("decision.prompt");
  weights->model = loader.Linear("decision.model");
  WITHY_RETURN_IF_ERROR(loader.status());
  return weights;
}

}  // namespace withy::engine
