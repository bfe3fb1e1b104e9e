// A TLM's weights as the kernels read them: packed matrices, float vectors, token rows as stored.
// Neighbours: encoder.h computes with them; checkpoint.h has the same tensors as floats.
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

// y = W x + bias. Absent (a layer without bottlenecks): w.n_out == 0.
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

// Owns its memory and does not refer to the file; immutable, so any thread may read it.
struct TlmWeights {
  TlmShape shape;
  GgmlType token_type = GgmlType::kF32;
  std::vector<uint8_t> token_rows;  // vocab rows of token_row_bytes as stored
  size_t token_row_bytes = 0;
  const float* positions = nullptr;    // [positions, hidden]
  const float* token_types = nullptr;  // [token_types, hidden]
  LinearWeights transform;
  NormWeights embedding_norm;
  std::vector<EncoderLayer> shared;
  std::vector<EncoderLayer> score;
  std::vector<EncoderLayer> decision;
  LinearWeights keep;    // one output: the logit of "retain"
  LinearWeights pooler;  // absent when !shape.pooler
  LinearWeights prompt;  // an output a prompt level
  LinearWeights model;   // an output a model level
  std::vector<AlignedArray<std::byte>> storage;
};

// The file's type and shape for `spec`. Errors: NotFound when it is missing, InvalidArgument for
// another shape or a quantised type where floats are wanted, Unimplemented for a type that cannot
// be computed with; all name file, tensor and remedy.
absl::StatusOr<const TensorInfo*> FindTlmTensor(const GgufFile& file, const TensorSpec& spec);

// Errors: as ReadTlmShape() and FindTlmTensor().
absl::StatusOr<std::unique_ptr<TlmWeights>> LoadTlmWeights(const GgufFile& file);

}  // namespace withy::engine
