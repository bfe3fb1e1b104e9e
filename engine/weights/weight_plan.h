// Which bytes of a packed file stay in memory and which are read for each pass. Neighbours:
// model/plan_weights.h makes it, weight_memory.h lays memory out by it, weight_stream.h reads by
// it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/round_up.h"
#include "engine/cpu/packed_matrix.h"

namespace withy::engine {

inline constexpr uint64_t kWeightPage = 4096;
// Streamed bytes are read and checked in multiples of this.
inline constexpr uint64_t kStreamChunk = 128 << 10;

// A matrix of which a prefix stays in memory.
struct StreamedTensor {
  size_t index = 0;          // into PackedFile::tensors()
  uint64_t file_offset = 0;  // of its first byte, a multiple of kWeightPage
  uint64_t bytes = 0;
  uint64_t resident_bytes = 0;        // a multiple of kWeightPage, or `bytes`
  std::vector<uint64_t> needed = {};  // [level] bytes of the prefix that the level's rows read
  uint64_t slot_offset = 0;           // of its streamed bytes within its stage's slot

  // Room that its streamed bytes take in a slot.
  uint64_t streamed_bytes() const { return RoundUp(bytes, kWeightPage) - resident_bytes_used(); }
  // Memory that the resident prefix takes.
  uint64_t resident_bytes_used() const { return RoundUp(resident_bytes, kWeightPage); }
  size_t chunks() const {
    return static_cast<size_t>((bytes - resident_bytes + kStreamChunk - 1) / kStreamChunk);
  }
  // The first chunks, which a level needs; level -1 needs none.
  size_t ChunksOf(int32_t level) const {
    if (level < 0) return 0;
    const uint64_t need = needed[static_cast<size_t>(level)];
    if (need <= resident_bytes) return 0;
    return static_cast<size_t>((need - resident_bytes + kStreamChunk - 1) / kStreamChunk);
  }
};

// The matrices of one product, or of products that one operation computes. They are read together.
struct StreamStage {
  int32_t layer = 0;
  std::vector<StreamedTensor> tensors;

  uint64_t streamed_bytes() const {
    uint64_t bytes = 0;
    for (const StreamedTensor& tensor : tensors) bytes += tensor.streamed_bytes();
    return bytes;
  }
  bool Needs(int32_t level) const {
    for (const StreamedTensor& tensor : tensors) {
      if (tensor.ChunksOf(level) > 0) return true;
    }
    return false;
  }
};

// Tables of which a pass reads the rows of its tokens: the embedding, and that of inputs of each
// layer.
enum class EmbeddingTable : uint8_t { kTokens, kLayerInputs };
inline constexpr size_t kEmbeddingTables = 2;

// A table of which a pass reads the tiles of its tokens: a pass has few of them.
struct StreamedEmbedding {
  static constexpr size_t kNone = SIZE_MAX;
  // Tiles that are read at a time.
  static constexpr uint64_t kTilesAtOnce = 16;

  size_t index = kNone;  // into PackedFile::tensors(); kNone: it stays in memory
  uint64_t file_offset = 0;
  PackedMatrix matrix;        // its layout; one panel
  int32_t rows = 0;           // of a pass at most
  uint64_t buffer_bytes = 0;  // for tiles and for the rows taken from them

  bool streamed() const { return index != kNone; }
  uint64_t tile_bytes() const { return TileBytes(matrix.type, matrix.padded_inputs()); }
  // Whole pages around a tile.
  uint64_t tile_room() const { return RoundUp(tile_bytes(), kWeightPage) + kWeightPage; }
};

// The matrices of an expert, in the order in which they are used.
enum class ExpertPart : uint8_t { kGate, kUp, kDown };
inline constexpr size_t kExpertParts = 3;

// The experts of mixtures. Those used most stay in memory; others are read when rows choose them.
struct StreamedExperts {
  struct Part {
    size_t index = 0;          // of the tensor of all experts, into PackedFile::tensors()
    uint64_t file_offset = 0;  // of expert 0, a multiple of kWeightPage
    uint64_t bytes = 0;        // of one expert
    friend bool operator==(const Part&, const Part&) = default;
  };
  std::vector<std::array<Part, kExpertParts>> layers;  // empty: all experts stay in memory
  int32_t experts = 0;                                 // of a layer
  int32_t slots = 0;                                   // experts in memory, at least `experts`
  // Whole pages around a part, in the layer in which they are most.
  std::array<uint64_t, kExpertParts> part_room{};

  bool streamed() const { return !layers.empty(); }
  uint64_t slot_bytes() const { return part_room[0] + part_room[1] + part_room[2]; }
  uint64_t buffer_bytes() const { return static_cast<uint64_t>(slots) * slot_bytes(); }
};

inline constexpr int32_t kStagesPerLayer = 4;  // QKV, attention output, gate and up, down

struct WeightPlan {
  uint64_t budget_bytes = 0;
  std::vector<StreamStage> stages;   // [layer * kStagesPerLayer + stage]
  std::vector<uint64_t> slot_bytes;  // [slot]; stage s uses slot s % slots
  std::array<StreamedEmbedding, kEmbeddingTables> embeddings;  // [EmbeddingTable]
  StreamedExperts experts;
  uint64_t fixed_bytes = 0;           // of all other tensors
  uint64_t resident_bytes = 0;        // of the stages' prefixes
  std::vector<uint64_t> level_bytes;  // [level] read for every pass

  int32_t slots() const { return static_cast<int32_t>(slot_bytes.size()); }
  uint64_t ring_bytes() const {
    uint64_t bytes = 0;
    for (const uint64_t slot : slot_bytes) bytes += slot;
    return bytes;
  }
  uint64_t embedding_buffer_bytes() const {
    uint64_t bytes = 0;
    for (const StreamedEmbedding& embedding : embeddings) bytes += embedding.buffer_bytes;
    return bytes;
  }
  uint64_t buffer_bytes() const {
    return ring_bytes() + embedding_buffer_bytes() + experts.buffer_bytes();
  }
  uint64_t memory_bytes() const { return fixed_bytes + resident_bytes + buffer_bytes(); }
  // Whether some pass has to read.
  bool streams() const { return buffer_bytes() > 0; }
};

}  // namespace withy::engine
