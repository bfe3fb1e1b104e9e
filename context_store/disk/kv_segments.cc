#include "context_store/disk/kv_segments.h"

#include <dirent.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"
#include "context_store/disk/kv_writer.h"

namespace withy::context_store {
namespace {

constexpr std::string_view kSuffix = ".kv";
constexpr size_t kNameDigits = 16;

// The number in a segment's file name; 0 for any other file.
uint64_t SegmentNumber(std::string_view name) {
  if (name.size() != kNameDigits + kSuffix.size() || !name.ends_with(kSuffix)) return 0;
  uint64_t number = 0;
  for (const char c : name.substr(0, kNameDigits)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) return 0;
    number = number * 16 + static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return number <= kMaxKvSegment ? number : 0;
}

uint64_t ChunkBytes(const KvExtent& extent) { return uint64_t{extent.layers} * extent.block_bytes; }

}  // namespace

absl::StatusOr<std::unique_ptr<KvSegments>> KvSegments::Open(KvSegmentsOptions options) {
  std::unique_ptr<KvSegments> segments(new KvSegments(std::move(options)));
  WITHY_RETURN_IF_ERROR(segments->Prepare());
  segments->ListFiles();
  return segments;
}

KvSegments::~KvSegments() = default;

absl::Status KvSegments::Prepare() {
  const std::string& path = options_.directory;
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return DiskError(errno, absl::StrCat("make the directory ", path));
  }
  directory_fd_ = UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory_fd_.valid()) return ErrnoError("open the directory " + path);
  if (options_.direct) {
    WITHY_ASSIGN_OR_RETURN(options_.direct, SupportsDirectIo(path));
    if (!options_.direct) {
      spdlog::warn("{}: the file system refuses O_DIRECT: KV goes through the page cache", path);
    }
  }
  const absl::MutexLock lock(&write_mutex_);
  auto kind = options_.uring ? DiskQueue::Kind::kUring : DiskQueue::Kind::kThreads;
  auto queue = DiskQueue::Create(kind, KvWriter::kDepth);
  if (!queue.ok()) {
    spdlog::warn("{}: {}: KV is read and written by threads", path, queue.status().ToString());
    kind = DiskQueue::Kind::kThreads;
    queue = DiskQueue::Create(kind, KvWriter::kDepth);
  }
  options_.uring = kind == DiskQueue::Kind::kUring;
  WITHY_RETURN_IF_ERROR(queue.status());
  WITHY_ASSIGN_OR_RETURN(HugeMemory memory, HugeMemory::Allocate(KvWriter::kMemoryBytes));
  writer_ = std::make_unique<KvExtentWriter>(
      *std::move(queue), std::move(memory),
      KvExtentWriter::Limits{.bytes_per_second = options_.bytes_per_second, .stop = options_.stop});
  WITHY_ASSIGN_OR_RETURN(reader_,
                         KvReader::Create({.directory = path,
                                           .direct = options_.direct,
                                           .queue = kind,
                                           .bytes_per_second = options_.bytes_per_second}));
  return absl::OkStatus();
}

// What is not listed is missing to the index, and so computed again.
void KvSegments::ListFiles() {
  const absl::MutexLock lock(&mutex_);
  std::error_code error;
  for (std::filesystem::directory_iterator it(options_.directory, error), end; !error && it != end;
       it.increment(error)) {
    AddFile(it->path().filename().string());
  }
  if (!error) return;
  ++left_out_;
  spdlog::warn(
      "the KV directory {} cannot be listed to its end ({}): KV that is not found is computed "
      "again; check the disk",
      options_.directory, error.message());
}

void KvSegments::AddFile(const std::string& name) {
  const uint64_t number = SegmentNumber(name);
  if (number == 0) return;
  last_segment_ = std::max(last_segment_, number);
  struct stat info {};
  const int directory = directory_fd_.get();
  const bool seen = fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
  if (seen && S_ISREG(info.st_mode)) {
    Segment& segment = segments_[number];
    segment.bytes = segment.synced_bytes = static_cast<uint64_t>(info.st_size);
    return;
  }
  if (!seen && errno == ENOENT) return;  // deleted meanwhile
  const std::string why = seen ? "it is no regular file" : std::strerror(errno);
  ++left_out_;
  const bool removed =
      unlinkat(directory, name.c_str(), seen && S_ISDIR(info.st_mode) ? AT_REMOVEDIR : 0) == 0;
  if (!removed) taken_.insert(number);
  spdlog::warn("KV segment {}/{} is left out ({}), its KV is computed again; {}",
               options_.directory, name, why,
               removed ? "it was removed"
                       : absl::StrCat("it cannot be removed (", std::strerror(errno),
                                      "): check the disk, and remove it yourself"));
}

// Above all that were ever used, so that numbers follow the time; the lowest free one once a file
// has the highest.
uint64_t KvSegments::NextNumber() {
  if (last_segment_ < kMaxKvSegment) return ++last_segment_;
  uint64_t number = 1;
  while (segments_.contains(number) || taken_.contains(number)) ++number;
  return number;
}

absl::Status KvSegments::Adopt(const KvExtent& extent, uint32_t live_chunks) {
  const absl::MutexLock lock(&mutex_);
  last_segment_ = std::max(last_segment_, extent.segment);
  const auto it = segments_.find(extent.segment);
  const std::string path = KvSegmentPath(options_.directory, extent.segment);
  if (it == segments_.end()) {
    return absl::NotFoundError(absl::StrCat("KV segment ", path, " is missing"));
  }
  const uint64_t end = extent.offset + extent.layout().DiskBytes();
  if (end > it->second.bytes) {
    return absl::DataLossError(absl::StrCat("KV segment ", path, " was cut: it has ",
                                            it->second.bytes, " bytes, an extent ends at ", end));
  }
  it->second.named = true;
  it->second.live_bytes += live_chunks * ChunkBytes(extent);
  return absl::OkStatus();
}

uint32_t KvSegments::DeleteUnnamed() {
  std::vector<uint64_t> unnamed;
  {
    const absl::MutexLock lock(&mutex_);
    for (const auto& [number, segment] : segments_) {
      if (!segment.named) unnamed.push_back(number);
    }
    for (const uint64_t number : unnamed) segments_.erase(number);
  }
  for (const uint64_t number : unnamed) Delete(number);
  return static_cast<uint32_t>(unnamed.size());
}

absl::StatusOr<KvExtent> KvSegments::Append(const KvExtentWrite& write) {
  WITHY_RETURN_IF_ERROR(CheckExtentWrite(write));
  KvExtent extent;
  extent.id = RandomId64();
  extent.format = write.format;
  extent.protection =
      write.owner.key != nullptr ? KvProtection::kAes256Gcm : KvProtection::kChecksum;
  extent.layers = write.layers;
  extent.block_bytes = write.block_bytes;
  extent.identities = write.identities;
  std::memcpy(extent.salt.data(), RandomBytes(extent.salt.size()).data(), extent.salt.size());
  const uint64_t bytes = extent.layout().DiskBytes();

  const absl::MutexLock writing(&write_mutex_);
  WITHY_ASSIGN_OR_RETURN(const Place place, FindPlace(bytes));
  extent.segment = place.segment;
  extent.offset = place.offset;
  const absl::Status status = writer_->Write(write, extent, place.fd->get());
  written_bytes_ = writer_->written_bytes();
  if (!status.ok()) {
    Withdraw(place, status);
    return Annotate(status, KvSegmentPath(options_.directory, place.segment));
  }
  const absl::MutexLock lock(&mutex_);
  const auto it = segments_.find(place.segment);
  if (it == segments_.end()) {
    return absl::AbortedError(absl::StrCat("KV segment ",
                                           KvSegmentPath(options_.directory, place.segment),
                                           " was evicted while it was written"));
  }
  it->second.bytes = place.offset + bytes;
  it->second.live_bytes += extent.layout().DataBytes();
  kv_bytes_ += extent.layout().DataBytes();
  return extent;
}

// Finds the end of the open segment, or opens a new one, for an extent of `bytes`.
absl::StatusOr<KvSegments::Place> KvSegments::FindPlace(uint64_t bytes) {
  uint64_t dead = 0;
  {
    const absl::MutexLock lock(&mutex_);
    if (const uint64_t used = DiskBytes(); used + bytes > options_.max_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("KV on disk is at its bound: ", used, " bytes in ", options_.directory, ", ",
                       bytes, " more are needed, ", options_.max_bytes, " are allowed"));
    }
    if (open_segment_ != 0) {
      const Segment& segment = segments_.at(open_segment_);
      if (segment.bytes + bytes <= options_.segment_bytes) {
        return Place{open_segment_, segment.bytes, segment.fd};
      }
      dead = CloseOpenSegment();
    }
  }
  if (dead != 0) Delete(dead);
  return NewSegment();
}

absl::StatusOr<KvSegments::Place> KvSegments::NewSegment() {
  constexpr int kMostTries = 64;  // entries that the listing did not show may have the names
  uint64_t number = 0;
  absl::StatusOr<UniqueFd> opened = absl::AlreadyExistsError("");
  for (int i = 0; i < kMostTries && absl::IsAlreadyExists(opened.status()); ++i) {
    {
      const absl::MutexLock lock(&mutex_);
      if (i > 0) taken_.insert(number);
      number = NextNumber();
    }
    opened = OpenDiskFile(KvSegmentPath(options_.directory, number),
                          {.write = true, .direct = options_.direct});
  }
  WITHY_ASSIGN_OR_RETURN(UniqueFd fd, std::move(opened));
  const absl::MutexLock lock(&mutex_);
  Segment& segment = segments_[number];
  segment.named = segment.open = true;
  segment.fd = std::make_shared<const UniqueFd>(std::move(fd));
  open_segment_ = number;
  ++created_;
  return Place{number, 0, segment.fd};
}

// Takes back what a failed write left. After an error that is not a full disk the segment gets no
// further extents.
void KvSegments::Withdraw(const Place& place, const absl::Status& error) {
  const bool cut = ftruncate(place.fd->get(), static_cast<off_t>(place.offset)) == 0;
  uint64_t dead = 0;
  {
    const absl::MutexLock lock(&mutex_);
    const bool empty = place.offset == 0;
    const bool broken = !cut || !absl::IsResourceExhausted(error);
    if (open_segment_ == place.segment && (empty || broken)) dead = CloseOpenSegment();
  }
  if (dead != 0) Delete(dead);
}

absl::Status KvSegments::Sync(std::span<const KvExtent> extents) {
  std::map<uint64_t, uint64_t> ends;  // by segment
  for (const KvExtent& extent : extents) {
    uint64_t& end = ends[extent.segment];
    end = std::max(end, extent.offset + extent.layout().DiskBytes());
  }
  for (const auto& [segment, end] : ends) WITHY_RETURN_IF_ERROR(SyncSegment(segment, end));
  return SyncDirectory();
}

absl::Status KvSegments::SyncSegment(uint64_t number, uint64_t bytes) {
  const std::string path = KvSegmentPath(options_.directory, number);
  const absl::Status evicted =
      absl::NotFoundError(absl::StrCat("KV segment ", path, " was evicted"));
  const absl::Status failed = absl::UnavailableError(
      absl::StrCat("KV segment ", path, " could not be synced: check the disk"));
  std::shared_ptr<const UniqueFd> fd;
  uint64_t written = 0;
  {
    const absl::MutexLock lock(&mutex_);
    const auto it = segments_.find(number);
    if (it == segments_.end()) return evicted;
    if (it->second.synced_bytes >= bytes) return absl::OkStatus();
    if (it->second.failed) return failed;
    fd = it->second.fd;
    written = it->second.bytes;
  }
  const bool synced = fdatasync(fd->get()) == 0;
  uint64_t dead = 0;
  {
    const absl::MutexLock lock(&mutex_);
    const auto it = segments_.find(number);
    if (it == segments_.end()) return evicted;
    Segment& segment = it->second;
    if (synced) {
      segment.synced_bytes = std::max(segment.synced_bytes, written);
      if (!segment.open && segment.synced_bytes >= segment.bytes) segment.fd.reset();
      return absl::OkStatus();
    }
    segment.failed = true;
    if (segment.open) dead = CloseOpenSegment();
  }
  if (dead != 0) Delete(dead);
  return failed;
}

absl::Status KvSegments::SyncDirectory() {
  uint64_t created = 0;
  {
    const absl::MutexLock lock(&mutex_);
    if (created_ == created_synced_) return absl::OkStatus();
    created = created_;
  }
  if (fsync(directory_fd_.get()) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot sync the directory ", options_.directory, ": ", std::strerror(errno)));
  }
  const absl::MutexLock lock(&mutex_);
  created_synced_ = std::max(created_synced_, created);
  return absl::OkStatus();
}

void KvSegments::Release(const KvExtent& extent, uint32_t chunks) {
  uint64_t dead = 0;
  {
    const absl::MutexLock lock(&mutex_);
    const auto it = segments_.find(extent.segment);
    if (it == segments_.end()) return;
    it->second.live_bytes -= std::min(it->second.live_bytes, chunks * ChunkBytes(extent));
    dead = ForgetIfDead(extent.segment);
  }
  if (dead != 0) Delete(dead);
}

absl::Status KvSegments::Evict(uint64_t segment) {
  {
    const absl::MutexLock lock(&mutex_);
    if (segments_.erase(segment) == 0) {
      return absl::NotFoundError(
          absl::StrCat("no KV segment ", KvSegmentPath(options_.directory, segment), " to evict"));
    }
    if (open_segment_ == segment) open_segment_ = 0;
  }
  Delete(segment);
  return absl::OkStatus();
}

std::vector<KvSegmentInfo> KvSegments::Segments() const {
  const absl::MutexLock lock(&mutex_);
  std::vector<KvSegmentInfo> infos;
  infos.reserve(segments_.size());
  for (const auto& [number, segment] : segments_) {
    infos.push_back({number, segment.bytes, segment.live_bytes, segment.open});
  }
  return infos;
}

KvSegmentsStats KvSegments::Stats() const {
  const absl::MutexLock lock(&mutex_);
  KvSegmentsStats stats;
  stats.segments = segments_.size();
  stats.disk_bytes = DiskBytes();
  for (const auto& [number, segment] : segments_) stats.live_bytes += segment.live_bytes;
  stats.kv_bytes = kv_bytes_;
  stats.written_bytes = written_bytes_;
  stats.read_bytes = reader_->bytes_read();
  stats.left_out = left_out_;
  stats.direct = options_.direct;
  stats.uring = options_.uring;
  return stats;
}

// What remains is deleted by the next start.
void KvSegments::Delete(uint64_t segment) {
  const std::string path = KvSegmentPath(options_.directory, segment);
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return;
  ++left_out_;
  spdlog::warn("KV segment {} cannot be deleted ({}) and takes space until the next start", path,
               std::strerror(errno));
}

uint64_t KvSegments::CloseOpenSegment() {
  const uint64_t number = std::exchange(open_segment_, 0);
  Segment& segment = segments_.at(number);
  segment.open = false;
  if (segment.synced_bytes >= segment.bytes) segment.fd.reset();
  return ForgetIfDead(number);
}

uint64_t KvSegments::ForgetIfDead(uint64_t number) {
  const Segment& segment = segments_.at(number);
  if (segment.open || segment.live_bytes > 0) return 0;
  segments_.erase(number);
  return number;
}

uint64_t KvSegments::DiskBytes() const {
  uint64_t bytes = 0;
  for (const auto& [number, segment] : segments_) bytes += segment.bytes;
  return bytes;
}

}  // namespace withy::context_store
