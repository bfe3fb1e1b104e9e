#include "engine/cpu/bound_weights.h"

#include "engine/cpu/activations.h"

namespace withy::engine {

BoundWeights::BoundWeights(const PackedFile& file, const ModelFacts& facts)
    : layers_(static_cast<size_t>(facts.shape.layers)) {
  matrices_.resize((layers_ + 1) * kWeightRoles);
  vectors_.resize(matrices_.size());
  for (int32_t layer = -1; layer < facts.shape.layers; ++layer) {
    for (int role = 0; role < kWeightRoles; ++role) {
      Bind(file, {static_cast<WeightRole>(role), layer});
    }
  }
  PackedMatrix& head = matrices_[IndexOf(WeightName{WeightRole::kHead})];
  if (head.data == nullptr) head = Matrix({WeightRole::kEmbedding});
  BindLora(file, facts);
  CollectForms();
}

// Leaves the entry empty if the file has no such tensor.
void BoundWeights::Bind(const PackedFile& file, const WeightName& name) {
  const PackedTensor* tensor = file.Find(TensorName(name));
  if (tensor == nullptr) return;
  if (tensor->kind == PackedKind::kMatrix) matrices_[IndexOf(name)] = tensor->matrix;
  if (tensor->kind == PackedKind::kVector) vectors_[IndexOf(name)] = tensor->values.data();
}

void BoundWeights::BindLora(const PackedFile& file, const ModelFacts& facts) {
  if (facts.lora_rank == 0) return;
  const auto levels = static_cast<size_t>(facts.full_level());
  lora_inputs_.resize(levels * layers_ * kLoraParts);
  lora_outputs_.resize(lora_inputs_.size());
  for (int32_t level = 0; level < facts.full_level(); ++level) {
    const int32_t percent = facts.levels[static_cast<size_t>(level)].percent;
    for (int32_t layer = 0; layer < facts.shape.layers; ++layer) {
      for (int i = 0; i < kLoraParts; ++i) {
        const auto part = static_cast<LoraPart>(i);
        const PackedTensor* tensor = file.Find(LoraName(percent, layer, part));
        if (tensor == nullptr) continue;
        const size_t at = IndexOf(LoraWeightName{part, layer, level});
        lora_inputs_[at] = tensor->matrix;
        lora_outputs_[at] = tensor->low_rank;
      }
    }
  }
}

void BoundWeights::CollectForms() {
  for (size_t i = 0; i < matrices_.size(); ++i) {
    if (matrices_[i].n_out == 0) continue;
    const unsigned form = FormFor(matrices_[i].type);
    switch (static_cast<WeightRole>(i % kWeightRoles)) {
      case WeightRole::kOutput:
        forms_.attention |= form;
        break;
      case WeightRole::kDown:
      case WeightRole::kDownExperts:
        forms_.neurons |= form;
        break;
      case WeightRole::kGateExperts:
      case WeightRole::kUpExperts:
        forms_.experts |= form;
        forms_.input |= form;
        break;
      case WeightRole::kHead:
        forms_.head |= form;
        break;
      case WeightRole::kMerge:
        forms_.merge |= form;
        break;
      case WeightRole::kLaurelRight:
        forms_.laurel |= form;
        break;
      case WeightRole::kLayerOut:
        forms_.layer_out |= form;
        break;
      case WeightRole::kEmbedding:
      case WeightRole::kLayerEmbedding:
      case WeightRole::kPositions:
        break;
      default:
        forms_.input |= form;
    }
  }
  for (size_t i = 0; i < lora_inputs_.size(); ++i) {
    if (lora_inputs_[i].data == nullptr) continue;
    const unsigned form = FormFor(lora_inputs_[i].type);
    switch (static_cast<LoraPart>(i % kLoraParts)) {
      case LoraPart::kAttentionOutIn:
        forms_.attention |= form;
        break;
      case LoraPart::kDownIn:
        forms_.neurons |= form;
        break;
      default:
        forms_.input |= form;
    }
  }
}

}  // namespace withy::engine
