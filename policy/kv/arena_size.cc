#include "policy/kv/arena_size.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace withy::policy {
namespace {

constexpr uint64_t kMebibyte = 1 << 20;
constexpr uint64_t kStepBytes = 2 * kMebibyte;

uint64_t Less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

std::string Mib(uint64_t bytes) {
  return absl::StrCat((bytes + kMebibyte - 1) / kMebibyte, " MiB");
}

uint64_t BytesBelow(const MemoryBound& bound, const MemoryParts& parts, uint64_t least) {
  // What is in use now may be weights and buffers already: they do not count twice.
  const uint64_t now = Less(Less(bound.limit_bytes, bound.used_bytes), parts.store_buffers);
  if (bound.alone) return now;
  const uint64_t beside =
      Less(bound.limit_bytes, parts.store_buffers + parts.other_buffers + parts.weights);
  const uint64_t planned =
      std::max(beside, std::min(Less(bound.limit_bytes, parts.store_buffers), least));
  return std::min(now, planned);
}

std::string SumOf(const MemoryBound& bound, const MemoryParts& parts) {
  const uint64_t buffers = parts.store_buffers + (bound.alone ? 0 : parts.other_buffers);
  std::string sum = absl::StrCat("arena ", Mib(parts.arena));
  if (!bound.alone) absl::StrAppend(&sum, " + weights ", Mib(parts.weights));
  absl::StrAppend(&sum, " + buffers ", Mib(buffers), " > allowed ", Mib(bound.limit_bytes), " (",
                  bound.name, "; ", Mib(bound.used_bytes), " of it are in use)");
  return sum;
}

}  // namespace

ArenaSize FitArena(const MemoryParts& parts, std::span<const MemoryBound> bounds) {
  const uint64_t least = std::min(parts.arena, kLeastArenaBytes);
  uint64_t bytes = parts.arena;
  const MemoryBound* tightest = nullptr;
  for (const MemoryBound& bound : bounds) {
    const uint64_t fits = BytesBelow(bound, parts, least);
    if (fits >= bytes) continue;
    bytes = fits;
    tightest = &bound;
  }
  if (tightest == nullptr) return {parts.arena, ""};
  const uint64_t whole = std::max(bytes / kStepBytes * kStepBytes, bytes >= least ? least : 0);
  return {whole >= least ? whole : 0, SumOf(*tightest, parts)};
}

}  // namespace withy::policy
