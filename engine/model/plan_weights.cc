#include "engine/model/plan_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "engine/model/weight_name.h"

namespace withy::engine {
namespace {

// Layers whose streamed parts the buffers hold at a time. More of them even out a disk that is not
// steady, at the cost of resident bytes.
constexpr std::array<int32_t, 3> kLayersAhead = {4, 2, 1};
// Share of the budget that buffers for more than one layer may take.
constexpr double kExtraBufferShare = 0.02;

constexpr std::array<std::array<WeightRole, 3>, kStagesPerLayer> kStageRoles = {{
    {WeightRole::kK, WeightRole::kV, WeightRole::kQ},
    {WeightRole::kOutput, WeightRole::kOutput, WeightRole::kOutput},
    {WeightRole::kGate, WeightRole::kUp, WeightRole::kUp},
    {WeightRole::kDown, WeightRole::kDown, WeightRole::kDown},
}};

constexpr std::array<WeightRole, kExpertParts> kExpertRoles = {
    WeightRole::kGateExperts, WeightRole::kUpExperts, WeightRole::kDownExperts};

// A matrix and the prefixes of it between which the resident one is chosen, ascending from 0 to the
// whole matrix.
struct Choice {
  StreamedTensor* tensor;
  std::vector<uint64_t> prefixes;
};

class WeightPlanner {
 public:
  WeightPlanner(std::span<const PackedTensor> tensors, const ModelFacts& facts,
                const WeightPlanOptions& options)
      : tensors_(tensors), facts_(facts), options_(options) {
    for (size_t i = 0; i < tensors.size(); ++i) index_.emplace(tensors[i].name, i);
    AddStages();
    if (!FitsWhole()) {
      AddEmbeddings();
      AddExperts();
    }
    AddFixed();
    SetResident(plan_.experts.streamed() ? Top() : 0, 1);
  }

  uint64_t least() const { return plan_.memory_bytes(); }

  absl::StatusOr<WeightPlan> Plan() {
    plan_.budget_bytes = options_.budget_bytes;
    if (options_.budget_bytes < least()) return TooSmall();
    if (plan_.experts.streamed()) {
      GrowExperts();
    } else if (options_.whole_layers) {
      GrowBuffers();
    } else {
      ChooseResident();
    }
    for (int32_t level = 0; level <= facts_.full_level(); ++level) {
      plan_.level_bytes.push_back(BytesReadAt(level));
    }
    return std::move(plan_);
  }

 private:
  void AddStages() {
    plan_.stages.reserve(static_cast<size_t>(facts_.shape.layers * kStagesPerLayer));
    for (int32_t layer = 0; layer < facts_.shape.layers; ++layer) {
      for (const auto& roles : kStageRoles) {
        StreamStage& stage = plan_.stages.emplace_back();
        stage.layer = layer;
        for (size_t i = 0; i < roles.size(); ++i) {
          if (i > 0 && roles[i] == roles[i - 1]) break;
          // Experts, an MLP without a gate, or shared K and V.
          if (!index_.contains(TensorName({roles[i], layer}))) continue;
          stage.tensors.push_back(Tensor({roles[i], layer}));
        }
      }
    }
    for (StreamStage& stage : plan_.stages) {
      for (StreamedTensor& tensor : stage.tensors) choices_.push_back(ChoiceOf(&tensor));
    }
  }

  StreamedTensor Tensor(const WeightName& name) {
    StreamedTensor tensor;
    tensor.index = index_.at(TensorName(name));
    const PackedTensor& packed = tensors_[tensor.index];
    tensor.file_offset = packed.file_offset;
    tensor.bytes = packed.bytes;
    for (int32_t level = 0; level <= facts_.full_level(); ++level) {
      tensor.needed.push_back(Needed(packed.matrix, name, facts_.Extent(level, name.layer)));
    }
    staged_.insert(tensor.index);
    return tensor;
  }

  // Kernels compute whole pairs of tiles.
  uint64_t Needed(const PackedMatrix& m, const WeightName& name, const LayerExtent& extent) const {
    const ModelShape& s = facts_.shape;
    const auto outputs = [&](int32_t rows) {
      return PrefixBytes(m, static_cast<int>(RoundUp(static_cast<uint64_t>(rows), 2 * kTileRows)),
                         m.n_in);
    };
    switch (name.role) {
      case WeightRole::kQ:
        return outputs(extent.heads * s.head_dim);
      case WeightRole::kK:
      case WeightRole::kV:
        return outputs(s.cuts_kv_heads() ? s.kv_heads_of(extent.heads) * s.head_dim : s.kv_rows());
      case WeightRole::kOutput:
        return PrefixBytes(m, m.n_out, extent.heads * s.head_dim);
      case WeightRole::kDown:
        return PrefixBytes(m, m.n_out, extent.neurons);
      default:
        return outputs(extent.neurons);
    }
  }

  // K and V are small and needed at every level: they come first.
  Choice ChoiceOf(StreamedTensor* tensor) const {
    const std::string& name = tensors_[tensor->index].name;
    const bool first = name.ends_with("attn_k") || name.ends_with("attn_v");
    Choice choice{tensor, {0, first ? tensor->bytes : 0}};
    for (const uint64_t needed : tensor->needed) {
      // Whole pages, so that a level whose turn is over reads nothing.
      const uint64_t pages = std::min(RoundUp(needed, kWeightPage), tensor->bytes);
      choice.prefixes.push_back(std::max(choice.prefixes.back(), pages));
    }
    return choice;
  }

  bool FitsWhole() const {
    uint64_t bytes = kWeightPage;
    for (const PackedTensor& tensor : tensors_) bytes += RoundUp(tensor.bytes, kWeightPage);
    return bytes <= options_.budget_bytes;
  }

  // An embedding that is also the head is read whole for every pass.
  void AddEmbeddings() {
    if (index_.contains(TensorName({WeightRole::kHead}))) {
      AddEmbedding(EmbeddingTable::kTokens, WeightRole::kEmbedding);
    }
    if (facts_.shape.has_layer_inputs()) {
      AddEmbedding(EmbeddingTable::kLayerInputs, WeightRole::kLayerEmbedding);
    }
  }

  void AddEmbedding(EmbeddingTable table, WeightRole role) {
    constexpr uint64_t kWorthIt = 4;  // times the buffers
    StreamedEmbedding embedding;
    embedding.index = index_.at(TensorName({role}));
    const PackedTensor& tensor = tensors_[embedding.index];
    embedding.file_offset = tensor.file_offset;
    embedding.matrix = tensor.matrix;
    embedding.matrix.data = nullptr;
    embedding.rows = options_.max_rows;
    embedding.buffer_bytes =
        RoundUp(StreamedEmbedding::kTilesAtOnce * embedding.tile_room() +
                    static_cast<uint64_t>(options_.max_rows) *
                        static_cast<uint64_t>(tensor.matrix.n_in) * sizeof(float),
                kWeightPage);
    if (tensor.matrix.panels() > 1 || tensor.bytes < kWorthIt * embedding.buffer_bytes) return;
    plan_.embeddings[static_cast<size_t>(table)] = embedding;
    staged_.insert(embedding.index);
  }

  // What every row needs stays in memory, and as many experts as the rest of the budget holds, at
  // least those of one layer: rows may choose them all.
  void AddExperts() {
    const int32_t experts = facts_.shape.experts;
    for (int32_t layer = 0; experts > 0 && layer < facts_.shape.layers; ++layer) {
      auto& parts = plan_.experts.layers.emplace_back();
      for (size_t i = 0; i < kExpertParts; ++i) {
        StreamedExperts::Part& part = parts[i];
        part.index = index_.at(TensorName({kExpertRoles[i], layer}));
        const PackedTensor& tensor = tensors_[part.index];
        part.file_offset = tensor.file_offset;
        part.bytes = tensor.bytes / static_cast<uint64_t>(experts);
        const uint64_t room =
            RoundUp(part.bytes, kWeightPage) + (part.bytes % kWeightPage == 0 ? 0 : kWeightPage);
        plan_.experts.part_room[i] = std::max(plan_.experts.part_room[i], room);
        staged_.insert(part.index);
      }
    }
    plan_.experts.experts = plan_.experts.slots = experts;
  }

  void GrowExperts() {
    const uint64_t others = plan_.memory_bytes() - plan_.experts.buffer_bytes();
    const uint64_t all = plan_.experts.layers.size() * static_cast<uint64_t>(plan_.experts.experts);
    plan_.experts.slots = static_cast<int32_t>(
        std::min(all, (options_.budget_bytes - others) / plan_.experts.slot_bytes()));
  }

  // The position at which all stays in memory.
  double Top() const { return static_cast<double>(choices_.front().prefixes.size() - 1); }

  void AddFixed() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (staged_.contains(i)) continue;
      const bool matrix = tensors_[i].kind == PackedKind::kMatrix;
      plan_.fixed_bytes += RoundUp(tensors_[i].bytes, matrix ? kWeightPage : 64);
    }
    plan_.fixed_bytes = RoundUp(plan_.fixed_bytes, kWeightPage);
  }

  // Sets the resident prefixes to position `at` of their choices (0: nothing; a fraction: between
  // two), and the slots for `layers_ahead` layers. Returns the memory that the plan then takes.
  uint64_t SetResident(double at, int32_t layers_ahead) {
    plan_.resident_bytes = 0;
    for (Choice& choice : choices_) {
      const double last = static_cast<double>(choice.prefixes.size() - 1);
      const auto below = static_cast<size_t>(std::min(at, last - 1));
      const auto low = static_cast<double>(choice.prefixes[below]);
      const auto high = static_cast<double>(choice.prefixes[below + 1]);
      const double share = std::min(1.0, at - static_cast<double>(below));
      const auto prefix = static_cast<uint64_t>(low + (high - low) * share);
      StreamedTensor& tensor = *choice.tensor;
      tensor.resident_bytes =
          prefix >= tensor.bytes ? tensor.bytes : prefix / kWeightPage * kWeightPage;
      plan_.resident_bytes += tensor.resident_bytes_used();
    }
    SetSlots(layers_ahead);
    return plan_.memory_bytes();
  }

  void SetSlots(int32_t layers_ahead) {
    const size_t slots =
        std::min(plan_.stages.size(), static_cast<size_t>(layers_ahead * kStagesPerLayer));
    plan_.slot_bytes.assign(slots, 0);
    for (size_t i = 0; i < plan_.stages.size(); ++i) {
      uint64_t offset = 0;
      for (StreamedTensor& tensor : plan_.stages[i].tensors) {
        tensor.slot_offset = offset;
        offset += tensor.streamed_bytes();
      }
      uint64_t& slot = plan_.slot_bytes[i % slots];
      slot = std::max(slot, offset);
    }
  }

  void ChooseResident() {
    for (const int32_t layers : kLayersAhead) {
      const bool fits = FillBudget(layers);
      const double extra = kExtraBufferShare * static_cast<double>(options_.budget_bytes);
      if (fits && static_cast<double>(plan_.ring_bytes()) <= extra) return;
    }
  }

  // Makes the resident prefixes as long as the budget permits; false: it permits not even none.
  // Memory need not grow steadily with the prefixes where levels cut layers unevenly: looks from
  // the top down for the first position that fits, then between it and the next.
  bool FillBudget(int32_t layers_ahead) {
    constexpr int kSteps = 2048;
    constexpr int kBisections = 16;
    const double top = Top();
    const auto fits = [&](double at) {
      return SetResident(at, layers_ahead) <= options_.budget_bytes;
    };
    int step = kSteps;
    while (step >= 0 && !fits(top * step / kSteps)) --step;
    if (step < 0) return false;
    double low = top * step / kSteps;
    double high = std::min(top, top * (step + 1) / kSteps);
    for (int i = 0; i < kBisections; ++i) {
      const double middle = (low + high) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return fits(low);
  }

  void GrowBuffers() {
    int32_t layers = 1;
    while (layers < facts_.shape.layers && SetResident(0, layers + 1) <= options_.budget_bytes) {
      ++layers;
    }
    SetResident(0, layers);
  }

  uint64_t BytesReadAt(int32_t level) const {
    uint64_t bytes = 0;
    for (const StreamStage& stage : plan_.stages) {
      for (const StreamedTensor& tensor : stage.tensors) {
        bytes += std::min(tensor.ChunksOf(level) * kStreamChunk, tensor.streamed_bytes());
      }
    }
    return bytes;
  }

  absl::Status TooSmall() const {
    if (plan_.experts.streamed()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("weight_budget_bytes is %d; the model needs at least %d: what every "
                          "token needs takes %d, "
                          "the experts of a layer %d",
                          options_.budget_bytes, least(), least() - plan_.experts.buffer_bytes(),
                          plan_.experts.buffer_bytes()));
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "weight_budget_bytes is %d; the model needs at least %d: output head, embedding, norms and "
        "LoRA take %d, buffers for the largest layer %d",
        options_.budget_bytes, least(), plan_.fixed_bytes + plan_.embedding_buffer_bytes(),
        plan_.ring_bytes()));
  }

  const std::span<const PackedTensor> tensors_;
  const ModelFacts& facts_;
  const WeightPlanOptions& options_;
  WeightPlan plan_;
  std::unordered_map<std::string, size_t> index_;  // of tensors_, by name
  std::vector<Choice> choices_;
  std::set<size_t> staged_;
};

}  // namespace

absl::StatusOr<WeightPlan> PlanWeights(std::span<const PackedTensor> tensors,
                                       const ModelFacts& facts, const WeightPlanOptions& options) {
  return WeightPlanner(tensors, facts, options).Plan();
}

UnpackedWeights::UnpackedWeights(const PackedLayout& layout) {
  for (const LayoutItem& item : layout.items) {
    PackedTensor& tensor = tensors.emplace_back();
    tensor.name = item.entry.name.data();
    tensor.kind = item.entry.kind;
    tensor.file_offset = item.entry.offset;
    tensor.bytes = item.entry.bytes;
    tensor.matrix = {.type = static_cast<WeightType>(item.entry.type),
                     .n_out = static_cast<int>(item.entry.n_out),
                     .n_in = static_cast<int>(item.entry.n_in),
                     .panel_inputs = static_cast<int>(item.entry.panel_inputs)};
  }
  facts.shape = layout.shape;
  facts.levels = layout.levels.levels;
  facts.lora_rank = layout.levels.lora_rank;
  LevelSpec& full = facts.levels.emplace_back(LevelSpec{.percent = 100});
  for (int32_t layer = 0; layer < layout.shape.layers; ++layer) {
    full.layers.push_back(FullExtent(layout.shape, layer));
  }
}

uint64_t LeastWeightBudget(std::span<const PackedTensor> tensors, const ModelFacts& facts) {
  return WeightPlanner(tensors, facts, {}).least();
}

}  // namespace withy::engine
