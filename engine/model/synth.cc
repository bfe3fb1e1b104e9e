#include "engine/model/synth.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>

#include "absl/strings/str_join.h"
#include "base/status.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/writer.h"
#include "engine/model/synth_vocab.h"
#include "engine/weights/levels.h"

namespace withy::engine {
namespace {

SynthShape Qwen3Mixture() {
  return {.name = "qwen3-30b-a3b",
          .architecture = "qwen3moe",
          .layers = 48,
          .d_model = 2048,
          .heads = 32,
          .kv_heads = 4,
          .head_dim = 128,
          .d_ff = 768,
          .vocab_size = 151936,
          .context_length = 40960,
          .experts = 128,
          .experts_used = 8,
          .rope_base = 1000000.0f,
          .byte_level_bpe = true};
}

SynthShape TinyMixture() {
  return {.name = "tiny-moe",
          .architecture = "qwen3moe",
          .layers = 3,
          .d_model = 128,
          .heads = 8,
          .kv_heads = 2,
          .head_dim = 32,
          .d_ff = 96,
          .vocab_size = 512,
          .context_length = 512,
          .experts = 10,
          .experts_used = 3};
}

const std::vector<SynthShape>& Shapes() {
  static const auto* shapes = new std::vector<SynthShape>{
      {.name = "tinyllama-1.1b",
       .layers = 22,
       .d_model = 2048,
       .heads = 32,
       .kv_heads = 4,
       .head_dim = 64,
       .d_ff = 5632,
       .vocab_size = 32000,
       .context_length = 4096},
      {.name = "smollm2-360m",
       .layers = 32,
       .d_model = 960,
       .heads = 15,
       .kv_heads = 5,
       .head_dim = 64,
       .d_ff = 2560,
       .vocab_size = 49152,
       .context_length = 8192,
       .rope_base = 100000.0f,
       .tied = true,
       .byte_level_bpe = true},
      {.name = "llama3-8b",
       .layers = 32,
       .d_model = 4096,
       .heads = 32,
       .kv_heads = 8,
       .head_dim = 128,
       .d_ff = 14336,
       .vocab_size = 128256,
       .context_length = 8192,
       .rope_base = 500000.0f,
       .byte_level_bpe = true},
      {.name = "llama3.2-3b",
       .layers = 28,
       .d_model = 3072,
       .heads = 24,
       .kv_heads = 8,
       .head_dim = 128,
       .d_ff = 8192,
       .vocab_size = 128256,
       .context_length = 131072,
       .rope_base = 500000.0f,
       .llama3_rope = true,
       .tied = true,
       .byte_level_bpe = true},
      Qwen3Mixture(),
      TinyMixture(),
      {.name = "tiny",
       .layers = 3,
       .d_model = 128,
       .heads = 8,
       .kv_heads = 2,
       .head_dim = 32,
       .d_ff = 512,
       .vocab_size = 512,
       .context_length = 512},
  };
  return *shapes;
}

// Of architectures that have them.
constexpr int32_t kSynthStreams = 4;
constexpr int32_t kSynthLayerWidth = 32;

struct NamedType {
  std::string_view name;
  GgmlType type;
};
constexpr std::array<NamedType, 6> kTypes = {{{"q8_0", GgmlType::kQ8_0},
                                              {"q4_0", GgmlType::kQ4_0},
                                              {"mxfp4", GgmlType::kMXFP4},
                                              {"f16", GgmlType::kF16},
                                              {"bf16", GgmlType::kBF16},
                                              {"f32", GgmlType::kF32}}};

// xorshift64*: fast enough that the disk limits writing.
class Random {
 public:
  explicit Random(uint64_t seed) : state_((seed + 1) * 0x9e3779b97f4a7c15u | 1u) {}
  uint64_t Next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1du;
  }
  void Fill(std::span<uint8_t> out) {
    while (!out.empty()) {
      const uint64_t word = Next();
      const size_t n = std::min<size_t>(8, out.size());
      std::memcpy(out.data(), &word, n);
      out = out.subspan(n);
    }
  }

 private:
  uint64_t state_;
};

uint64_t Mix(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u ^ seed;
  for (char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

bool HasBlocks(GgmlType type) {
  return type == GgmlType::kQ8_0 || type == GgmlType::kQ4_0 || type == GgmlType::kMXFP4;
}

// Fills one row's blocks of 32 with random bytes; every block has the same scale.
void FillBlocks(GgmlType type, float deviation, Random* random, std::span<uint8_t> row) {
  if (type == GgmlType::kMXFP4) {
    constexpr float kDeviation = 2.93f;  // of uniform codes at a scale of 1, whose exponent is 127
    random->Fill(row);
    const auto exponent = std::lround(127.0f + std::log2(deviation / kDeviation));
    for (size_t at = 0; at < row.size(); at += 17) row[at] = static_cast<uint8_t>(exponent);
    return;
  }
  const size_t block_bytes = type == GgmlType::kQ8_0 ? 34 : 18;
  // Standard deviation of uniform quants in -128..127 and in -8..7.
  const float quant_deviation = type == GgmlType::kQ8_0 ? 73.9f : 4.61f;
  const uint16_t scale = FloatToHalf(deviation / quant_deviation);
  random->Fill(row);
  for (size_t at = 0; at < row.size(); at += block_bytes) std::memcpy(&row[at], &scale, 2);
}

// Takes uniform values from a table of 256: as fast as random bytes.
void FillFloats(GgmlType type, float deviation, Random* random, std::span<uint8_t> row) {
  const size_t width = type == GgmlType::kF32 ? 4 : 2;
  std::array<uint32_t, 256> table;
  for (size_t i = 0; i < 256; ++i) {
    const float value = (static_cast<float>(i) - 127.5f) / 73.9f * deviation;
    table[i] = type == GgmlType::kF32   ? std::bit_cast<uint32_t>(value)
               : type == GgmlType::kF16 ? FloatToHalf(value)
                                        : FloatToBf16(value);
  }
  uint64_t word = 0;
  for (size_t i = 0; i < row.size() / width; ++i) {
    if (i % 8 == 0) word = random->Next();
    std::memcpy(&row[i * width], &table[word >> (i % 8 * 8) & 255], width);
  }
}

class Synthesizer {
 public:
  Synthesizer(const SynthShape& shape, GgmlType type, uint64_t seed)
      : shape_(shape), type_(type), seed_(seed) {}

  absl::Status Write(const std::string& path,
                     const std::function<void(uint64_t, uint64_t)>& progress) {
    if (shape_.vocab_size < kMinSynthVocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("vocabulary of ", shape_.vocab_size, " tokens is below ", kMinSynthVocab));
    }
    architecture_ = FindArchitecture(shape_.architecture);
    if (architecture_ == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("architecture \"", shape_.architecture,
                                                     "\" is none of ", SupportedArchitectures()));
    }
    AddMetadata();
    AddTensors();
    WITHY_RETURN_IF_ERROR(AddLevels());
    return writer_.Write(path, progress);
  }

 private:
  void AddMetadata() {
    const std::string& a = shape_.architecture;
    writer_.SetString("general.architecture", a);
    writer_.SetString("general.name",
                      absl::StrCat("synthetic ", shape_.name, " ", ToAbsl(TypeName(type_))));
    const auto count = [&](std::string_view key, int32_t value) {
      writer_.Set<uint32_t>(a + "." + std::string(key), static_cast<uint32_t>(value));
    };
    count("block_count", shape_.layers);
    count("embedding_length", shape_.d_model);
    count("feed_forward_length", shape_.d_ff * std::max(1, shape_.experts_used));
    if (architecture_->experts) {
      count("expert_count", shape_.experts);
      count("expert_used_count", shape_.experts_used);
      count("expert_feed_forward_length", shape_.d_ff);
    }
    count("context_length", shape_.context_length);
    count("attention.head_count", shape_.heads);
    count("attention.head_count_kv", shape_.kv_heads);
    count("attention.key_length", shape_.head_dim);
    count("attention.value_length", shape_.head_dim);
    count("rope.dimension_count", shape_.head_dim);
    count("vocab_size", shape_.vocab_size);
    writer_.Set<float>(a + (architecture_->layer_norms ? ".attention.layer_norm_epsilon"
                                                       : ".attention.layer_norm_rms_epsilon"),
                       1e-5f);
    writer_.Set<float>(a + ".rope.freq_base", shape_.rope_base);
    if (shape_.sliding_window > 0) count("attention.sliding_window", shape_.sliding_window);
    if (architecture_->multipliers) {
      writer_.Set<float>(a + ".embedding_scale", 2.0f);
      writer_.Set<float>(a + ".residual_scale", 0.5f);
      writer_.Set<float>(a + ".logit_scale", 2.0f);
    }
    AddLayerKinds();
    if (shape_.byte_level_bpe) {
      AddByteLevelVocab(shape_.vocab_size, &writer_);
    } else {
      AddSentencePieceVocab(shape_.vocab_size, &writer_);
    }
  }

  // A third of the layers has gates that are cut off, another shares K and V; every second one has
  // the window, if there is one.
  void AddLayerKinds() {
    const std::string prefix = shape_.architecture + ".";
    const auto third = static_cast<uint32_t>(shape_.layers / 3);
    if (architecture_->shares_kv) {
      writer_.Set<uint32_t>(prefix + "attention.shared_kv_layers", third);
      writer_.Set<uint32_t>(prefix + "attention.sliding_window_pattern", 2);
    }
    if (architecture_->gate_cuts) {
      std::vector<float> cuts(static_cast<size_t>(shape_.layers), ModelShape::kNoCut);
      std::fill_n(cuts.begin(), third, 1.0f);
      writer_.SetArray<float>(prefix + "activation_sparsity_scale", cuts);
    }
    if (architecture_->alternating_updates) {
      writer_.Set<uint32_t>(prefix + "altup.num_inputs", kSynthStreams);
      writer_.Set<uint32_t>(prefix + "altup.active_idx", 0);
    }
    if (architecture_->layer_inputs) {
      writer_.Set<uint32_t>(prefix + "embedding_length_per_layer_input", kSynthLayerWidth);
    }
  }

  // What models with copies of the stream and inputs of each layer have once.
  void BesideLayers() {
    const SynthShape& s = shape_;
    if (architecture_->alternating_updates) {
      for (const char* name : {"altup_proj.weight", "altup_unembd_proj.weight"}) {
        Tensor(name, type_, {s.d_model, s.d_model, kSynthStreams - 1}, 1.0f);
      }
    }
    if (!architecture_->layer_inputs) return;
    const int32_t width = s.layers * kSynthLayerWidth;
    Matrix("per_layer_token_embd", s.vocab_size, width, std::sqrt(static_cast<float>(width)));
    Matrix("per_layer_model_proj", width, s.d_model, 1.0f);
    Vector("per_layer_proj_norm.weight", kSynthLayerWidth, 1.0f);
  }

  // And what each layer has beside attention.
  void BesideAttention(const std::string& blk) {
    const SynthShape& s = shape_;
    if (architecture_->alternating_updates) {
      const int32_t n = kSynthStreams;
      Vector(blk + "altup_router_norm.weight", s.d_model, 1.0f);
      Tensor(blk + "altup_router.weight", GgmlType::kF32, {s.d_model, n},
             std::sqrt(static_cast<float>(s.d_model)));
      Tensor(blk + "altup_predict_coef.weight", GgmlType::kF32, {n, n * n}, 0.3f);
      Tensor(blk + "altup_correct_coef.weight", GgmlType::kF32, {n, n}, 0.3f);
      Vector(blk + "altup_correct_scale.weight", s.d_model, 1.0f);
    }
    if (architecture_->laurel_rank > 0) {
      Matrix(blk + "laurel_l", architecture_->laurel_rank, s.d_model, 1.0f);
      Matrix(blk + "laurel_r", s.d_model, architecture_->laurel_rank, 1.0f);
      Vector(blk + "laurel_post_norm.weight", s.d_model, 1.0f);
    }
    if (!architecture_->layer_inputs) return;
    Matrix(blk + "inp_gate", kSynthLayerWidth, s.d_model, 1.0f);
    Matrix(blk + "proj", s.d_model, kSynthLayerWidth, 1.0f);
    Vector(blk + "post_norm.weight", s.d_model, 1.0f);
  }

  void AddTensors() {
    const SynthShape& s = shape_;
    const int32_t q_rows = s.heads * s.head_dim;
    const int32_t kv_rows = s.kv_heads * s.head_dim;
    // Keeps the residual stream's size about the same over all layers.
    const float into_residual = 1.0f / std::sqrt(2.0f * static_cast<float>(s.layers));
    Matrix("token_embd", s.vocab_size, s.d_model,
           s.embedding_deviation * std::sqrt(static_cast<float>(s.d_model)));
    if (!s.tied) Matrix("output", s.vocab_size, s.d_model, 2.0f);
    if (architecture_->learned_positions) {
      Matrix("position_embd", s.context_length, s.d_model,
             0.2f * std::sqrt(static_cast<float>(s.d_model)));
    }
    BesideLayers();
    Norm("output_norm");
    if (s.llama3_rope) RopeFactors();
    for (int32_t layer = 0; layer < s.layers; ++layer) {
      const std::string blk = absl::StrCat("blk.", layer, ".");
      Norms(blk + "attn_norm", blk + "post_attention_norm.weight");
      Matrix(blk + "attn_q", q_rows, s.d_model, 1.5f);
      Matrix(blk + "attn_k", kv_rows, s.d_model, 1.5f);
      Matrix(blk + "attn_v", kv_rows, s.d_model, 1.0f);
      Matrix(blk + "attn_output", s.d_model, q_rows, into_residual);
      if (architecture_->needs_qkv_bias) {
        Vector(blk + "attn_q.bias", q_rows, 0.0f);
        KeyBias(blk + "attn_k.bias");
        Vector(blk + "attn_v.bias", kv_rows, 0.0f);
      }
      if (architecture_->qk_norm != QkNorm::kNone) {
        const bool whole = architecture_->qk_norm == QkNorm::kWhole;
        Vector(blk + "attn_q_norm.weight", whole ? q_rows : s.head_dim, 1.0f);
        Vector(blk + "attn_k_norm.weight", whole ? kv_rows : s.head_dim, 1.0f);
      }
      Norms(blk + std::string(architecture_->ffn_norm), blk + "post_ffw_norm.weight");
      BesideAttention(blk);
      if (architecture_->attention_sinks) Vector(blk + "attn_sinks.weight", s.heads, 1.0f);
      if (architecture_->product_biases) Vector(blk + "attn_output.bias", s.d_model, 0.0f);
      if (architecture_->experts) {
        Experts(blk, into_residual);
        continue;
      }
      if (architecture_->product_biases) {
        Vector(blk + "ffn_up.bias", s.d_ff, 0.0f);
        Vector(blk + "ffn_down.bias", s.d_model, 0.0f);
      }
      if (architecture_->fused_gate_up) {
        Matrix(blk + "ffn_up", 2 * s.d_ff, s.d_model, 1.5f);
      } else {
        if (architecture_->gated_mlp) Matrix(blk + "ffn_gate", s.d_ff, s.d_model, 1.5f);
        Matrix(blk + "ffn_up", s.d_ff, s.d_model, 1.5f);
      }
      Matrix(blk + "ffn_down", s.d_model, s.d_ff, into_residual);
    }
  }

  void Experts(const std::string& blk, float into_residual) {
    const SynthShape& s = shape_;
    Tensor(blk + "ffn_gate_inp.weight", GgmlType::kF32, {s.d_model, s.experts}, 1.5f);
    Tensor(blk + "ffn_gate_exps.weight", type_, {s.d_model, s.d_ff, s.experts}, 1.5f);
    Tensor(blk + "ffn_up_exps.weight", type_, {s.d_model, s.d_ff, s.experts}, 1.5f);
    Tensor(blk + "ffn_down_exps.weight", type_, {s.d_ff, s.d_model, s.experts}, into_residual);
    if (!architecture_->product_biases) return;
    Vector(blk + "ffn_gate_inp.bias", s.experts, 0.0f);
    ExpertBiases(blk + "ffn_gate_exps.bias", s.d_ff);
    ExpertBiases(blk + "ffn_up_exps.bias", s.d_ff);
    ExpertBiases(blk + "ffn_down_exps.bias", s.d_model);
  }

  void ExpertBiases(const std::string& name, int32_t outputs) {
    Tensor(name, GgmlType::kF32, {outputs, shape_.experts}, 2.0f);
  }

  void Norms(const std::string& before, const std::string& after) {
    if (architecture_->pre_norms) Norm(before);
    if (architecture_->post_norms) Vector(after, shape_.d_model, 1.0f);
  }

  void Norm(const std::string& name) {
    Vector(name + ".weight", shape_.d_model, 1.0f);
    if (architecture_->layer_norms) Vector(name + ".bias", shape_.d_model, 0.0f);
  }

  absl::Status AddLevels() {
    if (shape_.levels.empty()) return absl::OkStatus();
    ModelShape shape;
    shape.layers = shape_.layers;
    shape.d_model = shape_.d_model;
    shape.heads = shape_.heads;
    shape.kv_heads = shape_.kv_heads;
    shape.head_dim = shape_.head_dim;
    shape.d_ff = shape_.d_ff;
    std::vector<int32_t> anchors;
    for (int32_t layer = 0; layer < shape.layers; layer += 5) anchors.push_back(layer);
    WITHY_RETURN_IF_ERROR(CheckPercents(shape, shape_.levels));
    const std::vector<uint32_t> percents(shape_.levels.begin(), shape_.levels.end());
    std::vector<uint32_t> heads;
    std::vector<uint32_t> neurons;
    for (const LevelSpec& level : PlanLevels(shape, shape_.levels, anchors)) {
      for (int32_t layer = 0; layer < shape.layers; ++layer) {
        const LayerExtent& extent = level.layers[static_cast<size_t>(layer)];
        heads.push_back(static_cast<uint32_t>(extent.heads));
        neurons.push_back(static_cast<uint32_t>(extent.neurons));
        if (extent != LayerExtent{shape.heads, shape.d_ff}) {
          AddLora(shape, level.percent, layer, extent);
        }
      }
    }
    writer_.SetArray<uint32_t>("withy.level.percent", percents);
    writer_.SetArray<uint32_t>("withy.level.heads", heads);
    writer_.SetArray<uint32_t>("withy.level.neurons", neurons);
    writer_.Set<uint32_t>("withy.lora.rank", static_cast<uint32_t>(shape_.lora_rank));
    return absl::OkStatus();
  }

  // Small relative to the weights, like a trained LoRA.
  void AddLora(const ModelShape& shape, int32_t percent, int32_t layer, const LayerExtent& extent) {
    for (int i = 0; i < kLoraParts && shape_.lora_rank > 0; ++i) {
      const auto part = static_cast<LoraPart>(i);
      const LoraShape size = LoraShapeOf(part, shape, extent, shape_.lora_rank);
      if (size.empty()) continue;
      const float gain = IsLoraIn(part) ? 1.0f : 0.02f * std::sqrt(static_cast<float>(size.cols));
      Tensor(LoraName(percent, layer, part), HasBlocks(type_) ? GgmlType::kQ8_0 : type_,
             {size.cols, size.rows}, gain);
    }
  }

  void Matrix(const std::string& name, int32_t rows, int32_t cols, float gain) {
    Tensor(name + ".weight", type_, {cols, rows}, gain);
  }

  // Weights with standard deviation gain / sqrt(columns). `dims`: the columns first, as in GGUF.
  void Tensor(const std::string& name, GgmlType type, const std::vector<int64_t>& dims,
              float gain) {
    const int64_t cols = dims[0];
    int64_t rows = 1;
    for (size_t i = 1; i < dims.size(); ++i) rows *= dims[i];
    const float deviation = gain / std::sqrt(static_cast<float>(cols));
    const uint64_t seed = Mix(seed_, name);
    writer_.AddTensor(name, type, dims, [=](const TensorSink& sink) -> absl::Status {
      WITHY_ASSIGN_OR_RETURN(uint64_t bytes, RowBytes(type, cols));
      Random random(seed);
      std::vector<uint8_t> row(bytes);
      for (int64_t i = 0; i < rows; ++i) {
        HasBlocks(type) ? FillBlocks(type, deviation, &random, row)
                        : FillFloats(type, deviation, &random, row);
        WITHY_RETURN_IF_ERROR(sink(row));
      }
      return absl::OkStatus();
    });
  }

  void Stream(const std::string& name, std::vector<float> values) {
    const auto count = static_cast<int64_t>(values.size());
    writer_.AddTensor(
        name, GgmlType::kF32, {count}, [values = std::move(values)](const TensorSink& sink) {
          return sink(
              {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)});
        });
  }

  // Values around `centre`.
  void Vector(const std::string& name, int32_t size, float centre) {
    Random random(Mix(seed_, name));
    std::vector<float> values(static_cast<size_t>(size));
    for (float& v : values) {
      v = centre + (static_cast<float>(random.Next() >> 40) / 0x1p24f - 0.5f) * 0.2f;
    }
    Stream(name, std::move(values));
  }

  // Pairs are (i, i + head_dim / 2), the slowest ones last.
  void KeyBias(const std::string& name) {
    Random random(Mix(seed_, name));
    const int32_t half = shape_.head_dim / 2;
    std::vector<float> values(static_cast<size_t>(shape_.kv_heads * shape_.head_dim));
    for (int32_t i = 0; i < shape_.kv_heads * shape_.head_dim; ++i) {
      const auto unit = static_cast<float>(random.Next() >> 40) / 0x1p24f - 0.5f;
      const bool large = i % half >= half - shape_.key_bias_dims / 2;
      values[static_cast<size_t>(i)] = large ? std::copysign(shape_.key_bias, unit) : unit * 0.2f;
    }
    Stream(name, std::move(values));
  }

  // Llama 3.2's published factors: 32 for long wavelengths, 1 for short ones, blended between.
  void RopeFactors() {
    constexpr double kFactor = 32;
    constexpr double kOriginalContext = 8192;
    std::vector<float> factors;
    for (int32_t i = 0; i < shape_.head_dim / 2; ++i) {
      const double inverse = std::pow(double{shape_.rope_base}, -2.0 * i / shape_.head_dim);
      const double turns = kOriginalContext * inverse / (2 * std::numbers::pi);
      const double keep = std::clamp((turns - 1) / 3, 0.0, 1.0);
      factors.push_back(static_cast<float>(1 / ((1 - keep) / kFactor + keep)));
    }
    Stream("rope_freqs.weight", std::move(factors));
  }

  const SynthShape& shape_;
  const GgmlType type_;
  const uint64_t seed_;
  const Architecture* architecture_ = nullptr;
  GgufWriter writer_;
};

}  // namespace

std::vector<std::string> SynthShapeNames() {
  std::vector<std::string> names;
  for (const SynthShape& shape : Shapes()) names.push_back(shape.name);
  return names;
}

absl::StatusOr<SynthShape> FindSynthShape(std::string_view name) {
  for (const SynthShape& shape : Shapes()) {
    if (shape.name == name) return shape;
  }
  return absl::NotFoundError(absl::StrCat("no shape is called \"", ToAbsl(name), "\"; there are ",
                                          absl::StrJoin(SynthShapeNames(), ", ")));
}

absl::StatusOr<GgmlType> FindSynthType(std::string_view name) {
  for (const NamedType& named : kTypes) {
    if (named.name == name) return named.type;
  }
  return absl::InvalidArgumentError(absl::StrCat("type \"", ToAbsl(name),
                                                 "\" cannot be written; there are q8_0, q4_0, "
                                                 "mxfp4, f16, bf16, f32"));
}

absl::Status WriteSynthModel(const SynthShape& shape, GgmlType type, uint64_t seed,
                             const std::string& path,
                             const std::function<void(uint64_t, uint64_t)>& progress) {
  return Synthesizer(shape, type, seed).Write(path, progress);
}

}  // namespace withy::engine
