#include "offline/elastic/export.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>

#include "base/status.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/writer.h"
#include "engine/weights/overlay.h"
#include "engine/weights/sha256.h"

namespace withy::elastic {
namespace {

using torch::Tensor;

class Exporter {
 public:
  Exporter(const engine::GgufFile& source, const Network& network, MatrixType type)
      : source_(source), network_(network), type_(type) {}

  // The overlay; `network` says where its units were.
  absl::Status Write(const std::vector<ElasticLevel>& levels, int32_t lora_rank,
                     const Findings& findings, const std::string& path) {
    writer_.SetString(engine::kOverlaySource, engine::Sha256Of(source_));
    SetOrder();
    SetLevels(levels, lora_rank);
    SetFindings(findings);
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

  void SetOrder() {
    std::vector<uint32_t> heads;
    std::vector<uint32_t> neurons;
    const auto append = [](const Tensor& were, std::vector<uint32_t>* to) {
      const Tensor row = were.to(torch::kCPU).contiguous();
      to->insert(to->end(), row.data_ptr<int64_t>(), row.data_ptr<int64_t>() + row.numel());
    };
    for (const Layer& layer : network_.layers()) {
      append(layer.heads_were, &heads);
      append(layer.neurons_were, &neurons);
    }
    writer_.SetArray<uint32_t>(engine::kOverlayHeads, heads);
    writer_.SetArray<uint32_t>(engine::kOverlayNeurons, neurons);
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
                           const Findings& findings, MatrixType type, const std::string& overlay,
                           const std::string& path) {
  WITHY_RETURN_IF_ERROR(
      Exporter(source, network, type).Write(levels, lora_rank, findings, overlay));
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile made, engine::GgufFile::Open(overlay));
  return engine::ApplyOverlay(source, made, {.type = type, .every_matrix = true}, path);
}

}  // namespace withy::elastic
