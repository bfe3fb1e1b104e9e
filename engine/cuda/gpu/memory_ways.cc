#include "engine/cuda/gpu/memory_ways.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory_limits.h"
#include "base/status.h"

namespace withy::engine::cuda {
namespace {

constexpr uint64_t kLeastBytes = uint64_t{16} << 20;
constexpr uint64_t kMostBytes = uint64_t{256} << 20;
constexpr uint64_t kMostHostBytes = uint64_t{64} << 20;  // written by the host: 10 ms
constexpr uint64_t kUntimedBytes = uint64_t{128} << 10;
constexpr uint64_t kTimesL2 = 4;
constexpr int kBlocks = 1024;
constexpr int kUntimedBlocks = 4;
constexpr int kTimedReads = 3;

uint64_t BytesFor(const Gpu& gpu, const GpuFacts& facts, MemoryWay way) {
  if (!gpu.has_times()) return kUntimedBytes;
  const uint64_t most = way == MemoryWay::kDevice ? kMostBytes : kMostHostBytes;
  const uint64_t wanted = std::clamp(kTimesL2 * facts.l2_bytes, kLeastBytes, most);
  uint64_t room = facts.free_bytes;
  if (way != MemoryWay::kDevice && MemoryFree() > 0) room = std::min(room, MemoryFree());
  return std::min(wanted, room / 4) / 256 * 256;
}

// The pattern in memory that kernels and the host access.
class Pattern {
 public:
  Pattern(Gpu& gpu, MemoryWay way)
      : gpu_(gpu),
        memory_(gpu, way),
        wrong_(gpu, MemoryWay::kHost),
        stamps_(gpu, MemoryWay::kHost) {}

  absl::Status Reserve(uint64_t bytes) {
    WITHY_RETURN_IF_ERROR(wrong_.Reserve(kBlocks * sizeof(int32_t)));
    WITHY_RETURN_IF_ERROR(stamps_.Reserve(2 * sizeof(uint64_t)));
    WITHY_RETURN_IF_ERROR(memory_.Reserve(bytes));
    args_ = {.memory = memory_.as<uint8_t>(),
             .count = static_cast<int64_t>(bytes / 16),
             .blocks = gpu_.has_times() ? kBlocks : kUntimedBlocks,
             .wrong = wrong_.as<int32_t>()};
    return absl::OkStatus();
  }
  bool on_host() const { return memory_.host() != nullptr; }
  void FillByHost(uint32_t seed) {
    args_.seed = seed;
    auto* const words = reinterpret_cast<uint32_t*>(memory_.host());
    for (uint32_t i = 0; i < words_count(); ++i) words[i] = MemoryPattern(i, seed);
  }
  absl::Status FillByGpu(uint32_t seed) {
    args_.seed = seed;
    gpu_.kernels().fill_memory(gpu_.queue(), args_);
    return gpu_.Wait();
  }
  uint64_t WrongForHost() const {
    const auto* const words = reinterpret_cast<const uint32_t*>(memory_.host());
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < words_count(); ++i) {
      wrong += words[i] != MemoryPattern(i, args_.seed) ? 1 : 0;
    }
    return wrong;
  }
  // Words that are wrong as the GPU reads them; `ns`: what that took.
  absl::StatusOr<uint64_t> WrongForGpu(uint64_t* ns) {
    auto* const stamps = stamps_.as<uint64_t>();
    gpu_.kernels().stamp(gpu_.queue(), {.to = stamps});
    gpu_.kernels().read_memory(gpu_.queue(), args_);
    gpu_.kernels().stamp(gpu_.queue(), {.to = stamps + 1});
    WITHY_RETURN_IF_ERROR(gpu_.Wait());
    *ns = std::max<uint64_t>(1, stamps[1] - stamps[0]);
    uint64_t wrong = 0;
    for (int block = 0; block < args_.blocks; ++block) {
      wrong += static_cast<uint64_t>(wrong_.as<int32_t>()[block]);
    }
    return wrong;
  }

 private:
  uint32_t words_count() const { return static_cast<uint32_t>(4 * args_.count); }

  Gpu& gpu_;
  Buffer memory_;
  Buffer wrong_;
  Buffer stamps_;
  MemoryArgs args_;
};

// Each pattern is another one, so that what somebody kept of the one before is found.
absl::Status Measure(Gpu& gpu, uint64_t bytes, WayResult* result) {
  if (bytes == 0) {
    result->left_out = "no memory is free";
    return absl::OkStatus();
  }
  Pattern pattern(gpu, result->way);
  WITHY_RETURN_IF_ERROR(pattern.Reserve(bytes));
  uint32_t seed = 1;
  uint64_t ns = 0;
  for (int i = 0; pattern.on_host() && i < 2; ++i, ++seed) {
    pattern.FillByHost(seed);
    WITHY_ASSIGN_OR_RETURN(const uint64_t wrong, pattern.WrongForGpu(&ns));
    result->wrong += wrong;
  }
  WITHY_RETURN_IF_ERROR(pattern.FillByGpu(seed));
  if (pattern.on_host()) result->wrong += pattern.WrongForHost();
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < kTimedReads; ++i) {
    WITHY_ASSIGN_OR_RETURN(const uint64_t wrong, pattern.WrongForGpu(&ns));
    result->wrong += wrong;
    least = std::min(least, ns);
  }
  result->bytes = bytes;
  if (gpu.has_times()) {
    result->bytes_per_second = 1e9 * static_cast<double>(bytes) / static_cast<double>(least);
  }
  return absl::OkStatus();
}

const WayResult* Find(std::span<const WayResult> results, MemoryWay way) {
  const auto found = std::find_if(results.begin(), results.end(),
                                  [way](const WayResult& result) { return result.way == way; });
  return found == results.end() ? nullptr : &*found;
}

}  // namespace

std::string_view MemoryWayName(MemoryWay way) {
  switch (way) {
    case MemoryWay::kDevice:
      return "device";
    case MemoryWay::kHost:
      return "host";
    case MemoryWay::kManaged:
      return "managed";
    case MemoryWay::kRegistered:
      return "registered";
  }
  return "";
}

absl::StatusOr<std::vector<WayResult>> MeasureMemory(Gpu& gpu, bool all) {
  const GpuFacts facts = gpu.facts();
  std::vector<WayResult> results;
  for (const MemoryWay way : {MemoryWay::kDevice, MemoryWay::kRegistered}) {
    WayResult& result = results.emplace_back(WayResult{.way = way});
    WITHY_RETURN_IF_ERROR(Measure(gpu, BytesFor(gpu, facts, way), &result));
  }
  if (!all && !facts.integrated) return results;
  WayResult& managed = results.emplace_back(WayResult{.way = MemoryWay::kManaged});
  if (!facts.integrated && !facts.manages_at_once) {
    managed.left_out = "the driver cannot manage it while the host accesses it";
    return results;
  }
  // Some drivers have no managed memory.
  const absl::Status status = Measure(gpu, BytesFor(gpu, facts, managed.way), &managed);
  if (!status.ok()) managed = {.way = managed.way, .left_out = std::string(status.message())};
  return results;
}

absl::Status CheckMemory(std::span<const WayResult> results) {
  for (const MemoryWay way : {MemoryWay::kDevice, MemoryWay::kRegistered}) {
    const WayResult* const result = Find(results, way);
    if (result == nullptr || result->wrong == 0) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "self-check failed: ", result->wrong, " words of ", result->bytes, " bytes of ",
        std::string(MemoryWayName(way)),
        " memory differ between GPU and host; check the card and its driver, or set model.device "
        "to cpu"));
  }
  return absl::OkStatus();
}

MemoryWay WayForWeights(std::span<const WayResult> results) {
  constexpr double kFaster = 1.1;
  const WayResult* const device = Find(results, MemoryWay::kDevice);
  MemoryWay best = MemoryWay::kDevice;
  double least = device != nullptr ? kFaster * device->bytes_per_second : 0;
  for (const WayResult& result : results) {
    if (result.way == MemoryWay::kDevice || result.wrong > 0) continue;
    if (result.bytes_per_second <= least) continue;
    best = result.way;
    least = result.bytes_per_second;
  }
  return best;
}

}  // namespace withy::engine::cuda
