#include "engine/weights/weight_memory.h"

#include <sys/mman.h>

#include <utility>

#include "base/huge_memory.h"
#include "base/round_up.h"
#include "base/shared_memory.h"
#include "base/status.h"

namespace withy::engine {
namespace {

constexpr int kMadviseCollapse = 25;  // MADV_COLLAPSE, which <sys/mman.h> of Debian 12 lacks

// Large tensors begin on a huge page, so that their prefixes get whole ones.
uint64_t AlignmentOf(uint64_t bytes) {
  return bytes >= HugeMemory::kHugePage ? HugeMemory::kHugePage : kWeightPage;
}

// Tensors that are in no stage lie one behind the other.
struct FixedLayout {
  std::vector<std::pair<size_t, uint64_t>> places;  // tensor, offset
  uint64_t bytes = 0;
};

FixedLayout LayOutFixed(const PackedFile& file, const WeightPlan& plan) {
  std::vector<bool> staged(file.tensors().size());
  for (const StreamStage& stage : plan.stages) {
    for (const StreamedTensor& tensor : stage.tensors) staged[tensor.index] = true;
  }
  for (const StreamedEmbedding& embedding : plan.embeddings) {
    if (embedding.streamed()) staged[embedding.index] = true;
  }
  for (const auto& layer : plan.experts.layers) {
    for (const StreamedExperts::Part& part : layer) staged[part.index] = true;
  }
  FixedLayout layout;
  // Matrices first, so that each begins on a page and no room is lost.
  for (const bool matrices : {true, false}) {
    for (size_t i = 0; i < staged.size(); ++i) {
      const PackedTensor& tensor = file.tensors()[i];
      if (staged[i] || (tensor.kind == PackedKind::kMatrix) != matrices) continue;
      layout.places.emplace_back(i, layout.bytes);
      layout.bytes += RoundUp(tensor.bytes, matrices ? kWeightPage : 64);
    }
  }
  return layout;
}

}  // namespace

WeightMemory::~WeightMemory() {
  if (base_ != nullptr) munmap(base_, reserved_);
  if (ring_base_ != nullptr) munmap(ring_base_, ring_reserved_);
}

absl::StatusOr<std::unique_ptr<WeightMemory>> WeightMemory::Create(const PackedFile& file,
                                                                   const WeightPlan& plan) {
  std::unique_ptr<WeightMemory> memory(new WeightMemory());
  UniqueFd ring;
  WITHY_RETURN_IF_ERROR(memory->CreateRing(plan, &ring));
  WITHY_RETURN_IF_ERROR(memory->Place(file, plan, ring));
  return memory;
}

absl::Status WeightMemory::CreateRing(const WeightPlan& plan, UniqueFd* fd) {
  slot_bytes_ = plan.slot_bytes;
  uint64_t offset = 0;
  for (const uint64_t bytes : slot_bytes_) {
    slot_offsets_.push_back(offset);
    offset += bytes;
  }
  if (offset == 0) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(*fd, CreateSealedMemfd("withy-weights", offset));
  ring_reserved_ = RoundUp(offset, HugeMemory::kHugePage) + HugeMemory::kHugePage;
  void* const range =
      mmap(nullptr, ring_reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return ErrnoError(absl::StrCat("reserve ", ring_reserved_));
  ring_base_ = static_cast<std::byte*>(range);
  void* const begin =
      reinterpret_cast<void*>(RoundUp(reinterpret_cast<uintptr_t>(range), HugeMemory::kHugePage));
  // MAP_POPULATE allocates every page.
  if (mmap(begin, offset, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd->get(),
           0) == MAP_FAILED) {
    return ErrnoError(absl::StrCat("map ", offset, " bytes of the ring"));
  }
  ring_ = {static_cast<std::byte*>(begin), offset};
  madvise(begin, offset, MADV_DONTDUMP);
  // Linux 6.1 and later. Before that, and for what is less than a huge page, pages stay small.
  madvise(begin, offset / HugeMemory::kHugePage * HugeMemory::kHugePage, kMadviseCollapse);
  return absl::OkStatus();
}

absl::Status WeightMemory::Place(const PackedFile& file, const WeightPlan& plan,
                                 const UniqueFd& ring_fd) {
  const FixedLayout fixed = LayOutFixed(file, plan);
  uint64_t size = RoundUp(fixed.bytes, HugeMemory::kHugePage);
  for (const StreamStage& stage : plan.stages) {
    for (const StreamedTensor& tensor : stage.tensors) {
      size = RoundUp(size, AlignmentOf(tensor.bytes)) + RoundUp(tensor.bytes, kWeightPage);
    }
  }
  reserved_ = size + HugeMemory::kHugePage;
  void* const range =
      mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return ErrnoError(absl::StrCat("reserve ", reserved_, " addresses"));
  base_ = static_cast<std::byte*>(range);
  std::byte* const begin = reinterpret_cast<std::byte*>(
      RoundUp(reinterpret_cast<uintptr_t>(base_), HugeMemory::kHugePage));

  addresses_.assign(file.tensors().size(), nullptr);
  WITHY_RETURN_IF_ERROR(MapResident(begin, RoundUp(fixed.bytes, kWeightPage)));
  for (const auto& [index, offset] : fixed.places) addresses_[index] = begin + offset;
  uint64_t at = RoundUp(fixed.bytes, HugeMemory::kHugePage);
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    for (const StreamedTensor& tensor : plan.stages[i].tensors) {
      at = RoundUp(at, AlignmentOf(tensor.bytes));
      addresses_[tensor.index] = begin + at;
      const uint64_t resident = tensor.resident_bytes_used();
      WITHY_RETURN_IF_ERROR(MapResident(begin + at, resident));
      const size_t slot = i % plan.slot_bytes.size();
      WITHY_RETURN_IF_ERROR(MapRing(ring_fd, begin + at + resident, tensor.streamed_bytes(),
                                    slot_offsets_[slot] + tensor.slot_offset));
      at += RoundUp(tensor.bytes, kWeightPage);
    }
  }
  return absl::OkStatus();
}

absl::Status WeightMemory::MapResident(std::byte* at, uint64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  void* const mapped = mmap(at, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (mapped == MAP_FAILED) return ErrnoError(absl::StrCat("map ", bytes, " bytes of weights"));
  madvise(at, bytes, MADV_HUGEPAGE);  // a system that refuses gives small pages
  madvise(at, bytes, MADV_DONTDUMP);
  resident_.emplace_back(at, bytes);
  return absl::OkStatus();
}

absl::Status WeightMemory::MapRing(const UniqueFd& fd, std::byte* at, uint64_t bytes,
                                   uint64_t offset) {
  if (bytes == 0) return absl::OkStatus();
  void* const mapped = mmap(at, bytes, PROT_READ, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd.get(),
                            static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return ErrnoError(absl::StrCat("map ", bytes, " bytes of the ring"));
  madvise(at, bytes, MADV_DONTDUMP);
  return absl::OkStatus();
}

absl::Status WeightMemory::Seal() {
  for (const std::span<std::byte> part : resident_) {
    if (mprotect(part.data(), part.size(), PROT_READ) != 0) return ErrnoError("protect weights");
  }
  return absl::OkStatus();
}

uint64_t WeightMemory::Lock() {
  uint64_t locked = 0;
  // The ring first: every pass needs it.
  if (!ring_.empty() && mlock(ring_.data(), ring_.size()) == 0) locked += ring_.size();
  for (const std::span<std::byte> part : resident_) {
    if (mlock(part.data(), part.size()) != 0) break;
    locked += part.size();
  }
  return locked;
}

}  // namespace withy::engine
