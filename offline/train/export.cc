#include "offline/train/export.h"

#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/writer.h"
#include "offline/vocab/vocabulary.h"

namespace withy::train {
namespace {

constexpr uint32_t kFileTypeF32 = 0;   // general.file_type
constexpr uint32_t kFileTypeQ8_0 = 7;  // mostly Q8_0
constexpr uint32_t kQuantizationVersion = 2;

void SetShape(const Shape& shape, const std::string& name, bool quantized,
              engine::GgufWriter& writer) {
  writer.SetString("general.architecture", "llama");
  writer.SetString("general.name", name);
  writer.SetString("general.license", "apache-2.0");
  writer.Set<uint32_t>("general.file_type", quantized ? kFileTypeQ8_0 : kFileTypeF32);
  if (quantized) writer.Set<uint32_t>("general.quantization_version", kQuantizationVersion);
  const auto set = [&](const char* key, int64_t value) {
    writer.Set<uint32_t>(std::string("llama.") + key, static_cast<uint32_t>(value));
  };
  set("block_count", shape.layers);
  set("context_length", shape.context_length);
  set("embedding_length", shape.d_model);
  set("feed_forward_length", shape.ffn);
  set("attention.head_count", shape.heads);
  set("attention.head_count_kv", shape.kv_heads);
  set("attention.key_length", shape.head_dim);
  set("attention.value_length", shape.head_dim);
  set("rope.dimension_count", shape.head_dim);
  set("vocab_size", shape.vocab_size);
  writer.Set<float>("llama.attention.layer_norm_rms_epsilon", static_cast<float>(shape.norm_eps));
  writer.Set<float>("llama.rope.freq_base", static_cast<float>(shape.rope_theta));
}

absl::StatusOr<std::vector<uint8_t>> Encode(const torch::Tensor& value, engine::GgmlType type) {
  const torch::Tensor data =
      value.detach().to(torch::kCPU).to(torch::kFloat32).contiguous().view(-1);
  WITHY_ASSIGN_OR_RETURN(const uint64_t bytes, engine::RowBytes(type, data.numel()));
  std::vector<uint8_t> encoded(bytes);
  WITHY_RETURN_IF_ERROR(engine::Quantize(
      type, std::span<const float>(data.data_ptr<float>(), static_cast<size_t>(data.numel())),
      encoded));
  return encoded;
}

}  // namespace

absl::Status ExportGguf(const Model& model, const vocab::BpeVocabulary& vocabulary,
                        const std::string& name, engine::GgmlType type, const std::string& path) {
  if (type != engine::GgmlType::kF32 && type != engine::GgmlType::kQ8_0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": cannot export as ", ToAbsl(engine::TypeName(type)), "; types are F32 and Q8_0"));
  }
  engine::GgufWriter writer;
  SetShape(model.shape(), name, type == engine::GgmlType::kQ8_0, writer);
  vocab::SetTokenizerMetadata(vocabulary, writer);
  std::vector<std::vector<uint8_t>> contents;
  contents.reserve(model.parameters().size());  // borrowed by the writer
  for (const Parameter& parameter : model.parameters()) {
    const bool is_matrix = parameter.value.dim() == 2;
    const engine::GgmlType stored = is_matrix ? type : engine::GgmlType::kF32;
    absl::StatusOr<std::vector<uint8_t>> encoded = Encode(parameter.value, stored);
    if (!encoded.ok()) return Annotate(encoded.status(), parameter.name);
    contents.push_back(std::move(encoded).value());
    std::vector<int64_t> dims = {parameter.value.size(-1)};
    if (is_matrix) dims.push_back(parameter.value.size(0));
    writer.AddTensor(parameter.name, stored, dims, contents.back());
  }
  return writer.Write(path);
}

}  // namespace withy::train
