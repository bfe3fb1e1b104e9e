#include "telemetry/reader.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>

#include "base/status.h"
#include "telemetry/orphan.h"

namespace withy::telemetry {
namespace {

// Removes `path` if it still is the file `id`: a successor of its writer may have taken the name.
void RemoveFile(std::pair<dev_t, ino_t> id, const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0 && std::pair(info.st_dev, info.st_ino) == id) {
    unlink(path.c_str());
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Reader>> Reader::Open(std::string_view directory) {
  auto reader = std::unique_ptr<Reader>(new Reader(std::string(directory)));
  const std::filesystem::path path{reader->directory_};
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoError("create directory " + path.string() + " for span rings");
  }
  const std::string lock = (path / ".reader.lock").string();
  reader->lock_ = UniqueFd(open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!reader->lock_.valid()) return ErrnoError("open " + lock);
  if (flock(reader->lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path.string(),
                     ": another profiler agent reads these rings; stop it or use another run_dir"));
  }
  return reader;
}

void Reader::Discover(std::vector<absl::Status>* problems) {
  std::error_code error;
  std::set<FileId> present;
  for (auto it = std::filesystem::directory_iterator(directory_, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string path = it->path().string();
    struct stat info {};
    if (!path.ends_with(kRingSuffix) || lstat(path.c_str(), &info) != 0) continue;
    const FileId id{info.st_dev, info.st_ino};
    present.insert(id);
    if (files_.contains(id)) continue;
    // The inode number of a refused file may be reused after its removal.
    const auto refused = refused_.find(id);
    if (refused != refused_.end() && refused->second == path) continue;
    if (files_.size() >= kFileLimit) {
      problems->push_back(absl::ResourceExhaustedError(
          absl::StrCat(path, ": ", files_.size(), " ring files are attached, which is the limit")));
      refused_[id] = path;
      continue;
    }
    absl::StatusOr<std::unique_ptr<RingFile>> file = RingFile::Open(path);
    if (file.ok()) {
      files_.emplace(id, *std::move(file));
    } else {
      problems->push_back(file.status());
      refused_[id] = path;
      RemoveIfOrphan(path);
    }
  }
  if (error) problems->push_back(absl::UnavailableError(directory_ + ": " + error.message()));
  std::erase_if(refused_, [&](const auto& entry) { return !present.contains(entry.first); });
}

std::vector<absl::Status> Reader::Drain(const SpanCallback& take) {
  std::vector<absl::Status> problems;
  Discover(&problems);
  bool room_made = false, clock_told = false;
  const ClockPair now = ReadClockPair();
  for (auto it = files_.begin(); it != files_.end();) {
    RingFile& file = *it->second;
    // Checked first: then everything a dead writer wrote is visible when we drain.
    const bool gone = file.WriterGone();
    const absl::Status drained = file.Drain(now, take);
    if (!file.clock_status().ok() && !std::exchange(clock_told, true)) {
      problems.push_back(file.clock_status());
    }
    if (!drained.ok()) {
      problems.push_back(drained);
      refused_[it->first] = file.path();
    }
    if (gone) RemoveFile(it->first, file.path());
    if (gone) room_made = true;
    it = gone || !drained.ok() ? files_.erase(it) : std::next(it);
  }
  // Files refused for lack of room get another chance.
  if (room_made) refused_.clear();
  return problems;
}

std::vector<SourceInfo> Reader::Sources() const {
  std::vector<SourceInfo> sources;
  for (const auto& [id, file] : files_) {
    SourceInfo source;
    // The next Drain reports and detaches a file that shrank.
    if (!file->ReadMetrics(&source.metrics).ok()) continue;
    source.process = file->process();
    source.pid = file->pid();
    source.start_unix_ns = file->start_unix_ns();
    source.rings = file->rings_in_use();
    source.spans = file->spans();
    source.dropped = file->dropped();
    source.malformed = file->malformed();
    source.overflows = file->overflows();
    source.clock = std::string(file->clock());
    source.clock_faults = file->clock_faults();
    source.untimed = file->untimed();
    sources.push_back(std::move(source));
  }
  return sources;
}

}  // namespace withy::telemetry
