#include "engine/model/facts.h"

#include <array>
#include <filesystem>
#include <utility>

#include "base/status.h"
#include "base/utf8.h"
#include "engine/kv/block.h"
#include "engine/model/weight_name.h"

namespace withy::engine {
namespace {

class FactsReader {
 public:
  explicit FactsReader(const PackedFile& file) : file_(file) {}

  absl::StatusOr<ModelFacts> Read(std::span<const LevelSpec> levels, int32_t window) {
    WITHY_ASSIGN_OR_RETURN(facts_.shape, ReadShape(file_.metadata()));
    ModelShape& s = facts_.shape;
    WITHY_RETURN_IF_ERROR(Frequencies());
    s.UseWindow(window);
    WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kEmbedding}, s.vocab_size, s.d_model).status());
    if (file_.Find(TensorName({WeightRole::kHead})) != nullptr) {
      WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kHead}, s.vocab_size, s.d_model).status());
    }
    if (s.learned_positions) {
      WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kPositions}, s.context_length, s.d_model).status());
    }
    WITHY_RETURN_IF_ERROR(Norm({WeightRole::kOutputNorm}, WeightRole::kOutputNormBias));
    WITHY_RETURN_IF_ERROR(BesideLayers());
    for (int32_t layer = 0; layer < s.layers; ++layer) WITHY_RETURN_IF_ERROR(Layer(layer));
    WITHY_ASSIGN_OR_RETURN(LevelTable table, ReadLevels(file_.metadata(), s));
    facts_.levels = std::move(table.levels);
    facts_.lora_rank = table.lora_rank;
    if (facts_.lora_rank > 0) WITHY_RETURN_IF_ERROR(Lora());
    if (!levels.empty()) {
      absl::Status status = CheckHasLevels(s);
      if (status.ok()) status = CheckSlices(s, levels, 0);
      if (!status.ok()) return Annotate(status, file_.path());
      facts_.levels.assign(levels.begin(), levels.end());
      facts_.lora_rank = 0;
    }
    WITHY_RETURN_IF_ERROR(CheckLevels());
    LevelSpec& full = facts_.levels.emplace_back(LevelSpec{.percent = 100});
    for (int32_t layer = 0; layer < s.layers; ++layer) {
      full.layers.push_back(FullExtent(s, layer));
    }
    return std::move(facts_);
  }

 private:
  // Tensors of the GGUF may have divided what the metadata says.
  absl::Status Frequencies() {
    ModelShape& s = facts_.shape;
    const auto count = static_cast<int32_t>(s.rope_frequencies.size());
    WITHY_ASSIGN_OR_RETURN(const std::span<const float> values,
                           Vector({WeightRole::kRopeFrequencies}, count));
    s.rope_frequencies.assign(values.begin(), values.end());
    const WeightName of_long{WeightRole::kLongRopeFrequencies};
    if (file_.Find(TensorName(of_long)) == nullptr) return absl::OkStatus();
    WITHY_ASSIGN_OR_RETURN(const std::span<const float> long_values, Vector(of_long, count));
    s.long_rope_frequencies.assign(long_values.begin(), long_values.end());
    return absl::OkStatus();
  }

  absl::Status Layer(int32_t layer) {
    const ModelShape& s = facts_.shape;
    LayerFacts& facts = facts_.layers.emplace_back();
    WITHY_RETURN_IF_ERROR(Norms(layer));
    WITHY_ASSIGN_OR_RETURN(facts.q_bias, Bias({WeightRole::kQBias, layer}, s.q_rows()));
    WITHY_ASSIGN_OR_RETURN(facts.k_bias, Bias({WeightRole::kKBias, layer}, s.kv_rows()));
    WITHY_ASSIGN_OR_RETURN(facts.v_bias, Bias({WeightRole::kVBias, layer}, s.kv_rows()));
    WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kQ, layer}, s.q_rows(), s.d_model).status());
    if (s.KvSourceOf(layer) == layer) {
      WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kK, layer}, s.kv_rows(), s.d_model).status());
      WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kV, layer}, s.kv_rows(), s.d_model).status());
    }
    WITHY_ASSIGN_OR_RETURN(const PackedMatrix output,
                           Matrix({WeightRole::kOutput, layer}, s.d_model, s.q_rows()));
    facts.output_panel = output.panel_inputs;
    if (s.attention_sinks) {
      WITHY_RETURN_IF_ERROR(Vector({WeightRole::kAttnSinks, layer}, s.heads).status());
    }
    WITHY_RETURN_IF_ERROR(BesideAttention(layer));
    if (s.experts > 0) return Experts(layer);
    const int32_t neurons = s.NeuronsOf(layer);
    if (s.gated_mlp) {
      WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kGate, layer}, neurons, s.d_model).status());
    }
    WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kUp, layer}, neurons, s.d_model).status());
    WITHY_ASSIGN_OR_RETURN(const PackedMatrix down,
                           Matrix({WeightRole::kDown, layer}, s.d_model, neurons));
    facts.down_panel = down.panel_inputs;
    return ProductBiases(layer);
  }

  // What layers with copies of the stream, LAuReL and inputs of their own have more than others.
  absl::Status BesideAttention(int32_t layer) const {
    const ModelShape& s = facts_.shape;
    const auto vector = [&](WeightRole role, int32_t n) {
      return Vector({role, layer}, n).status();
    };
    const auto matrix = [&](WeightRole role, int32_t n_out, int32_t n_in) {
      return Matrix({role, layer}, n_out, n_in).status();
    };
    if (s.streams > 1) {
      const int32_t n = s.streams;
      WITHY_RETURN_IF_ERROR(vector(WeightRole::kStreamRouterNorm, s.d_model));
      WITHY_RETURN_IF_ERROR(vector(WeightRole::kStreamRouter, n * s.d_model));
      WITHY_RETURN_IF_ERROR(vector(WeightRole::kStreamPredict, n * n * n));
      WITHY_RETURN_IF_ERROR(vector(WeightRole::kStreamCorrect, n * n));
      WITHY_RETURN_IF_ERROR(vector(WeightRole::kStreamScale, s.d_model));
    }
    if (s.laurel_rank > 0) {
      WITHY_RETURN_IF_ERROR(matrix(WeightRole::kLaurelLeft, s.laurel_rank, s.d_model));
      WITHY_RETURN_IF_ERROR(matrix(WeightRole::kLaurelRight, s.d_model, s.laurel_rank));
      WITHY_RETURN_IF_ERROR(vector(WeightRole::kLaurelNorm, s.d_model));
    }
    if (!s.has_layer_inputs()) return absl::OkStatus();
    WITHY_RETURN_IF_ERROR(matrix(WeightRole::kLayerGate, s.layer_width, s.d_model));
    WITHY_RETURN_IF_ERROR(matrix(WeightRole::kLayerOut, s.d_model, s.layer_width));
    return vector(WeightRole::kLayerNorm, s.d_model);
  }

  // What such models have once.
  absl::Status BesideLayers() const {
    const ModelShape& s = facts_.shape;
    if (s.streams > 1) {
      const int32_t others = (s.streams - 1) * s.d_model;
      WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kSpread}, others, s.d_model).status());
      WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kMerge}, others, s.d_model).status());
    }
    if (!s.has_layer_inputs()) return absl::OkStatus();
    const int32_t width = s.layer_inputs_width();
    WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kLayerEmbedding}, s.vocab_size, width).status());
    WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kLayerProjection}, width, s.d_model).status());
    return Vector({WeightRole::kLayerProjectionNorm}, s.layer_width).status();
  }

  absl::Status ProductBiases(int32_t layer) const {
    const ModelShape& s = facts_.shape;
    if (!s.product_biases) return absl::OkStatus();
    WITHY_RETURN_IF_ERROR(Vector({WeightRole::kAttnOutputBias, layer}, s.d_model).status());
    if (s.experts > 0) {
      const int32_t neurons = s.experts * s.expert_neurons;
      WITHY_RETURN_IF_ERROR(Vector({WeightRole::kRouterBias, layer}, s.experts).status());
      WITHY_RETURN_IF_ERROR(Vector({WeightRole::kGateExpertsBias, layer}, neurons).status());
      WITHY_RETURN_IF_ERROR(Vector({WeightRole::kUpExpertsBias, layer}, neurons).status());
      return Vector({WeightRole::kDownExpertsBias, layer}, s.experts * s.d_model).status();
    }
    WITHY_RETURN_IF_ERROR(Vector({WeightRole::kUpBias, layer}, s.d_ff).status());
    return Vector({WeightRole::kDownBias, layer}, s.d_model).status();
  }

  // A norm of the stream, with its bias where norms have one.
  absl::Status Norm(const WeightName& name, WeightRole bias) const {
    const ModelShape& s = facts_.shape;
    WITHY_RETURN_IF_ERROR(Vector(name, s.d_model).status());
    return s.layer_norms ? Vector({bias, name.layer}, s.d_model).status() : absl::OkStatus();
  }

  absl::Status Experts(int32_t layer) const {
    const ModelShape& s = facts_.shape;
    const int32_t neurons = s.experts * s.expert_neurons;
    WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kRouter, layer}, s.experts, s.d_model).status());
    WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kGateExperts, layer}, neurons, s.d_model).status());
    WITHY_RETURN_IF_ERROR(Matrix({WeightRole::kUpExperts, layer}, neurons, s.d_model).status());
    WITHY_RETURN_IF_ERROR(
        Matrix({WeightRole::kDownExperts, layer}, s.experts * s.d_model, s.expert_neurons)
            .status());
    return ProductBiases(layer);
  }

  absl::Status Norms(int32_t layer) const {
    const ModelShape& s = facts_.shape;
    const auto check = [&](WeightRole role, int32_t n) {
      return Vector({role, layer}, n).status();
    };
    if (s.pre_norms) {
      WITHY_RETURN_IF_ERROR(Norm({WeightRole::kAttnNorm, layer}, WeightRole::kAttnNormBias));
      WITHY_RETURN_IF_ERROR(Norm({WeightRole::kFfnNorm, layer}, WeightRole::kFfnNormBias));
    }
    if (s.post_norms) {
      WITHY_RETURN_IF_ERROR(check(WeightRole::kPostAttnNorm, s.d_model));
      WITHY_RETURN_IF_ERROR(check(WeightRole::kPostFfnNorm, s.d_model));
    }
    if (s.qk_norm == QkNorm::kNone) return absl::OkStatus();
    const bool whole = s.qk_norm == QkNorm::kWhole;
    WITHY_RETURN_IF_ERROR(check(WeightRole::kQNorm, whole ? s.q_rows() : s.head_dim));
    if (s.KvSourceOf(layer) != layer) return absl::OkStatus();
    return check(WeightRole::kKNorm, whole ? s.kv_rows() : s.head_dim);
  }

  // Checks every tensor that the levels' LoRA needs.
  absl::Status Lora() {
    for (const LevelSpec& level : facts_.levels) {
      for (int32_t layer = 0; layer < facts_.shape.layers; ++layer) {
        const LayerExtent& extent = level.layers[static_cast<size_t>(layer)];
        if (extent == FullExtent(facts_.shape, layer)) continue;
        for (int i = 0; i < kLoraParts; ++i) {
          const auto part = static_cast<LoraPart>(i);
          const LoraShape shape = LoraShapeOf(part, facts_.shape, extent, facts_.lora_rank);
          if (shape.empty()) continue;
          WITHY_RETURN_IF_ERROR(LoraTensor(LoraName(level.percent, layer, part), part, shape));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status LoraTensor(const std::string& name, LoraPart part, const LoraShape& shape) const {
    if (IsLoraIn(part)) return Matrix(name, shape.rows, shape.cols).status();
    const PackedTensor* tensor = file_.Find(name);
    if (tensor == nullptr || tensor->kind != PackedKind::kLowRank ||
        tensor->low_rank.rank != shape.rows || tensor->low_rank.outputs != shape.cols) {
      return Wrong(name);
    }
    return absl::OkStatus();
  }

  absl::Status Wrong(std::string_view name) const {
    return absl::DataLossError(absl::StrCat(file_.path(), ": tensor ", ToAbsl(name),
                                            " is missing or has another shape than the metadata "
                                            "says; delete the file, and it is made again"));
  }

  absl::StatusOr<PackedMatrix> Matrix(const std::string& name, int32_t n_out, int32_t n_in) const {
    const PackedTensor* tensor = file_.Find(name);
    if (tensor == nullptr || tensor->kind != PackedKind::kMatrix || tensor->matrix.n_out != n_out ||
        tensor->matrix.n_in != n_in) {
      return Wrong(name);
    }
    return tensor->matrix;
  }
  absl::StatusOr<PackedMatrix> Matrix(const WeightName& name, int32_t n_out, int32_t n_in) const {
    return Matrix(TensorName(name), n_out, n_in);
  }

  absl::StatusOr<std::span<const float>> Vector(const WeightName& name, int32_t n) const {
    const std::string tensor_name = TensorName(name);
    const PackedTensor* tensor = file_.Find(tensor_name);
    if (tensor == nullptr || tensor->kind != PackedKind::kVector ||
        tensor->values.size() != static_cast<size_t>(n)) {
      return Wrong(tensor_name);
    }
    return tensor->values;
  }

  // Whether the model has this bias.
  absl::StatusOr<bool> Bias(const WeightName& name, int32_t n) const {
    if (!facts_.shape.needs_qkv_bias && file_.Find(TensorName(name)) == nullptr) return false;
    WITHY_RETURN_IF_ERROR(Vector(name, n).status());
    return true;
  }

  // Checks that levels are nested, in whole units and panels. Runs before the full one is appended.
  absl::Status CheckLevels() const {
    const auto layers = static_cast<size_t>(facts_.shape.layers);
    for (size_t i = 0; i < facts_.levels.size(); ++i) {
      const LevelSpec& level = facts_.levels[i];
      if (level.layers.size() != layers) {
        return absl::InvalidArgumentError(absl::StrCat("level ", level.percent, " % has ",
                                                       level.layers.size(), " layers, the model ",
                                                       layers));
      }
      for (size_t layer = 0; layer < layers; ++layer) {
        const LayerExtent limit =
            i + 1 < facts_.levels.size() && layer < facts_.levels[i + 1].layers.size()
                ? facts_.levels[i + 1].layers[layer]
                : FullExtent(facts_.shape, static_cast<int32_t>(layer));
        WITHY_RETURN_IF_ERROR(CheckExtent(level, layer, limit));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckExtent(const LevelSpec& level, size_t layer, const LayerExtent& limit) const {
    const ModelShape& s = facts_.shape;
    const LayerExtent& e = level.layers[layer];
    const auto wrong = [&](std::string_view what, int32_t value, std::string_view wanted) {
      return absl::InvalidArgumentError(absl::StrCat("level ", level.percent, " %, layer ", layer,
                                                     ": ", ToAbsl(what), " ", value, " must be ",
                                                     ToAbsl(wanted)));
    };
    const int32_t unit = s.query_heads_per_unit();
    if (e.heads < 0 || e.heads > limit.heads || e.heads % unit != 0) {
      return wrong("heads", e.heads, absl::StrCat("a multiple of ", unit, " up to ", limit.heads));
    }
    if (e.heads != s.heads && e.heads * s.head_dim % facts_.layers[layer].output_panel != 0) {
      return wrong("heads", e.heads, "whole panels of attn_output");
    }
    const int32_t panel = facts_.layers[layer].down_panel;
    if (e.neurons < 0 || e.neurons > limit.neurons ||
        (e.neurons != s.NeuronsOf(static_cast<int32_t>(layer)) && e.neurons % panel != 0)) {
      return wrong("neurons", e.neurons,
                   absl::StrCat("a multiple of ", panel, " up to ", limit.neurons));
    }
    return absl::OkStatus();
  }

  const PackedFile& file_;
  ModelFacts facts_;
};

// Matrices that every level multiplies whole; those of a layer, unless it leaves that out.
constexpr std::array<WeightRole, 3> kBesideLayers = {WeightRole::kSpread, WeightRole::kMerge,
                                                     WeightRole::kLayerProjection};
constexpr std::array<WeightRole, 4> kBesideAttention = {
    WeightRole::kLaurelLeft, WeightRole::kLaurelRight, WeightRole::kLayerGate,
    WeightRole::kLayerOut};

// Computes the bytes and operations per token of a level from the file's table.
class LevelMeter {
 public:
  LevelMeter(const PackedFile& file, const ModelFacts& facts) : file_(file), facts_(facts) {}

  LevelInfo Describe(int32_t level) const {
    const ModelShape& s = facts_.shape;
    LevelInfo info;
    info.percent = facts_.levels[static_cast<size_t>(level)].percent;
    info.weight_bytes = static_cast<int64_t>(PackedBytes(Head()));
    info.flops_per_token = 2 * int64_t{s.vocab_size} * s.d_model;
    AddBeside(-1, kBesideLayers, &info);
    for (int32_t layer = 0; layer < s.layers; ++layer) {
      const LayerExtent& extent = facts_.Extent(level, layer);
      info.weight_bytes += LayerBytes(layer, extent);
      info.flops_per_token += LayerFlops(layer, extent);
      if (extent != LayerExtent{}) AddBeside(layer, kBesideAttention, &info);
      if (level < facts_.full_level() && facts_.lora_rank > 0 && extent != FullExtent(s, layer)) {
        AddLora(level, layer, extent, &info);
      }
    }
    return info;
  }

 private:
  PackedMatrix Head() const {
    const PackedTensor* head = file_.Find(TensorName({WeightRole::kHead}));
    return head != nullptr ? head->matrix
                           : file_.Find(TensorName({WeightRole::kEmbedding}))->matrix;
  }

  int64_t LayerBytes(int32_t layer, const LayerExtent& extent) const {
    const ModelShape& s = facts_.shape;
    const int q_rows = extent.heads * s.head_dim;
    const int kv_rows = s.kv_heads_of(extent.heads) * s.head_dim;
    size_t bytes = 0;
    const auto add = [&](WeightRole role, int rows, int inputs) {
      const PackedMatrix& m = file_.Find(TensorName({role, layer}))->matrix;
      bytes += PrefixBytes(m, rows >= 0 ? rows : m.n_out, inputs >= 0 ? inputs : m.n_in);
    };
    if (s.KvSourceOf(layer) == layer) {
      add(WeightRole::kK, kv_rows, -1);
      add(WeightRole::kV, kv_rows, -1);
    }
    add(WeightRole::kQ, q_rows, -1);
    add(WeightRole::kOutput, -1, q_rows);
    if (s.experts > 0) {  // of a pass of one row
      add(WeightRole::kRouter, -1, -1);
      add(WeightRole::kGateExperts, extent.neurons, -1);
      add(WeightRole::kUpExperts, extent.neurons, -1);
      add(WeightRole::kDownExperts, s.experts_used * s.d_model, -1);
      return static_cast<int64_t>(bytes);
    }
    if (s.gated_mlp) add(WeightRole::kGate, extent.neurons, -1);
    add(WeightRole::kUp, extent.neurons, -1);
    add(WeightRole::kDown, -1, extent.neurons);
    return static_cast<int64_t>(bytes);
  }

  // Adds those of these matrices that the model has.
  void AddBeside(int32_t layer, std::span<const WeightRole> roles, LevelInfo* info) const {
    for (const WeightRole role : roles) {
      const PackedTensor* tensor = file_.Find(TensorName({role, layer}));
      if (tensor == nullptr) continue;
      info->weight_bytes += static_cast<int64_t>(PackedBytes(tensor->matrix));
      info->flops_per_token += 2 * int64_t{tensor->matrix.n_out} * tensor->matrix.n_in;
    }
  }

  int64_t LayerFlops(int32_t layer, const LayerExtent& extent) const {
    const ModelShape& s = facts_.shape;
    const bool own_kv = s.KvSourceOf(layer) == layer;
    const int64_t heads = extent.heads + (own_kv ? s.kv_heads_of(extent.heads) : 0);
    const int64_t rows = 2 * heads * s.head_dim + (s.gated_mlp ? 3 : 2) * int64_t{extent.neurons};
    return 2 * rows * s.d_model;
  }

  void AddLora(int32_t level, int32_t layer, const LayerExtent& extent, LevelInfo* info) const {
    const int32_t percent = facts_.levels[static_cast<size_t>(level)].percent;
    for (int i = 0; i < kLoraParts; ++i) {
      const auto part = static_cast<LoraPart>(i);
      const LoraShape shape = LoraShapeOf(part, facts_.shape, extent, facts_.lora_rank);
      if (shape.empty()) continue;
      const PackedTensor& tensor = *file_.Find(LoraName(percent, layer, part));
      info->weight_bytes += static_cast<int64_t>(
          IsLoraIn(part) ? PackedBytes(tensor.matrix) : LowRankBytes(shape.rows, shape.cols));
      info->flops_per_token += 2 * int64_t{shape.rows} * shape.cols;
    }
  }

  const PackedFile& file_;
  const ModelFacts& facts_;
};

// GGUF's name of the type that holds the most weight bytes.
std::string_view MostUsedType(const PackedFile& file) {
  static constexpr std::array<std::string_view, 8> kNames = {"F32",  "F16",  "BF16",  "Q8_0",
                                                             "Q4_0", "Q4_1", "MXFP4", "IQ4_NL"};
  static_assert(kNames.size() == static_cast<size_t>(kLastWeightType) + 1);
  std::array<uint64_t, kNames.size()> bytes{};
  for (const PackedTensor& tensor : file.tensors()) {
    if (tensor.kind == PackedKind::kMatrix) {
      bytes[static_cast<size_t>(tensor.matrix.type)] += tensor.bytes;
    }
  }
  size_t best = 0;
  for (size_t i = 1; i < bytes.size(); ++i) {
    if (bytes[i] > bytes[best]) best = i;
  }
  return kNames[best];
}

// Layers with a window, and how far behind itself a row of these reads at most: kernels read keys
// by whole runs. One layer is always left: a chunk has at least one block.
void SetWindows(const ModelShape& shape, KvInfo* kv) {
  if (kv->layers > KvLayerSet::kMost) return;
  int32_t window = 0;
  for (int32_t layer = 0; layer < kv->layers; ++layer) {
    if (shape.WindowOf(layer) <= 0) continue;
    kv->windowed.Add(layer);
    window = std::max(window, shape.WindowOf(layer));
  }
  if (kv->windowed.CountBelow(kv->layers) == kv->layers) kv->windowed.Remove(0);
  if (!kv->windowed.empty()) kv->window_reach = window + kAttentionRunTokens;
}

}  // namespace

bool ModelFacts::HasLora(int32_t level, int32_t layer, bool attention) const {
  if (lora_rank == 0 || level >= full_level()) return false;
  const LayerExtent& extent = Extent(level, layer);
  if (extent == FullExtent(shape, layer)) return false;
  return attention ? extent.heads > 0 : extent.neurons > 0;
}

absl::StatusOr<ModelFacts> ReadFacts(const PackedFile& file, std::span<const LevelSpec> levels,
                                     int32_t window) {
  return FactsReader(file).Read(levels, window);
}

ModelInfo DescribeModel(const PackedFile& file, const ModelFacts& facts) {
  const ModelShape& s = facts.shape;
  ModelInfo info;
  info.name = !s.name.empty()
                  ? s.name
                  : ValidUtf8(std::filesystem::path(file.path()).stem().string(), kMaxShownBytes);
  info.architecture = s.architecture;
  info.id = file.model_id();
  info.kv_epoch = file.kv_epoch();
  if (s.short_rope) info.kv_variant = "short-rope";
  info.quantisation = MostUsedType(file);
  info.layers = s.layers;
  info.d_model = s.d_model;
  info.heads = s.heads;
  info.kv_heads = s.kv_heads;
  info.head_dim = s.head_dim;
  info.d_ff = s.d_ff;
  info.vocab_size = s.vocab_size;
  info.context_length = s.context_length;
  for (const PackedTensor& tensor : file.tensors()) {
    info.weight_bytes += static_cast<int64_t>(tensor.bytes);
    // LoRA is not part of the model's parameters, and RoPE's frequencies are not learnt.
    if (tensor.name.starts_with(kGgufOwnPrefix)) continue;
    if (tensor.name.starts_with("rope_frequencies")) continue;
    info.parameters += tensor.kind == PackedKind::kMatrix
                           ? int64_t{tensor.matrix.n_out} * tensor.matrix.n_in
                           : static_cast<int64_t>(tensor.values.size());
  }
  const KvGeometry geometry{
      .layers = s.kv_layers(), .kv_heads = s.kv_heads, .head_dim = s.head_dim};
  info.kv = {.chunk_tokens = kChunkTokens,
             .layers = s.kv_layers(),
             .kv_heads = s.kv_heads,
             .head_dim = s.head_dim,
             .block_bytes = geometry.BlockBytes()};
  SetWindows(s, &info.kv);
  const LevelMeter meter(file, facts);
  for (int32_t level = 0; level <= facts.full_level(); ++level) {
    info.levels.push_back(meter.Describe(level));
  }
  return info;
}

}  // namespace withy::engine
