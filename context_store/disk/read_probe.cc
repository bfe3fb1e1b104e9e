#include "context_store/disk/read_probe.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/huge_memory.h"
#include "base/ids.h"
#include "base/status.h"

namespace withy::context_store {
namespace {

constexpr std::string_view kReadCostsKey = "meta/kv_read_costs";
constexpr char kReadCostsVersion = 1;

// As a model of 1 B parameters has them, at 8 bits.
constexpr uint32_t kProbeLayers = 16;
constexpr uint32_t kProbeBlockBytes = 8 << 10;
constexpr uint32_t kProbeChunks = 64;
constexpr size_t kProbeChunkBytes = size_t{kProbeLayers} * kProbeBlockBytes;
constexpr int kProbeRounds = 5;

class ReadProbe {
 public:
  ReadProbe(KvSegments& segments, HugeMemory memory, std::function<bool()> stopped,
            const Clock& clock)
      : segments_(segments),
        memory_(std::move(memory)),
        stopped_(std::move(stopped)),
        clock_(clock) {
    owner_.context_id = "probe";
    owner_.key = std::make_shared<const SecretKey>(SecretKey::Random());
  }

  absl::Status Write() {
    std::memset(memory_.bytes().data(), 1, memory_.bytes().size());
    KvExtentWrite write{.owner = owner_,
                        .format = 1,
                        .layers = kProbeLayers,
                        .block_bytes = kProbeBlockBytes,
                        .layer_stride = kProbeBlockBytes};
    for (uint32_t c = 0; c < kProbeChunks; ++c) {
      write.identities.push_back(ToBytes32(RandomBytes(32)));
      write.chunks.push_back(At(c));
    }
    WITHY_ASSIGN_OR_RETURN(extent_, segments_.Append(write));
    return segments_.Sync({&extent_, 1});
  }

  // The fastest of several reads of the first `chunks` chunks, since disturbances only add time.
  absl::StatusOr<double> ReadMs(uint32_t chunks) {
    double best = INFINITY;
    for (int round = 0; round < kProbeRounds; ++round) {
      const int64_t started = clock_.SteadyNanos();
      WITHY_RETURN_IF_ERROR(Read(chunks));
      best = std::min(best, static_cast<double>(clock_.SteadyNanos() - started) / 1e6);
    }
    return best;
  }

 private:
  std::byte* At(uint32_t chunk) { return memory_.bytes().data() + chunk * kProbeChunkBytes; }

  absl::Status Read(uint32_t chunks) {
    KvRead read;
    read.layers = kProbeLayers;
    KvExtentRead& part = read.extents.emplace_back();
    part.extent = extent_;
    part.owner = owner_;
    part.layer_stride = kProbeBlockBytes;
    for (uint32_t c = 0; c < kProbeChunks; ++c) {
      part.targets.push_back(c < chunks ? At(c) : nullptr);
    }
    absl::Notification done;
    absl::Status failed;
    read.on_layer = [](uint32_t) {};
    read.on_failed = [&](size_t, const absl::Status& status) { failed = status; };
    read.on_done = [&] { done.Notify(); };
    WITHY_ASSIGN_OR_RETURN(const KvReadId id, segments_.reader().Start(std::move(read)));
    constexpr absl::Duration kLook = absl::Milliseconds(50);
    while (!done.WaitForNotificationWithTimeout(kLook)) {
      if (!stopped_()) continue;
      segments_.reader().Cancel(id);
      return absl::CancelledError("the store stops");
    }
    return failed;
  }

  KvSegments& segments_;
  HugeMemory memory_;
  const std::function<bool()> stopped_;
  const Clock& clock_;
  KvOwner owner_;
  KvExtent extent_;
};

absl::StatusOr<ReadCosts> MeasureIn(const KvSegmentsOptions& options, const Clock& clock) {
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<KvSegments> segments, KvSegments::Open(options));
  WITHY_ASSIGN_OR_RETURN(HugeMemory memory, HugeMemory::Allocate(kProbeChunks * kProbeChunkBytes));
  ReadProbe probe(
      *segments, std::move(memory), [&options] { return options.stopped(); }, clock);
  WITHY_RETURN_IF_ERROR(probe.Write());
  WITHY_ASSIGN_OR_RETURN(const double one_ms, probe.ReadMs(1));
  WITHY_ASSIGN_OR_RETURN(const double all_ms, probe.ReadMs(kProbeChunks));
  if (!(one_ms > 0 && all_ms > 0)) {
    return absl::FailedPreconditionError("the clock stood still while the disk was measured");
  }
  constexpr double kMebibyte = 1 << 20;
  const double one_mib = kProbeChunkBytes / kMebibyte;
  const double all_mib = kProbeChunks * one_mib;
  // A disturbed measurement may say that more takes less; then the whole time counts for the bytes.
  ReadCosts costs{.mib_ms = (all_ms - one_ms) / (all_mib - one_mib)};
  if (costs.mib_ms <= 0) costs.mib_ms = all_ms / all_mib;
  costs.fixed_ms = std::max(one_ms - one_mib * costs.mib_ms, 0.01);
  return costs;
}

// Names the disk that has `directory`, and the power mode.
absl::StatusOr<std::string> PlaceOf(const std::string& directory, const BoardInfo& board) {
  struct stat info = {};
  if (::stat(directory.c_str(), &info) != 0) return ErrnoError(absl::StrCat("stat ", directory));
  return absl::StrCat(info.st_dev, "|", board.processor, "|", board.cores, "|", board.governor, "|",
                      board.max_khz);
}

}  // namespace

absl::StatusOr<ReadCosts> MeasureReadCosts(const KvSegmentsOptions& options, const Clock& clock) {
  KvSegmentsOptions probe = options;
  probe.directory = options.directory + "/speed";
  probe.max_bytes = uint64_t{64} << 20;
  const absl::StatusOr<ReadCosts> costs = MeasureIn(probe, clock);
  std::error_code ignored;  // what stays is deleted by the next measurement
  std::filesystem::remove_all(probe.directory, ignored);
  return costs;
}

absl::StatusOr<ReadCosts> FindReadCosts(const KvSegmentsOptions& options, const BoardInfo& board,
                                        RecordDb& db, const Clock& clock) {
  WITHY_ASSIGN_OR_RETURN(const std::string place, PlaceOf(options.directory, board));
  if (const auto record = db.Get(kReadCostsKey); record.ok()) {
    const auto kept = DecodeReadCosts(*record, place);
    if (kept.ok()) return kept;
  }
  WITHY_ASSIGN_OR_RETURN(const ReadCosts costs, MeasureReadCosts(options, clock));
  RecordBatch batch;
  batch.Put(kReadCostsKey, EncodeReadCosts(costs, place));
  WITHY_RETURN_IF_ERROR(db.Write(batch));
  return costs;
}

std::string EncodeReadCosts(const ReadCosts& costs, std::string_view place) {
  std::string payload(1 + sizeof costs.fixed_ms + sizeof costs.mib_ms, kReadCostsVersion);
  std::memcpy(payload.data() + 1, &costs.fixed_ms, sizeof costs.fixed_ms);
  std::memcpy(payload.data() + 1 + sizeof costs.fixed_ms, &costs.mib_ms, sizeof costs.mib_ms);
  payload.append(place);
  return payload;
}

absl::StatusOr<ReadCosts> DecodeReadCosts(std::string_view payload, std::string_view place) {
  ReadCosts costs;
  constexpr size_t kNumbers = sizeof costs.fixed_ms + sizeof costs.mib_ms;
  if (payload.size() < 1 + kNumbers || payload[0] != kReadCostsVersion) {
    return absl::DataLossError("the record of read costs is too short or of another version");
  }
  if (payload.substr(1 + kNumbers) != place) {
    return absl::NotFoundError("the read costs are those of another disk or power mode");
  }
  std::memcpy(&costs.fixed_ms, payload.data() + 1, sizeof costs.fixed_ms);
  std::memcpy(&costs.mib_ms, payload.data() + 1 + sizeof costs.fixed_ms, sizeof costs.mib_ms);
  if (std::isfinite(costs.fixed_ms) && std::isfinite(costs.mib_ms) && costs.fixed_ms > 0 &&
      costs.mib_ms > 0) {
    return costs;
  }
  return absl::DataLossError("the record of read costs has no times above 0");
}

}  // namespace withy::context_store
