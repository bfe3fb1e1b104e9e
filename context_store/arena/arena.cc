#include "context_store/arena/arena.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "base/huge_memory.h"
#include "base/round_up.h"
#include "base/status.h"
#include "context_store/arena/arena_directory.h"
#include "engine/kv/block.h"

namespace withy::context_store {
namespace {

constexpr char kFdName[] = "arena";
constexpr size_t kMostStatBytes = 1 << 12;
constexpr uint64_t kPage = 4096;
constexpr size_t kPrefaultStep = 4 << 20;  // small, so that stopping is quick
constexpr int kCollapse = 25;              // MADV_COLLAPSE (Linux 6.1), newer than the C library

// Of the file of an arena with this many bytes of blocks.
uint64_t FileBytes(uint64_t bytes) {
  return RoundUp(bytes, kPage) + ArenaDirectory::BytesFor(bytes);
}

bool IsArenaOf(int fd, uint64_t bytes) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes) return false;
  const int seals = fcntl(fd, F_GET_SEALS);
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  return seals >= 0 && (seals & kNeeded) == kNeeded;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Arena>> Arena::Create(uint64_t bytes, UniqueFd kept,
                                                     uint64_t lock_limit_bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("store.arena_bytes is 0");
  std::unique_ptr<Arena> arena(new Arena(bytes));
  const uint64_t file_bytes = FileBytes(bytes);
  if (kept.valid() && IsArenaOf(kept.get(), file_bytes)) {
    arena->fd_ = std::move(kept);
    arena->recovered_ = true;
  } else {
    WITHY_ASSIGN_OR_RETURN(arena->fd_, CreateSealedMemfd("withy-kv-arena", file_bytes));
  }
  WITHY_ASSIGN_OR_RETURN(arena->memory_, SharedMemory::Map(arena->fd_.get(), file_bytes,
                                                           SharedMemory::Access::kReadWrite));
  WITHY_RETURN_IF_ERROR(arena->memory_.ExcludeFromCoreDumps());
  arena->locks_ = std::make_unique<ArenaLocks>(std::span<std::byte>(arena->memory_.data(), bytes),
                                               lock_limit_bytes);
  arena->PrefaultInBackground();
  return arena;
}

uint64_t Arena::BytesOf(const UniqueFd& kept, uint64_t most) {
  if (!kept.valid()) return 0;
  for (uint64_t bytes = HugeMemory::kHugePage; bytes <= most; bytes += HugeMemory::kHugePage) {
    if (IsArenaOf(kept.get(), FileBytes(bytes))) return bytes;
  }
  return 0;
}

Arena::~Arena() {
  stop_ = true;
  if (prefault_.joinable()) prefault_.join();
}

std::span<std::byte> Arena::directory() const {
  return memory_.bytes().subspan(RoundUp(bytes_, kPage));
}

void Arena::PrefaultInBackground() {
  prefault_ = std::thread([this] {
    bool huge = true;
    for (size_t offset = 0; offset < bytes_ && !stop_; offset += kPrefaultStep) {
      const size_t bytes = std::min<size_t>(kPrefaultStep, bytes_ - offset);
      if (!Prefault(offset, bytes)) return;
      huge = huge && Collapse(offset, bytes);
    }
    if (huge_bytes_ > 0) {
      spdlog::info("{} of the {} bytes of the KV arena are in pages of 2 MiB", huge_bytes_.load(),
                   bytes_);
    }
    prefaulted_ = true;
  });
}

bool Arena::Prefault(size_t offset, size_t bytes) {
  std::byte* begin = memory_.data() + offset;
  if (madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) {  // touching the pages would kill the process
    spdlog::error(
        "no memory for {} of the {} bytes of the KV arena ({}): set store.arena_bytes lower",
        bytes_ - offset, bytes_, std::strerror(errno));
    return false;
  }
  // Kernels before 5.14: reading a page of a shared memfd allocates it.
  for (size_t i = 0; i < bytes; i += kPage)
    (void)*static_cast<volatile const std::byte*>(begin + i);
  return true;
}

// Moves what this range has, which is prefaulted, into pages of 2 MiB, so that attention takes
// fewer page walks. Every process that maps the arena gains. False: the system does not do that
// here.
bool Arena::Collapse(size_t offset, size_t bytes) {
  bytes = bytes / HugeMemory::kHugePage * HugeMemory::kHugePage;
  if (bytes == 0) return false;
  if (madvise(memory_.data() + offset, bytes, kCollapse) == 0) {
    huge_bytes_ += bytes;
    return true;
  }
  if (errno == EAGAIN || errno == EBUSY) return true;  // some of the pages could not be moved
  spdlog::info("the KV arena has pages of 4 KiB from byte {} on: {}", offset, std::strerror(errno));
  return false;
}

bool Arena::ReleasePages(uint64_t offset, uint64_t bytes) {
  return fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                   static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0;
}

void Arena::Stamp(const engine::KvGeometry& geometry, engine::KvSlot slot, uint64_t epoch) {
  for (int layer = 0; layer < geometry.layers; ++layer) {
    const engine::KvBlockName block = slot.Block(geometry, layer);
    if (!block.exists()) continue;
    engine::KvBlockHeader header{};
    header.epoch = epoch;
    header.layer = static_cast<uint32_t>(layer);
    header.format = engine::KvFormat::kEmpty;
    std::memcpy(At(block), &header, sizeof header);
  }
}

void Arena::SetEpoch(const engine::KvGeometry& geometry, engine::KvSlot slot, uint64_t epoch) {
  static_assert(offsetof(engine::KvBlockHeader, epoch) == 0);
  for (int layer = 0; layer < geometry.layers; ++layer) {
    const engine::KvBlockName block = slot.Block(geometry, layer);
    if (block.exists()) std::memcpy(At(block), &epoch, sizeof epoch);
  }
}

bool Arena::HasStamp(const engine::KvGeometry& geometry, engine::KvSlot slot,
                     uint64_t epoch) const {
  static_assert(offsetof(engine::KvBlockHeader, epoch) == 0);
  for (int layer = 0; layer < geometry.layers; ++layer) {
    const engine::KvBlockName block = slot.Block(geometry, layer);
    if (!block.exists()) continue;
    uint64_t stamped = 0;
    std::memcpy(&stamped, At(block), sizeof stamped);
    if (stamped != epoch) return false;
  }
  return true;
}

bool Arena::Matches(const engine::KvGeometry& geometry, engine::KvSlot slot,
                    std::string_view identity, uint32_t tokens, uint64_t epoch) const {
  const size_t block_bytes = geometry.BlockBytes(slot.format);
  if (slot.offset() + geometry.ChunkBytes(slot.format) > bytes_) return false;
  for (int layer = 0; layer < geometry.layers; ++layer) {
    const engine::KvBlockName name = slot.Block(geometry, layer);
    if (!name.exists()) continue;
    const std::byte* block = At(name);
    engine::KvBlockHeader header;
    std::memcpy(&header, block, sizeof header);
    if (header.layer != static_cast<uint32_t>(layer) || header.format != name.format ||
        header.filled != tokens || header.epoch == 0 || header.epoch >= epoch ||
        identity.size() != sizeof header.identity ||
        std::memcmp(header.identity, identity.data(), sizeof header.identity) != 0 ||
        header.checksum != Crc32c(0, {block + sizeof header, block_bytes - sizeof header})) {
      return false;
    }
  }
  return true;
}

UniqueFd TakeArenaFromSystemd() {
  UniqueFd arena;
  char** names = nullptr;
  const int count = sd_listen_fds_with_names(/*unset_environment=*/1, &names);
  for (int i = 0; i < count; ++i) {
    const bool is_arena = names != nullptr && std::strcmp(names[i], kFdName) == 0;
    const int fd = SD_LISTEN_FDS_START + i;
    if (is_arena) arena.Reset(fd);
    if (names != nullptr) std::free(names[i]);
  }
  std::free(names);
  return arena;
}

void KeepArenaInSystemd(int fd) {
  // Without systemd (no NOTIFY_SOCKET) these calls do nothing.
  (void)sd_pid_notify(0, 0, "FDSTOREREMOVE=1\nFDNAME=arena");
  (void)sd_pid_notify_with_fds(0, 0, "FDSTORE=1\nFDNAME=arena", &fd, 1);
}

std::optional<uint64_t> ProcessStartTicks(pid_t pid) {
  const std::string stat =
      ReadFile(absl::StrCat("/proc/", pid, "/stat"), kMostStatBytes).value_or("");
  // Field 22. Field 2 is a name in parentheses with arbitrary content.
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields =
      absl::StrSplit(stat.substr(name_end + 1), ' ', absl::SkipEmpty());
  uint64_t ticks = 0;
  if (fields.size() < 20 || fields[0] == "Z" || !absl::SimpleAtoi(fields[19], &ticks)) {
    return std::nullopt;
  }
  return ticks;
}

}  // namespace withy::context_store
