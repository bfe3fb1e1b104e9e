#include "engine/cuda/device_weights.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "engine/cpu/attention.h"

namespace withy::engine::cuda {
namespace {

constexpr size_t kStagingBytes = size_t{64} << 20;  // packed bytes that are converted at a time

int32_t VectorLength(const ModelShape& s, WeightRole role) {
  switch (role) {
    case WeightRole::kQNorm:
    case WeightRole::kKNorm:
      return s.head_dim;
    case WeightRole::kQBias:
      return s.q_rows();
    case WeightRole::kKBias:
    case WeightRole::kVBias:
      return s.kv_rows();
    case WeightRole::kAttnSinks:
      return s.heads;
    case WeightRole::kUpBias:
      return s.d_ff;
    case WeightRole::kRopeFrequencies:
    case WeightRole::kLongRopeFrequencies:
      return s.head_dim / 2;
    default:
      return s.d_model;
  }
}

size_t QuantBytes(const Matrix& m) {
  const auto tiles = static_cast<size_t>(m.tiles);
  const auto blocks = static_cast<size_t>(m.blocks);
  switch (m.type) {
    case WeightType::kFp4:
    case WeightType::kNl4:
      break;  // DeviceType
    case WeightType::kF32:
      return tiles * blocks * 2048;
    case WeightType::kF16:
    case WeightType::kBf16:
      return tiles * blocks * 1024;
    case WeightType::kQ8:
      return tiles * blocks * 512;
    case WeightType::kQ4:
    case WeightType::kQ4M:
      return tiles * ((blocks + 1) / 2) * 512;
  }
  return 0;
}

size_t ScaleBytes(const Matrix& m) {
  return static_cast<size_t>(m.tiles) * static_cast<size_t>(m.groups) * 128;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceWeights>> DeviceWeights::Create(
    Gpu& gpu, const ModelFacts& facts, const BoundWeights& weights, const KeyBias& key_bias,
    MemoryWay way, bool streams, bool embeds) {
  std::unique_ptr<DeviceWeights> device(new DeviceWeights(gpu, facts, weights, way, streams));
  WITHY_RETURN_IF_ERROR(device->LoadAll(key_bias, embeds));
  WITHY_RETURN_IF_ERROR(gpu.Wait());
  if (!streams) device->stages_.clear();
  return device;
}

absl::Status DeviceWeights::LoadAll(const KeyBias& key_bias, bool embeds) {
  const auto count = static_cast<size_t>(facts_.shape.layers + 1) * kWeightRoles;
  matrices_.resize(count);
  vectors_.resize(count);
  const WeightName embedding{WeightRole::kEmbedding, -1};
  const WeightName head{WeightRole::kHead, -1};
  const bool tied = weights_.Matrix(head).data == weights_.Matrix(embedding).data;
  if (embeds || tied) {
    WITHY_ASSIGN_OR_RETURN(matrices_[IndexOf(embedding)], Load(weights_.Matrix(embedding)));
  }
  if (tied) {
    matrices_[IndexOf(head)] = matrices_[IndexOf(embedding)];
  } else {
    WITHY_ASSIGN_OR_RETURN(matrices_[IndexOf(head)], Load(weights_.Matrix(head)));
  }
  for (int32_t layer = -1; layer < facts_.shape.layers; ++layer) {
    for (int role = 0; role < kWeightRoles; ++role) {
      const WeightName name{static_cast<WeightRole>(role), layer};
      const float* values = weights_.Vector(name);
      if (values == nullptr) continue;
      const auto floats = static_cast<size_t>(VectorLength(facts_.shape, name.role));
      WITHY_ASSIGN_OR_RETURN(const uint8_t* copy, Copy(values, floats * sizeof(float)));
      vectors_[IndexOf(name)] = reinterpret_cast<const float*>(copy);
    }
  }
  WITHY_RETURN_IF_ERROR(LoadLayers());
  WITHY_RETURN_IF_ERROR(LoadLora());
  return LoadBiases(key_bias);
}

absl::Status DeviceWeights::LoadLayers() {
  for (int role = static_cast<int>(WeightRole::kQ); role < kWeightRoles; ++role) {
    Matrix shared;
    for (int32_t layer = 0; layer < facts_.shape.layers; ++layer) {
      const WeightName name{static_cast<WeightRole>(role), layer};
      const PackedMatrix& packed = weights_.Matrix(name);
      Matrix& matrix = matrices_[IndexOf(name)];
      if (!streams_) {
        WITHY_ASSIGN_OR_RETURN(matrix, Load(packed));
        continue;
      }
      // Layers of different types cannot share memory.
      if (shared.quants == nullptr || shared.type != DeviceType(packed.type)) {
        WITHY_ASSIGN_OR_RETURN(shared, NewMatrix(packed));
      }
      matrix = shared;
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceWeights::LoadLora() {
  if (facts_.lora_rank == 0) return absl::OkStatus();
  const auto levels = static_cast<size_t>(facts_.full_level());
  const auto count = levels * static_cast<size_t>(facts_.shape.layers) * kLoraParts;
  lora_inputs_.resize(count);
  lora_outputs_.resize(count);
  for (int32_t level = 0; level < facts_.full_level(); ++level) {
    for (int32_t layer = 0; layer < facts_.shape.layers; ++layer) {
      for (int part = 0; part < kLoraParts; ++part) {
        const LoraWeightName name{static_cast<LoraPart>(part), layer, level};
        const PackedMatrix& input = weights_.LoraInput(name);
        if (input.data != nullptr) {
          WITHY_ASSIGN_OR_RETURN(lora_inputs_[IndexOf(name)], Load(input));
        }
        const LowRankOutputs& output = weights_.LoraOutput(name);
        if (output.data == nullptr || output.rank == 0) continue;
        WITHY_ASSIGN_OR_RETURN(const uint8_t* data,
                               Copy(output.data, LowRankBytes(output.rank, output.outputs)));
        lora_outputs_[IndexOf(name)] = {output.rank, output.outputs, data};
      }
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceWeights::LoadBiases(const KeyBias& key_bias) {
  const ModelShape& s = facts_.shape;
  stored_bias_.resize(static_cast<size_t>(s.layers));
  bias_tables_.resize(static_cast<size_t>(s.layers));
  const float* in_run = nullptr;
  const float* of_run = nullptr;
  for (int32_t layer = 0; layer < s.layers; ++layer) {
    const auto at = static_cast<size_t>(layer);
    if (key_bias.Stored(layer) != nullptr) {
      WITHY_ASSIGN_OR_RETURN(
          const uint8_t* copy,
          Copy(key_bias.Stored(layer), static_cast<size_t>(s.kv_rows()) * sizeof(float)));
      stored_bias_[at] = reinterpret_cast<const float*>(copy);
    }
    const AttentionKeyBias* added = key_bias.Added(layer);
    if (added == nullptr) continue;
    static_assert(sizeof(BiasPair) == sizeof(AttentionKeyBias::Pair));
    static_assert(kMaxBiasPairs == kMaxKeyBiasPairs && kRunKeys == kAttentionRunKeys);
    const auto heads = static_cast<size_t>(s.kv_heads);
    WITHY_ASSIGN_OR_RETURN(const uint8_t* pairs,
                           Copy(added->pairs, heads * kMaxBiasPairs * sizeof(BiasPair)));
    WITHY_ASSIGN_OR_RETURN(const uint8_t* counts, Copy(added->counts, heads * sizeof(int32_t)));
    if (in_run == nullptr) {  // the same for all layers
      const auto angles = static_cast<size_t>(added->angles);
      const auto runs = static_cast<size_t>((s.context_length + kRunKeys - 1) / kRunKeys);
      WITHY_ASSIGN_OR_RETURN(const uint8_t* in,
                             Copy(added->in_run, angles * 2 * kRunKeys * sizeof(float)));
      WITHY_ASSIGN_OR_RETURN(const uint8_t* of,
                             Copy(added->of_run, runs * angles * 2 * sizeof(float)));
      in_run = reinterpret_cast<const float*>(in);
      of_run = reinterpret_cast<const float*>(of);
    }
    bias_tables_[at] = {reinterpret_cast<const BiasPair*>(pairs),
                        reinterpret_cast<const int32_t*>(counts), in_run, of_run, added->angles};
    has_key_bias_ = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<uint8_t*> DeviceWeights::NewMemory(size_t bytes) {
  memory_.emplace_back(gpu_, way_);
  WITHY_RETURN_IF_ERROR(memory_.back().Reserve(bytes));
  bytes_ += memory_.back().bytes();
  return memory_.back().as<uint8_t>();
}

absl::StatusOr<uint8_t*> DeviceWeights::Copy(const void* from, size_t bytes) {
  WITHY_ASSIGN_OR_RETURN(uint8_t* const memory, NewMemory(bytes));
  WITHY_RETURN_IF_ERROR(gpu_.Upload(memory, from, bytes));
  return memory;
}

absl::StatusOr<Matrix> DeviceWeights::NewMatrix(const PackedMatrix& packed) {
  Matrix m{.type = DeviceType(packed.type), .n_out = packed.n_out, .n_in = packed.n_in};
  m.tiles = packed.tiles();
  m.blocks = packed.padded_inputs() / kQuantBlock;
  m.groups = (m.blocks + kGroupBlocks - 1) / kGroupBlocks;
  const size_t quants = QuantBytes(m);
  const size_t scales = IsQuantized(m.type) ? ScaleBytes(m) : 0;
  const size_t mins = m.type == WeightType::kQ4M ? scales : 0;
  WITHY_ASSIGN_OR_RETURN(m.quants, NewMemory(quants + scales + mins));
  m.scales = reinterpret_cast<uint16_t*>(m.quants + quants);
  m.mins = reinterpret_cast<uint16_t*>(m.quants + quants + scales);
  return m;
}

absl::Status DeviceWeights::Convert(const PackedMatrix& packed, int n_out, int n_in,
                                    const Matrix& to) {
  const size_t bytes = PrefixBytes(packed, n_out, n_in);
  if (bytes == 0) return absl::OkStatus();
  PackedArgs args{.from = packed.type,
                  .to = to,
                  .panel_inputs = packed.panel_inputs,
                  .panels = packed.panels()};
  args.tiles = packed.tiles();
  args.blocks = to.blocks;
  if (packed.panels() == 1) {
    args.tiles = std::min(packed.tiles(), (n_out + kTileRows - 1) / kTileRows);
  } else {
    const int panels = (n_in + packed.panel_inputs - 1) / packed.panel_inputs;
    args.blocks = packed.panel_end(std::min(panels, packed.panels()) - 1) / kQuantBlock;
  }
  if (packed.panels() > 1) return ConvertBytes(packed.data, bytes, args);
  const size_t tile_bytes = TileBytes(packed.type, packed.padded_inputs());
  const int at_once = std::max(1, static_cast<int>(kStagingBytes / tile_bytes));
  const int tiles = args.tiles;
  for (int tile = 0; tile < tiles; tile += at_once) {
    args.first_tile = tile;
    args.tiles = std::min(at_once, tiles - tile);
    WITHY_RETURN_IF_ERROR(ConvertBytes(packed.data + static_cast<size_t>(tile) * tile_bytes,
                                       static_cast<size_t>(args.tiles) * tile_bytes, args));
  }
  return absl::OkStatus();
}

absl::Status DeviceWeights::ConvertBytes(const std::byte* from, size_t bytes, PackedArgs args) {
  const size_t index = next_stage_++ % stages_.size();
  const int stage = static_cast<int>(index);
  Buffer& memory = stages_[index];
  WITHY_RETURN_IF_ERROR(memory.Reserve(bytes));
  WITHY_RETURN_IF_ERROR(gpu_.UploadToStage(stage, memory.as<uint8_t>(), from, bytes));
  args.data = memory.as<uint8_t>();
  gpu_.kernels().repack(gpu_.queue(), args);
  return gpu_.LeaveStage(stage);
}

absl::StatusOr<Matrix> DeviceWeights::Load(const PackedMatrix& packed) {
  WITHY_ASSIGN_OR_RETURN(const Matrix m, NewMatrix(packed));
  WITHY_RETURN_IF_ERROR(Convert(packed, packed.n_out, packed.n_in, m));
  return m;
}

absl::Status DeviceWeights::LoadStage(const Op& op, const LayerExtent& extent) {
  const ModelShape& s = facts_.shape;
  for (const WeightName& name : op.Weights()) {
    const PackedMatrix& packed = weights_.Matrix(name);
    int n_out = packed.n_out;
    int n_in = packed.n_in;
    switch (name.role) {
      case WeightRole::kQ:
        n_out = extent.heads * s.head_dim;
        break;
      case WeightRole::kK:
      case WeightRole::kV:
        n_out = s.kv_heads_of(extent.heads) * s.head_dim;
        break;
      case WeightRole::kOutput:
        n_in = extent.heads * s.head_dim;
        break;
      case WeightRole::kGate:
      case WeightRole::kUp:
        n_out = extent.neurons;
        break;
      default:
        n_in = extent.neurons;
        break;
    }
    WITHY_RETURN_IF_ERROR(Convert(packed, n_out, n_in, matrices_[IndexOf(name)]));
  }
  return absl::OkStatus();
}

}  // namespace withy::engine::cuda
