// A complete TLM as floats: produced by imports, read and written by training, exported to GGUF.
// Neighbours: import_mobilebert.h makes one from Hugging Face files, tlm.h opens a GGUF for
// inference. Does not compute.
//
//   TlmCheckpoint tlm = *MakeTlmCheckpoint(shape, vocab, /*seed=*/1);
//   tlm.Find("score.keep.weight")->...;                       // train
//   WITHY_RETURN_IF_ERROR(WriteTlm(tlm, GgmlType::kQ8_0, "models/withy-tlm-q8_0.gguf"));
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/encoder/shape.h"
#include "engine/encoder/vocabulary.h"
#include "engine/gguf/types.h"

namespace withy::engine {

// A matrix is [outputs, inputs], row-major (PyTorch's order for a Linear).
struct TlmTensor {
  TensorSpec spec;
  std::vector<float> values;  // spec.elements()
};

struct TlmCheckpoint {
  TlmShape shape;
  WordPieceVocab vocab;            // shape.encoder.vocab tokens
  std::vector<TlmTensor> tensors;  // TlmTensors(shape), in that order

  std::vector<float>* Find(std::string_view name);  // null if missing
  const std::vector<float>* Find(std::string_view name) const;
};

// Random weights: matrices and tables normal with standard deviation 0.02, norms the identity,
// biases 0, SLO rows orthogonal. Deterministic in `seed`. Errors: as CheckTlmShape();
// InvalidArgument if the vocabulary has the wrong size or lacks an SLO token, or the embedding is
// too narrow for orthogonal SLO rows.
absl::StatusOr<TlmCheckpoint> MakeTlmCheckpoint(const TlmShape& shape, const WordPieceVocab& vocab,
                                                uint64_t seed);

// Initialises `values` as MakeTlmCheckpoint does for a tensor of this role.
void InitTensor(TensorRole role, uint64_t seed, std::span<float> values);

// Overwrites the rows of the SLO tokens `rows` (ids, a subset) in tokens [vocab, embedding] with
// orthogonal vectors whose length is the mean length of the other rows (at least 0.1). Errors:
// InvalidArgument if there are more of them than dimensions. Source: ElastiLM 3.3, special tokens
// "initialized to word vectors that [are] orthogonal to each other".
absl::Status InitSloRows(std::span<const int32_t> rows, int32_t embedding, uint64_t seed,
                         std::span<float> tokens);

// Ids of [01] .. [steps], then <01> .. <steps>. Errors: InvalidArgument naming `where` and the
// missing token.
absl::StatusOr<std::vector<int32_t>> SloTokenIds(const WordPieceVocab& vocab, int32_t slo_steps,
                                                 std::string_view where);

// Writes the GGUF of docs/formats-tlm.md. `type` (F32, F16, BF16, Q8_0) is used for token rows and
// matrices; a tensor whose rows are not a multiple of 32 stays F32 for block types. Errors:
// InvalidArgument (a tensor of the wrong size, or not finite, naming it; an unsupported type),
// those of the file system.
absl::Status WriteTlm(const TlmCheckpoint& checkpoint, GgmlType type, const std::string& path);

// Reads a TLM file and dequantises it. Errors: as OpenTlm() of tlm.h.
absl::StatusOr<TlmCheckpoint> ReadTlm(const std::string& path);

}  // namespace withy::engine
