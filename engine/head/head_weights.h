// A draft head's weights in the layout of the kernels, all in memory: packed from its GGUF, and
// what it lacks taken from the target's packed file. Neighbours: head_file.h says what there is;
// head_pass.h computes with them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cpu/aligned.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/cpu/thread_pool.h"
#include "engine/gguf/reader.h"
#include "engine/head/head_file.h"
#include "engine/weights/packed_file.h"

namespace withy::engine {

// Immutable once loaded, so thread-safe. Names are those of head_file.h.
struct HeadWeights {
  PackedMatrix embedding;
  PackedMatrix fc;
  PackedMatrix q;
  PackedMatrix k;
  PackedMatrix v;
  PackedMatrix attention_out;
  PackedMatrix gate;
  PackedMatrix up;
  PackedMatrix down;
  PackedMatrix output;
  const float* feature_norm = nullptr;  // null: fc reads features as they are
  const float* embedding_norm = nullptr;
  const float* hidden_norm = nullptr;
  const float* ffn_norm = nullptr;
  const float* output_norm = nullptr;
  size_t bytes = 0;  // of memory of its own

  std::vector<AlignedArray<std::byte>> storage;
  std::unique_ptr<PackedFile> target;  // whose weights it uses; null: none
};

// `target`: an open model whose files are there, which the head fits. If that one streams its
// weights, the output head that is taken from it is copied; of an embedding, tokens' rows alone are
// read. Errors: as PackedFile::Open; of RowDecoder, naming file and tensor.
absl::StatusOr<HeadWeights> LoadHeadWeights(const GgufFile& file, const HeadShape& shape,
                                            const Model& target, ThreadPool& pool);

}  // namespace withy::engine
