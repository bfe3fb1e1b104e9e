// Fills the resident part of the weights from a packed file, past the page cache where the file
// system can, and checks the whole file on the way. The sums of what will be streamed are taken
// from the checked bytes. Neighbours: weight_memory.h is filled, weight_stream.h checks by the
// sums.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/weight_memory.h"
#include "engine/weights/weight_plan.h"

namespace withy::engine {

using ChunkSum = std::array<uint32_t, 4>;  // Crc32cLanes
struct StreamSums {
  std::vector<std::vector<std::vector<ChunkSum>>> chunks;  // [stage][tensor][chunk]
  // [EmbeddingTable][tile] of streamed tables
  std::array<std::vector<ChunkSum>, kEmbeddingTables> tiles;
  std::vector<ChunkSum> experts;  // [(layer * experts + expert) * kExpertParts + part]
};

// A file opened for reading weights.
struct WeightFile {
  UniqueFd fd;
  bool direct = false;  // O_DIRECT; else its pages are dropped from the cache after each read

  // `offset` and `out` are multiples of kDiskAlign. Errors: DATA_LOSS naming path and byte.
  absl::Status Read(const std::string& path, uint64_t offset, std::span<std::byte> out) const;
};
// `direct`: with O_DIRECT, if the file system has it. Errors: those of open(2), naming the path.
absl::StatusOr<WeightFile> OpenWeightFile(const std::string& path, bool direct = true);

// Copies what is resident and points the file's tensors at `memory`. Errors: DATA_LOSS naming the
// file and the part.
absl::StatusOr<StreamSums> LoadWeights(const WeightFile& from, const WeightPlan& plan,
                                       const WeightMemory& memory, PackedFile* file);

}  // namespace withy::engine
