#include "context_store/arena/arena_plan.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/memory_limits.h"
#include "base/status.h"
#include "context_store/arena/arena.h"
#include "engine/gguf/split.h"
#include "policy/kv/arena_size.h"
#include "withy/v1/config.pb.h"

namespace withy::context_store {
namespace {

// Measured: 45 MiB, of which 30 are pages of the program and its libraries; RocksDB may take 24 MiB
// more for what it has not written yet and for reading.
constexpr uint64_t kStoreBufferBytes = uint64_t{64} << 20;
// Measured: 20 to 35 MiB for each of the other four, for the target's worker 30 MiB more.
constexpr uint64_t kOtherBufferBytes = uint64_t{128} << 20;

// 0 where this process cannot see the file: the model is on another board.
uint64_t WeightBytes(const v1::ModelConfig& model) {
  if (model.weight_budget_bytes() > 0) return model.weight_budget_bytes();
  uint64_t bytes = 0;
  for (const std::string& part : engine::GgufPartPaths(model.path())) {
    std::error_code error;
    const uint64_t part_bytes = std::filesystem::file_size(part, error);
    if (!error) bytes += part_bytes;
  }
  return bytes;
}

uint64_t ChargedBytes(const UniqueFd& file) {
  struct stat info {};
  if (!file.valid() || fstat(file.get(), &info) != 0) return 0;
  constexpr uint64_t kStatBlock = 512;
  return static_cast<uint64_t>(info.st_blocks) * kStatBlock;
}

}  // namespace

absl::StatusOr<ArenaPlan> PlanArena(const v1::Config& config, const UniqueFd& kept,
                                    const std::string& root) {
  const uint64_t wanted = config.store().arena_bytes();
  const policy::MemoryParts parts{
      .arena = wanted,
      .weights = WeightBytes(config.model()) + WeightBytes(config.draft()),
      .store_buffers = kStoreBufferBytes,
      .other_buffers = kOtherBufferBytes};
  const uint64_t charged = ChargedBytes(kept);
  std::vector<policy::MemoryBound> bounds;
  for (const MemoryLimit& limit : MemoryLimits(root)) {
    bounds.push_back({.limit_bytes = limit.bytes,
                      .used_bytes = limit.used_bytes - std::min(limit.used_bytes, charged),
                      .alone = limit.alone,
                      .name = limit.file});
  }
  policy::ArenaSize size = policy::FitArena(parts, bounds);
  if (size.sum.empty()) return ArenaPlan{size.bytes, ""};
  if (size.bytes == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for the KV arena, not even for the least one of ",
                     std::min(wanted, policy::kLeastArenaBytes) >> 20, " MiB: ", size.sum,
                     ": raise the limit, or serve a smaller model"));
  }
  if (const uint64_t kept_bytes = Arena::BytesOf(kept, wanted); kept_bytes > 0) {
    size.bytes = kept_bytes;
  }
  spdlog::warn(
      "the KV arena gets {} MiB, not the {} MiB of store.arena_bytes: {}; raise the limit, serve a "
      "smaller model, or set store.arena_bytes to {}",
      size.bytes >> 20, wanted >> 20, size.sum, size.bytes);
  return ArenaPlan{size.bytes, std::move(size.sum)};
}

}  // namespace withy::context_store
