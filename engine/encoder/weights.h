// A TLM's weights in the layout of the kernels: packed matrices, float vectors, token rows as
// stored. Neighbours: encoder.h computes with them; checkpoint.h has the same tensors as floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cpu/aligned.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/encoder/shape.h"
#include "engine/gguf/reader.h"

namespace withy::engine {

// y = W x + bias. Absent (a layer without bottlenecks) if w.n_out == 0.
struct LinearWeights {
  PackedMatrix w;
  const float* bias = nullptr;  // [n_out]
};

struct NormWeights {
  EncoderNorm kind = EncoderNorm::kNoNorm;
  float epsilon = 0;
  const float* weight = nullptr;
  const float* bias = nullptr;
};

struct FeedForwardWeights {
  LinearWeights up;
  LinearWeights down;
  NormWeights norm;
};

struct EncoderLayer {
  LinearWeights bottleneck_in;
  NormWeights bottleneck_in_norm;
  LinearWeights bottleneck_qk;
  NormWeights bottleneck_qk_norm;
  LinearWeights q;
  LinearWeights k;
  LinearWeights v;
  LinearWeights output;
  NormWeights output_norm;
  std::vector<FeedForwardWeights> ffn;
  LinearWeights bottleneck_out;
  NormWeights bottleneck_out_norm;
};

// Owns its memory and does not refer to the file. Immutable, so thread-safe.
struct TlmWeights {
  TlmShape shape;
  GgmlType token_type = GgmlType::kF32;
  std::vector<uint8_t> token_rows;  // [vocab] rows of token_row_bytes, as stored
  size_t token_row_bytes = 0;
  const float* positions = nullptr;    // [positions, hidden]
  const float* token_types = nullptr;  // [token_types, hidden]
  LinearWeights transform;
  NormWeights embedding_norm;
  std::vector<EncoderLayer> shared;
  std::vector<EncoderLayer> score;
  std::vector<EncoderLayer> decision;
  LinearWeights keep;    // one output: the logit of "retain"
  LinearWeights pooler;  // absent if !shape.pooler
  LinearWeights prompt;  // one output per prompt level
  LinearWeights model;   // one output per model level
  std::vector<AlignedArray<std::byte>> storage;
};

// The file's tensor for `spec`. Errors: NotFound (missing), InvalidArgument (another shape, or
// quantised where floats are required), Unimplemented (an unsupported type); all name file, tensor
// and remedy.
absl::StatusOr<const TensorInfo*> FindTlmTensor(const GgufFile& file, const TensorSpec& spec);

// Errors: as ReadTlmShape() and FindTlmTensor().
absl::StatusOr<std::unique_ptr<TlmWeights>> LoadTlmWeights(const GgufFile& file);

}  // namespace withy::engine
