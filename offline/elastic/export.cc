#include "offline/elastic/export.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/status.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/writer.h"

namespace withy::elastic {
namespace {

using torch::Tensor;

class Exporter {
 public:
  Exporter(const engine::GgufFile& source, const Network& network, MatrixType type)
      : source_(source), network_(network), type_(type) {}

  absl::Status Write(const std::vector<ElasticLevel>& levels, int32_t lora_rank,
                     const Findings& findings, const std::string& path) {
    writer_.CopyMetadata(source_, [](std::string_view key) {
      return key.starts_with("withy.") || key == "general.file_type";
    });
    SetLevels(levels, lora_rank);
    SetFindings(findings);
    WITHY_RETURN_IF_ERROR(AddWeights());
    for (const ElasticLevel& level : levels) WITHY_RETURN_IF_ERROR(AddLora(level, lora_rank));
    return writer_.Write(path);
  }

 private:
  void SetLevels(const std::vector<ElasticLevel>& levels, int32_t lora_rank) {
    std::vector<uint32_t> percents;
    std::vector<uint32_t> heads;
    std::vector<uint32_t> neurons;
    bool lora = false;
    for (const ElasticLevel& level : levels) {
      percents.push_back(static_cast<uint32_t>(level.spec.percent));
      for (const engine::LayerExtent& extent : level.spec.layers) {
        heads.push_back(static_cast<uint32_t>(extent.heads));
        neurons.push_back(static_cast<uint32_t>(extent.neurons));
      }
      lora = lora || !level.lora.empty();
    }
    writer_.SetArray<uint32_t>("withy.level.percent", percents);
    writer_.SetArray<uint32_t>("withy.level.heads", heads);
    writer_.SetArray<uint32_t>("withy.level.neurons", neurons);
    if (lora) writer_.Set<uint32_t>("withy.lora.rank", static_cast<uint32_t>(lora_rank));
  }

  void SetFloats(const char* key, const std::vector<double>& values) {
    const std::vector<float> floats(values.begin(), values.end());
    if (!floats.empty()) writer_.SetArray<float>(key, floats);
  }

  // Stores importances in the order of the stored units: descending, heads within their group.
  void SetFindings(const Findings& findings) {
    const std::vector<uint32_t> order(findings.anchors.begin(), findings.anchors.end());
    writer_.SetArray<uint32_t>("withy.level.anchors", order);
    if (findings.whole_loss > 0) {
      writer_.Set<float>("withy.level.whole_loss", static_cast<float>(findings.whole_loss));
    }
    SetFloats("withy.level.loss", findings.losses);
    SetFloats("withy.level.lora_loss", findings.lora_losses);
    SetFloats("withy.importance.layers", findings.layers);
    std::vector<double> heads;
    std::vector<double> neurons;
    const auto append = [](const Tensor& importance, std::vector<double>* to) {
      const Tensor sorted = std::get<0>(importance.sort(-1, /*descending=*/true))
                                .flatten()
                                .to(torch::kCPU)
                                .to(torch::kFloat64);
      to->insert(to->end(), sorted.data_ptr<double>(), sorted.data_ptr<double>() + sorted.numel());
    };
    for (const UnitImportance& layer : findings.units) {
      append(layer.heads, &heads);
      append(layer.neurons, &neurons);
    }
    SetFloats("withy.importance.heads", heads);
    SetFloats("withy.importance.neurons", neurons);
  }

  // Tensors that elasticizing may change, by name; all others are copied from the source.
  std::map<std::string, Tensor> Changed() const {
    std::map<std::string, Tensor> all;
    for (size_t i = 0; i < network_.layers().size(); ++i) {
      const Layer& layer = network_.layers()[i];
      const std::string blk = absl::StrCat("blk.", i, ".");
      for (const auto& [name, value] :
           {std::pair<const char*, const Tensor*>{"attn_q.weight", &layer.q},
            {"attn_k.weight", &layer.k},
            {"attn_v.weight", &layer.v},
            {"attn_q.bias", &layer.q_bias},
            {"attn_k.bias", &layer.k_bias},
            {"attn_v.bias", &layer.v_bias},
            {"attn_norm.weight", &layer.attention_norm},
            {"ffn_norm.weight", &layer.ffn_norm},
            {"attn_output.weight", &layer.o},
            {"ffn_gate.weight", &layer.gate},
            {"ffn_up.weight", &layer.up},
            {"ffn_down.weight", &layer.down}}) {
        if (value->defined()) all[blk + name] = *value;
      }
    }
    return all;
  }

  absl::Status AddWeights() {
    const std::map<std::string, Tensor> changed = Changed();
    for (const engine::TensorInfo& info : source_.tensors()) {
      if (info.name.starts_with("withy.")) continue;
      const auto it = changed.find(info.name);
      const engine::GgmlType type = TypeOf(info, type_, it != changed.end());
      if (it == changed.end() && type == info.type) {
        writer_.AddTensor(info.name, info.type, info.dims, source_.Data(info));
        continue;
      }
      Tensor values;
      if (it != changed.end()) {
        values = it->second;
      } else {
        values = torch::empty({info.elements()}, torch::kFloat32);
        WITHY_RETURN_IF_ERROR(engine::Dequantize(info.type, source_.Data(info), Floats(values)));
      }
      WITHY_RETURN_IF_ERROR(Add(info.name, type, info.dims, values));
      if (it != changed.end() && type == info.type && IsMatrix(info)) {
        WITHY_RETURN_IF_ERROR(CopyBlocks(info, values, contents_.back()));
      }
    }
    return absl::OkStatus();
  }

  // Copies the source's bytes wherever a block of `values` equals a source block, because rows and
  // heads move as a whole. Requantising would change blocks of quantisers that weight their errors.
  absl::Status CopyBlocks(const engine::TensorInfo& info, const Tensor& values,
                          std::span<uint8_t> encoded) const {
    const engine::GgmlTypeTraits& traits = *engine::FindTypeTraits(info.type);
    if (traits.block_elements == 1) return absl::OkStatus();
    std::vector<float> floats(static_cast<size_t>(info.elements()));
    WITHY_RETURN_IF_ERROR(engine::Dequantize(info.type, source_.Data(info), floats));
    const Tensor now = values.detach().to(torch::kCPU).to(torch::kFloat32).contiguous().view({-1});
    const size_t block_bytes = traits.block_elements * sizeof(float);
    const auto block_of = [&](const float* data, size_t block) {
      return std::string_view(reinterpret_cast<const char*>(data + block * traits.block_elements),
                              block_bytes);
    };
    const size_t blocks = floats.size() / traits.block_elements;
    std::unordered_map<std::string_view, size_t> places;
    for (size_t b = 0; b < blocks; ++b) places.emplace(block_of(floats.data(), b), b);
    for (size_t b = 0; b < blocks; ++b) {
      const auto found = places.find(block_of(now.data_ptr<float>(), b));
      if (found == places.end()) continue;
      const auto from =
          source_.Data(info).subspan(found->second * traits.block_bytes, traits.block_bytes);
      std::copy(from.begin(), from.end(),
                encoded.begin() + static_cast<ptrdiff_t>(b) * traits.block_bytes);
    }
    return absl::OkStatus();
  }

  static std::span<float> Floats(const Tensor& values) {
    return {values.data_ptr<float>(), static_cast<size_t>(values.numel())};
  }

  absl::Status Add(const std::string& name, engine::GgmlType type, std::vector<int64_t> dims,
                   const Tensor& values) {
    const Tensor data = values.detach().to(torch::kCPU).to(torch::kFloat32).contiguous().view({-1});
    WITHY_ASSIGN_OR_RETURN(const uint64_t bytes, engine::RowBytes(type, data.numel()));
    std::vector<uint8_t>& encoded = contents_.emplace_back(bytes);
    const absl::Status status = engine::Quantize(type, Floats(data), encoded);
    if (!status.ok()) return Annotate(status, name);
    writer_.AddTensor(name, type, std::move(dims), encoded);
    return absl::OkStatus();
  }

  // Reorders the heads of a [heads * head_dim, …] tensor from the file's order to the rank-major
  // order of levels.
  Tensor RankMajor(const Tensor& rows) const {
    const engine::ModelShape& s = network_.shape();
    if (s.cuts_kv_heads()) return rows;
    const int64_t ranks = rows.size(0) / s.head_dim / s.kv_heads;
    return rows.view({s.kv_heads, ranks, s.head_dim, -1})
        .transpose(0, 1)
        .reshape({rows.size(0), -1});
  }

  absl::Status AddLora(const ElasticLevel& level, int32_t rank) {
    for (size_t i = 0; i < level.lora.size(); ++i) {
      const Lora& lora = level.lora[i];
      const auto layer = static_cast<int32_t>(i);
      std::vector<std::pair<engine::LoraPart, Tensor>> parts;
      if (lora.q.a.defined()) {
        parts = {{engine::LoraPart::kAttentionIn, torch::cat({lora.q.a, lora.k.a, lora.v.a})},
                 {engine::LoraPart::kAttentionOutIn, RankMajor(lora.o.a.t()).t()},
                 {engine::LoraPart::kQ, RankMajor(lora.q.b).t()},
                 {engine::LoraPart::kK, lora.k.b.t()},
                 {engine::LoraPart::kV, lora.v.b.t()},
                 {engine::LoraPart::kAttentionOut, lora.o.b.t()}};
      }
      if (lora.gate.a.defined()) {
        parts.insert(parts.end(), {{engine::LoraPart::kFfnIn, torch::cat({lora.gate.a, lora.up.a})},
                                   {engine::LoraPart::kDownIn, lora.down.a},
                                   {engine::LoraPart::kGate, lora.gate.b.t()},
                                   {engine::LoraPart::kUp, lora.up.b.t()},
                                   {engine::LoraPart::kDown, lora.down.b.t()}});
      }
      for (const auto& [part, values] : parts) {
        const engine::LoraShape shape =
            engine::LoraShapeOf(part, network_.shape(), level.spec.layers[i], rank);
        // 8 bits for any quantised type; floats only if requested.
        const bool floats = type_ == engine::GgmlType::kF32 || type_ == engine::GgmlType::kF16 ||
                            type_ == engine::GgmlType::kBF16;
        WITHY_RETURN_IF_ERROR(Add(engine::LoraName(level.spec.percent, layer, part),
                                  floats ? engine::GgmlType::kF32 : engine::GgmlType::kQ8_0,
                                  {shape.cols, shape.rows}, values));
      }
    }
    return absl::OkStatus();
  }

  const engine::GgufFile& source_;
  const Network& network_;
  const MatrixType type_;
  engine::GgufWriter writer_;
  std::deque<std::vector<uint8_t>> contents_;  // borrowed by the writer
};

}  // namespace

absl::Status ExportElastic(const engine::GgufFile& source, const Network& network,
                           const std::vector<ElasticLevel>& levels, int32_t lora_rank,
                           const Findings& findings, MatrixType type, const std::string& path) {
  return Exporter(source, network, type).Write(levels, lora_rank, findings, path);
}

}  // namespace withy::elastic
