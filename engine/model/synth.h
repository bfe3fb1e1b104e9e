// Models with random weights in published shapes and a valid tokenizer, for benchmarks and tests in
// which only the shape matters. The same seed gives the same model. Neighbours: gguf/writer.h
// writes them, `withyctl models synth` calls this.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gguf/types.h"

namespace withy::engine {

struct SynthShape {
  std::string name;
  std::string architecture = "llama";  // one of SupportedArchitectures()
  int32_t layers = 0;
  int32_t d_model = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t d_ff = 0;  // of an expert, where there are some
  int32_t vocab_size = 0;
  int32_t context_length = 0;
  int32_t sliding_window = 0;  // 0: the file names none
  // Of architectures with experts: MLPs of d_ff neurons, and how many of them a token uses.
  int32_t experts = 0;
  int32_t experts_used = 0;
  // Of the token embeddings. What a layer adds has about 1: far above that, routers see the token
  // more than its context, and choose as many different experts as there are tokens.
  float embedding_deviation = 1.0f;
  float rope_base = 10000.0f;
  bool llama3_rope = false;  // adds a rope_freqs tensor
  bool tied = false;
  bool byte_level_bpe = false;  // tokenizer; false: SentencePiece-like
  // Elastic levels in per cent, ascending, each with a LoRA. Every fifth layer is an anchor.
  std::vector<int32_t> levels = {};
  int32_t lora_rank = 8;
  // "qwen2" only: biases of this size, of either sign, in so many dimensions of each KV head, those
  // that RoPE turns least. 0: all biases are small.
  float key_bias = 0.0f;
  int32_t key_bias_dims = 0;
};

// Published shapes, and tiny and tiny-moe (0.7 M and 1.3 M parameters, for tests).
std::vector<std::string> SynthShapeNames();
// Errors: NOT_FOUND listing the names.
absl::StatusOr<SynthShape> FindSynthShape(std::string_view name);
// "q8_0", "q4_0", "mxfp4", "f16", "f32", "bf16". Errors: INVALID_ARGUMENT listing them.
absl::StatusOr<GgmlType> FindSynthType(std::string_view name);

// Streams the model into a GGUF, with a few MiB of memory for any shape. `progress`: (bytes
// written, bytes in total). Errors: INVALID_ARGUMENT (a shape that no tensor can have); as
// GgufWriter::Write.
absl::Status WriteSynthModel(const SynthShape& shape, GgmlType type, uint64_t seed,
                             const std::string& path,
                             const std::function<void(uint64_t, uint64_t)>& progress = nullptr);

}  // namespace withy::engine
