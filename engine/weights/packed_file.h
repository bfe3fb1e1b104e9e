// A packed file, mapped read-only and verified; finds tensors by name. Neighbours: packer.h writes
// the file, model/ computes with it. Does not know architectures: if the file lacks a tensor that a
// model needs, the model reports it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "base/huge_memory.h"
#include "engine/cpu/low_rank.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/gguf/reader.h"
#include "engine/weights/packed_format.h"

namespace withy::engine {

// Fills `out` with a packed file's bytes from `offset` on. Errors: DATA_LOSS naming path and byte.
absl::Status ReadPacked(int fd, const std::string& path, uint64_t offset, std::span<std::byte> out);

struct PackedTensor {
  std::string name;
  PackedKind kind = PackedKind::kVector;
  PackedMatrix matrix;            // kMatrix
  std::span<const float> values;  // kVector
  LowRankOutputs low_rank;        // kLowRank
  uint64_t file_offset = 0;       // of the first byte, from the start of the file
  uint64_t bytes = 0;
};

// Immutable after Open and MoveToMemory or MoveTensor; thread-safe. Views are valid as long as the
// object. The weights are mapped with MAP_SHARED, so that all processes share the pages; the rest
// is read.
class PackedFile {
 public:
  enum class Verify {
    kHead,    // structure, table, metadata
    kSample,  // also some evenly spread data blocks: milliseconds
    kFull,    // every data block
  };

  // Errors: NOT_FOUND, PERMISSION_DENIED (open); FAILED_PRECONDITION (another version); DATA_LOSS
  // (not a packed file, truncated, a section or tensor out of bounds, a wrong checksum, bytes that
  // the disk does not give), naming the file and the part.
  static absl::StatusOr<std::unique_ptr<PackedFile>> Open(const std::string& path,
                                                          Verify verify = Verify::kSample);
  // Copies the weights into a HugeMemory and verifies every block of them on the way; tensors
  // then lie there. Once, before views are taken. Errors: DATA_LOSS naming the file and the part;
  // those of HugeMemory.
  absl::Status MoveToMemory();
  // For weights that another holds: checks whole blocks of the data section, which begin at
  // `begin`, a multiple of kPackedChecksumBlock; says where a tensor's bytes are; gives the memory
  // of the mapped data section back. Errors: DATA_LOSS naming the file and the part.
  absl::Status CheckBlocks(uint64_t begin, std::span<const std::byte> bytes) const;
  // While nobody reads weights: gives their memory back, until Wake, or, where they are mapped,
  // until they are read again. Returns whether it did.
  bool Rest();
  // Reads and verifies the weights anew, at the addresses that they had, if Rest gave them back.
  // Errors: DATA_LOSS naming the file and the part, those of open(2).
  absl::Status Wake();
  // Whether MoveToMemory was called.
  bool in_memory() const { return !memory_.bytes().empty(); }
  // Whether Rest gave the memory back, and Wake has not read it again. Any thread.
  bool rests() const { return rests_; }
  void MoveTensor(size_t index, const std::byte* data);
  void ForgetData() const;
  // Whether the file begins like a packed file; false if it cannot be read.
  static bool LooksPacked(const std::string& path);
  // Reads only the trailer's source identity. Errors: as Open.
  static absl::StatusOr<SourceIdentity> ReadSource(const std::string& path);

  ~PackedFile();
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;

  const std::string& path() const { return path_; }
  // Metadata of the source GGUF, without tensors: tokenizer, chat template, shape.
  const GgufFile& metadata() const { return *metadata_; }
  std::span<const PackedTensor> tensors() const { return tensors_; }
  const PackedTensor* Find(std::string_view name) const;  // null if missing
  // 32 hexadecimal digits over metadata, shapes and weights.
  std::string model_id() const;
  const SourceIdentity& source() const { return trailer_.source; }
  // PackedTrailer::kv_epoch.
  uint32_t kv_epoch() const { return trailer_.kv_epoch; }
  uint64_t file_bytes() const { return bytes_.size(); }
  uint64_t data_bytes() const { return trailer_.data.bytes; }
  uint64_t data_offset() const { return trailer_.data.offset; }

 private:
  PackedFile() = default;
  absl::Status Map(int fd);
  absl::Status ReadSections(int fd);
  absl::Status ReadSection(int fd, std::string_view name, const PackedSection& section,
                           uint32_t crc, std::vector<std::byte>* bytes) const;
  absl::Status ReadTable();
  absl::Status AddTensor(const PackedEntry& entry);
  absl::Status CheckData(int fd, Verify verify) const;
  absl::Status ReadData(HugeMemory* memory) const;
  absl::Status CheckBlock(uint64_t block, std::span<const std::byte> bytes) const;
  absl::Status Damaged(std::string_view what) const;

  std::string path_;
  std::span<const std::byte> bytes_;  // the mapping
  HugeMemory memory_;                 // holds the data section after MoveToMemory
  std::atomic<bool> rests_ = false;   // after Rest
  PackedTrailer trailer_;
  std::vector<std::byte> table_;
  std::vector<std::byte> metadata_bytes_;
  std::vector<std::byte> checksums_;
  std::unique_ptr<GgufFile> metadata_;
  std::vector<PackedTensor> tensors_;
  std::unordered_map<std::string_view, size_t> index_;  // keys are views into tensors_[i].name
};

}  // namespace withy::engine
