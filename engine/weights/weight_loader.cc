#include "engine/weights/weight_loader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>

#include "base/crc32c.h"
#include "base/disk_io.h"
#include "base/huge_memory.h"
#include "base/status.h"

namespace withy::engine {
namespace {

constexpr uint64_t kWindow = 8 * kPackedChecksumBlock;

// Bytes of the file that are copied to memory, and bytes whose sum is taken.
struct Copy {
  uint64_t begin;
  uint64_t end;
  std::byte* to;
};
struct Summed {
  uint64_t begin;
  uint64_t end;
  ChunkSum* sum;
};

// Takes the file's bytes in order, window by window.
class Sorter {
 public:
  Sorter(const WeightPlan& plan, const WeightMemory& memory, const PackedFile& file) {
    std::vector<bool> staged(file.tensors().size());
    sums_.chunks.resize(plan.stages.size());
    for (size_t i = 0; i < plan.stages.size(); ++i) {
      for (const StreamedTensor& tensor : plan.stages[i].tensors) {
        staged[tensor.index] = true;
        const uint64_t streamed = tensor.file_offset + tensor.resident_bytes;
        const uint64_t end = tensor.file_offset + tensor.bytes;
        copies_.push_back({tensor.file_offset, streamed, memory.tensor(tensor.index)});
        auto& sums = sums_.chunks[i].emplace_back(tensor.chunks());
        for (size_t chunk = 0; chunk < sums.size(); ++chunk) {
          const uint64_t begin = streamed + chunk * kStreamChunk;
          summed_.push_back({begin, std::min(begin + kStreamChunk, end), &sums[chunk]});
        }
      }
    }
    for (size_t table = 0; table < kEmbeddingTables; ++table) {
      const StreamedEmbedding& embedding = plan.embeddings[table];
      if (!embedding.streamed()) continue;
      staged[embedding.index] = true;
      SumTiles(embedding, &sums_.tiles[table]);
    }
    SumExperts(plan.experts, &staged);
    for (size_t i = 0; i < staged.size(); ++i) {
      const PackedTensor& tensor = file.tensors()[i];
      if (staged[i]) continue;
      copies_.push_back({tensor.file_offset, tensor.file_offset + tensor.bytes, memory.tensor(i)});
    }
    const auto by_begin = [](const auto& a, const auto& b) { return a.begin < b.begin; };
    std::sort(copies_.begin(), copies_.end(), by_begin);
    std::sort(summed_.begin(), summed_.end(), by_begin);
  }

  // `bytes` lie at `offset` of the file.
  void Take(uint64_t offset, std::span<const std::byte> bytes) {
    const uint64_t end = offset + bytes.size();
    for (; copy_ < copies_.size() && copies_[copy_].begin < end; ++copy_) {
      const Copy& copy = copies_[copy_];
      const uint64_t from = std::max(copy.begin, offset);
      const uint64_t to = std::min(copy.end, end);
      if (from < to) std::memcpy(copy.to + (from - copy.begin), &bytes[from - offset], to - from);
      if (copy.end > end) break;  // continues in the next window
    }
    for (; sum_ < summed_.size() && summed_[sum_].begin < end; ++sum_) {
      const Summed& summed = summed_[sum_];
      const uint64_t from = std::max(summed.begin, offset);
      const uint64_t to = std::min(summed.end, end);
      const auto part = bytes.subspan(from - offset, to - from);
      if (to == summed.end && carried_.empty()) {
        *summed.sum = Crc32cLanes(part);
        continue;
      }
      carried_.insert(carried_.end(), part.begin(), part.end());
      if (to < summed.end) break;
      *summed.sum = Crc32cLanes(carried_);
      carried_.clear();
    }
  }

  StreamSums TakeSums() { return std::move(sums_); }

 private:
  void SumTiles(const StreamedEmbedding& embedding, std::vector<ChunkSum>* sums) {
    sums->resize(static_cast<size_t>(embedding.matrix.tiles()));
    const uint64_t bytes = embedding.tile_bytes();
    for (size_t tile = 0; tile < sums->size(); ++tile) {
      const uint64_t begin = embedding.file_offset + tile * bytes;
      summed_.push_back({begin, begin + bytes, &(*sums)[tile]});
    }
  }

  void SumExperts(const StreamedExperts& experts, std::vector<bool>* staged) {
    const auto count = static_cast<size_t>(experts.experts);
    sums_.experts.resize(experts.layers.size() * count * kExpertParts);
    for (size_t layer = 0; layer < experts.layers.size(); ++layer) {
      for (size_t part = 0; part < kExpertParts; ++part) {
        const StreamedExperts::Part& all = experts.layers[layer][part];
        (*staged)[all.index] = true;
        for (size_t expert = 0; expert < count; ++expert) {
          const uint64_t begin = all.file_offset + expert * all.bytes;
          ChunkSum* const sum = &sums_.experts[(layer * count + expert) * kExpertParts + part];
          summed_.push_back({begin, begin + all.bytes, sum});
        }
      }
    }
  }

  StreamSums sums_;
  std::vector<Copy> copies_;
  std::vector<Summed> summed_;
  size_t copy_ = 0;
  size_t sum_ = 0;
  std::vector<std::byte> carried_;  // beginning of a chunk that the window ended in
};

}  // namespace

absl::Status WeightFile::Read(const std::string& path, uint64_t offset,
                              std::span<std::byte> out) const {
  WITHY_RETURN_IF_ERROR(ReadPacked(fd.get(), path, offset, out));
  if (!direct) {
    posix_fadvise(fd.get(), static_cast<off_t>(offset), static_cast<off_t>(out.size()),
                  POSIX_FADV_DONTNEED);
  }
  return absl::OkStatus();
}

absl::StatusOr<WeightFile> OpenWeightFile(const std::string& path, bool direct) {
  WeightFile file;
  if (direct) {
    auto fd = OpenDiskFile(path, {.direct = true});
    // Some file systems open a file with O_DIRECT and refuse to read it.
    WITHY_ASSIGN_OR_RETURN(HugeMemory page, HugeMemory::Allocate(kDiskAlign));
    if (fd.ok() && pread(fd->get(), page.bytes().data(), kDiskAlign, 0) > 0) {
      return WeightFile{*std::move(fd), true};
    }
  }
  WITHY_ASSIGN_OR_RETURN(file.fd, OpenDiskFile(path, {.direct = false}));
  return file;
}

absl::StatusOr<StreamSums> LoadWeights(const WeightFile& from, const WeightPlan& plan,
                                       const WeightMemory& memory, PackedFile* file) {
  Sorter sorter(plan, memory, *file);
  WITHY_ASSIGN_OR_RETURN(HugeMemory window, HugeMemory::Allocate(kWindow));
  for (uint64_t at = 0; at < file->data_bytes(); at += kWindow) {
    const auto bytes = window.bytes().first(std::min(kWindow, file->data_bytes() - at));
    WITHY_RETURN_IF_ERROR(from.Read(file->path(), file->data_offset() + at, bytes));
    WITHY_RETURN_IF_ERROR(file->CheckBlocks(at, bytes));
    sorter.Take(file->data_offset() + at, bytes);
  }
  for (size_t i = 0; i < file->tensors().size(); ++i) file->MoveTensor(i, memory.tensor(i));
  file->ForgetData();
  return sorter.TakeSums();
}

}  // namespace withy::engine
