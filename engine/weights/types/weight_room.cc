#include "engine/weights/types/weight_room.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/round_up.h"
#include "base/strings.h"
#include "engine/cpu/packed_matrix.h"

namespace withy::engine {
namespace {

constexpr uint64_t kBufferBytes = uint64_t{48} << 20;  // of a pass and of the program
constexpr uint64_t kMebibyte = uint64_t{1} << 20;

struct Candidate {
  std::string_view name;
  WeightType type;
  WeightType head;  // of the output head
};

constexpr Candidate kCandidates[] = {
    {"F16", WeightType::kF16, WeightType::kF16},
    {"Q8_0", WeightType::kQ8, WeightType::kQ8},
    {"Q4_0", WeightType::kQ4, WeightType::kQ8},
};

std::string Mib(uint64_t bytes) { return absl::StrCat(bytes / kMebibyte, " MiB"); }
std::string MibUp(uint64_t bytes) { return Mib(bytes + kMebibyte - 1); }

uint64_t Less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

uint64_t BytesAs(const PackedTensor& tensor, WeightType type) {
  if (tensor.kind != PackedKind::kMatrix) return RoundUp(tensor.bytes, 64);
  PackedMatrix matrix = tensor.matrix;
  const uint64_t now = PackedBytes(matrix);
  matrix.type = type;
  return RoundUp(std::min<uint64_t>(now, PackedBytes(matrix)), kPackedPage);
}

// "Q8_0 (1234 MiB) or Q4_0 (700 MiB)".
std::string ListOf(std::span<const TypeSize> sizes) {
  std::string text;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool last = i + 1 == sizes.size();
    absl::StrAppend(&text,
                    i == 0 ? ""
                    : last ? " or "
                           : ", ",
                    ToAbsl(sizes[i].type), " (", MibUp(sizes[i].bytes), ")");
  }
  return text;
}

}  // namespace

std::vector<TypeSize> SmallerTypes(std::span<const PackedTensor> tensors) {
  const auto is = [](const char* name) {
    return [name](const PackedTensor& tensor) { return tensor.name == name; };
  };
  const bool tied = std::none_of(tensors.begin(), tensors.end(), is("output"));
  uint64_t least = 0;  // so far
  for (const PackedTensor& tensor : tensors) least += BytesAs(tensor, WeightType::kF32);
  std::vector<TypeSize> sizes;
  for (const Candidate& candidate : kCandidates) {
    uint64_t bytes = 0;
    for (const PackedTensor& tensor : tensors) {
      const bool head = tensor.name == (tied ? "token_embd" : "output");
      bytes += BytesAs(tensor, head ? candidate.head : candidate.type);
    }
    if (bytes < least) sizes.push_back({candidate.name, bytes});
    least = std::min(least, bytes);
  }
  return sizes;
}

std::string WhatFits(const WeightNeed& need, uint64_t room_bytes) {
  const uint64_t room = Less(room_bytes, kBufferBytes);
  std::vector<TypeSize> sizes = SmallerTypes(need.tensors);
  std::string smallest = sizes.empty() ? "" : ListOf(std::span(sizes).last(1));
  std::erase_if(sizes, [room](const TypeSize& size) { return size.bytes > room; });
  std::vector<std::string> ways;
  if (need.budget_bytes == 0 && !sizes.empty()) {
    ways.push_back(absl::StrCat("take a file of the model in ", ListOf(sizes)));
  }
  const uint64_t budget = room / kMebibyte * kMebibyte;
  if (budget > 0 && budget >= need.least_budget_bytes) {
    ways.push_back(absl::StrCat(
        need.budget_bytes == 0 ? "set weight_budget_bytes: " : "lower weight_budget_bytes to ",
        budget, ", and what it leaves out is read from disk for each pass"));
  }
  ways.push_back("make room");
  std::string text;
  for (size_t i = 0; i < ways.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : i + 1 == ways.size() ? ", or " : "; or ", ways[i]);
  }
  if (ways.size() == 1) {
    absl::StrAppend(&text, " or serve a smaller model: its least weight budget is ",
                    MibUp(need.least_budget_bytes),
                    smallest.empty() ? "" : absl::StrCat(", its smallest type ", smallest));
  }
  return text;
}

absl::Status CheckWeightRoom(const WeightNeed& need, std::span<const MemoryLimit> limits) {
  const bool has_budget = need.budget_bytes > 0;
  const uint64_t weights =
      has_budget ? std::min(need.budget_bytes, need.data_bytes) : need.data_bytes;
  const MemoryLimit* exceeded = nullptr;
  uint64_t free_bytes = UINT64_MAX;
  for (const MemoryLimit& limit : limits) {
    free_bytes = std::min(free_bytes, limit.room_bytes());
    const bool all_counts = !has_budget || limit.file == kBoardLimit;
    const uint64_t counts = all_counts ? limit.bytes : limit.room_bytes();
    if (exceeded == nullptr && weights + kBufferBytes > counts) exceeded = &limit;
  }
  if (exceeded == nullptr) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for the model: weights ", MibUp(weights),
                   has_budget ? " (weight_budget_bytes)" : "", " + buffers ", Mib(kBufferBytes),
                   " > allowed ", Mib(exceeded->bytes), " (", exceeded->file, "), of which ",
                   Mib(exceeded->room_bytes()), " are free: ", WhatFits(need, free_bytes)));
}

}  // namespace withy::engine
