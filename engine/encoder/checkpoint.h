// A whole TLM as floats: what imports make, training reads and writes, and GGUF files are written
// from. Neighbours: import_mobilebert.h fills it from Hugging Face files, tlm.h opens the GGUF for
// inference without it. Does not compute.
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

// A matrix is [outputs][inputs], row after row (PyTorch's order for a Linear).
struct TlmTensor {
  TensorSpec spec;
  std::vector<float> values;  // spec.elements()
};

struct TlmCheckpoint {
  TlmShape shape;
  WordPieceVocab vocab;            // shape.encoder.vocab tokens
  std::vector<TlmTensor> tensors;  // TlmTensors(shape), in that order

  std::vector<float>* Find(std::string_view name);  // null when there is none
  const std::vector<float>* Find(std::string_view name) const;
};

// Random weights: matrices and tables normal with deviation 0.02, norms the identity, biases 0, SLO
// rows orthogonal. The same seed gives the same weights. Errors: as CheckTlmShape();
// InvalidArgument when the vocabulary's size is not the shape's, lacks an SLO token, or the
// embedding is too narrow for orthogonal SLO rows.
absl::StatusOr<TlmCheckpoint> MakeTlmCheckpoint(const TlmShape& shape, const WordPieceVocab& vocab,
                                                uint64_t seed);

// Fills values as MakeTlmCheckpoint does for a tensor of that role.
void InitTensor(TensorRole role, uint64_t seed, std::span<float> values);

// Overwrites the token rows of the SLO tokens in `rows` (a subset, by id) of tokens [vocab,
// embedding] with vectors that are orthogonal to each other, as long as the mean of the other rows
// (at least 0.1). Errors: InvalidArgument when there are more of them than dimensions. Source:
// ElastiLM 3.3, special tokens "initialized to word vectors that [are] orthogonal to each other".
absl::Status InitSloRows(std::span<const int32_t> rows, int32_t embedding, uint64_t seed,
                         std::span<float> tokens);

// Ids of [01] .. [steps], then <01> .. <steps>. Errors: InvalidArgument naming `where` and the
// token that is missing.
absl::StatusOr<std::vector<int32_t>> SloTokenIds(const WordPieceVocab& vocab, int32_t slo_steps,
                                                 std::string_view where);

// Writes the GGUF of docs/formats-tlm.md. `type` (F32, F16, BF16, Q8_0) is that of token rows and
// matrices; block types leave a tensor whose rows are no multiple of 32 in F32. Errors:
// InvalidArgument (a tensor of the wrong size, or not finite, naming it; a type that cannot be
// written), or from the disk.
absl::Status WriteTlm(const TlmCheckpoint& checkpoint, GgmlType type, const std::string& path);

// Reads it back, dequantised. Errors: as OpenTlm() of tlm.h.
absl::StatusOr<TlmCheckpoint> ReadTlm(const std::string& path);

}  // namespace withy::engine
