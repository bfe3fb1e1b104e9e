// The structure of a TLM file: sizes of its MobileBERT-family encoder, its division into a shared
// bottom and two towers, its level sets, and the resulting list of tensors. Neighbours:
// checkpoint.h (tensors as floats), weights.h (tensors as the kernels read them),
// docs/formats-tlm.md (the same in prose). Holds no weights and does no file I/O. Source:
// MobileBERT (arXiv 2004.02984); ElastiLM 3.3 for the towers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/writer.h"

namespace withy::engine {

enum class EncoderNorm : uint8_t {
  kNoNorm = 0,     // x * weight + bias
  kLayerNorm = 1,  // (x - mean) / sqrt(var + eps) * weight + bias
};

// Some norms of MobileBERT use the configured epsilon, others PyTorch's default.
inline constexpr float kDefaultNormEpsilon = 1e-5f;

// A MobileBERT-family encoder. Hugging Face names are in brackets.
struct EncoderShape {
  int32_t vocab = 0;      // [vocab_size], SLO tokens included
  int32_t embedding = 0;  // width of a token's row [embedding_size]
  int32_t hidden = 0;     // width between layers [hidden_size]
  int32_t bottleneck =
      0;  // width inside a layer [intra_bottleneck_size]; equals hidden without bottlenecks
  int32_t ffn = 0;          // [intermediate_size]
  int32_t ffn_count = 1;    // feed-forward blocks per layer [num_feedforward_networks]
  int32_t heads = 0;        // [num_attention_heads]
  int32_t positions = 512;  // [max_position_embeddings]
  int32_t token_types = 2;  // [type_vocab_size]; only type 0 is used
  bool trigram = true;      // a token's input is the next, own and previous row [trigram_input]
  bool use_bottleneck = true;
  bool bottleneck_attention = false;  // Q, K, V read the bottleneck [use_bottleneck_attention]
  bool shared_qk = true;  // Q, K read a bottleneck of their own [key_query_shared_bottleneck]
  EncoderNorm norm = EncoderNorm::kNoNorm;
  float epsilon = 1e-12f;

  int32_t head_dim() const { return bottleneck / heads; }
  int32_t embedded() const { return embedding * (trigram ? 3 : 1); }
  bool has_transform() const { return trigram || embedding != hidden; }
  // Inputs of the value projection. Query and key always have `bottleneck` inputs.
  int32_t value_inputs() const { return bottleneck_attention ? bottleneck : hidden; }

  bool operator==(const EncoderShape&) const = default;
};

// The encoder divided in three: layers [0, shared_layers) feed both towers.
struct TlmShape {
  EncoderShape encoder;
  int32_t shared_layers = 0;
  int32_t score_layers = 0;     // upper layers of the score tower
  int32_t decision_layers = 0;  // upper layers of the decision tower
  bool pooler = false;          // tanh(dense([CLS])) before the decision outputs
  int32_t window = 512;         // tokens per window, special tokens included; <= positions
  int32_t slo_steps = 10;       // SLO tokens [01] .. [10] and <01> .. <10>, for ratio n / slo_steps
  std::vector<int32_t> prompt_levels;  // percent, ascending
  std::vector<int32_t> model_levels;   // percent, ascending
  // Share of prompts that each pair of levels answered correctly, [prompt][model]: the expectation
  // for a prompt that was not read. One table for prompts that are mostly worked examples
  // (kMostlyExamples of prune.h), one for the others. Empty: not known; a single known table holds
  // for all prompts.
  std::vector<float> pair_accuracy;
  std::vector<float> pair_accuracy_examples;
  std::string model_id;  // ModelInfo::id of the model it was trained for; empty: not stated

  const std::vector<float>& PairAccuracies(bool mostly_examples) const;
  // 0 for a pair that is not among the levels, or not known.
  float PairAccuracy(bool mostly_examples, int32_t prompt_level, int32_t model_level) const;
  bool operator==(const TlmShape&) const = default;
};

// 20, 30 .. 100.
std::vector<int32_t> DefaultLevels();

// Errors: InvalidArgument naming `where`, the metadata key, its value and the limit.
absl::Status CheckTlmShape(const TlmShape& shape, std::string_view where);

// The metadata keys of docs/formats-tlm.md. Errors of reading: NotFound or InvalidArgument naming
// file and key; InvalidArgument for another architecture; as CheckTlmShape().
void WriteTlmShape(const TlmShape& shape, GgufWriter* writer);
absl::StatusOr<TlmShape> ReadTlmShape(const GgufFile& file);

enum class TensorRole : uint8_t {
  kTokens,  // rows looked up by token; may be quantised
  kMatrix,  // weights of a product; may be quantised
  kTable,   // rows that are added; F32
  kHead,    // weights of a head's output; F32
  kBias,    // F32, initially 0
  kScale,   // weight of a norm; F32, initially 1
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> dims;  // ggml's order: inputs first, then outputs
  TensorRole role = TensorRole::kMatrix;
  std::string source;  // name in a Hugging Face MobileBertModel; empty for the heads

  int64_t elements() const;
};

// All tensors of such a file, in file order.
std::vector<TensorSpec> TlmTensors(const TlmShape& shape);

// Texts of the SLO tokens: "[05]" (TTFT, step 5) and "<08>" (TPOT, step 8).
std::string TtftToken(int32_t step);
std::string TpotToken(int32_t step);

}  // namespace withy::engine
