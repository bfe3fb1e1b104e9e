#include "base/disk_io.h"

#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/bounded_queue.h"
#include "base/huge_memory.h"
#include "base/ids.h"
#include "base/status.h"

namespace withy {
namespace {

// Ends the process with message `what` unless `holds`.
void RequireOfQueue(bool holds, const char* what) {
  if (holds) [[likely]]
    return;
  std::fprintf(stderr, "disk queue: broken invariant: %s\n", what);
  std::abort();
}

constexpr uint64_t kWakeTag = UINT64_MAX;
// Enough to keep a flash disk busy: it gains little from more than four requests of 512 KiB.
constexpr uint32_t kMostThreads = 4;

class UringQueue final : public DiskQueue {
 public:
  // `ring` is initialised; the queue owns it.
  UringQueue(const io_uring& ring, UniqueFd wake) : ring_(ring), wake_(std::move(wake)) {
    ArmWake();
  }
  ~UringQueue() override { io_uring_queue_exit(&ring_); }

  Kind kind() const override { return Kind::kUring; }

  void Prepare(std::span<std::byte> memory) override {
    const iovec whole{memory.data(), memory.size()};
    if (io_uring_register_buffers(&ring_, &whole, 1) == 0) prepared_ = memory;
  }

  void Submit(const DiskRequest& request) override {
    io_uring_sqe* const entry = NextEntry();
    std::byte* const data = request.memory.data();
    const auto bytes = static_cast<unsigned>(request.memory.size());
    const bool prepared = !prepared_.empty() && data >= prepared_.data() &&
                          data + bytes <= prepared_.data() + prepared_.size();
    const bool read = request.kind == DiskRequest::Kind::kRead;
    if (prepared && read) {
      io_uring_prep_read_fixed(entry, request.fd, data, bytes, request.offset, 0);
    } else if (prepared) {
      io_uring_prep_write_fixed(entry, request.fd, data, bytes, request.offset, 0);
    } else if (read) {
      io_uring_prep_read(entry, request.fd, data, bytes, request.offset);
    } else {
      io_uring_prep_write(entry, request.fd, data, bytes, request.offset);
    }
    io_uring_sqe_set_data64(entry, request.tag);
    Enter();
  }

  std::optional<DiskCompletion> Wait() override {
    io_uring_cqe* event = nullptr;
    int error = 0;
    while ((error = io_uring_wait_cqe(&ring_, &event)) == -EINTR || error == -EAGAIN) {
    }
    RequireOfQueue(error == 0, "io_uring_wait_cqe failed");
    const DiskCompletion completion{io_uring_cqe_get_data64(event), event->res};
    io_uring_cqe_seen(&ring_, event);
    if (completion.tag != kWakeTag) return completion;
    uint64_t wakes = 0;
    while (read(wake_.get(), &wakes, sizeof wakes) < 0 && errno == EINTR) {
    }
    ArmWake();
    return std::nullopt;
  }

  void Wake() override {
    const uint64_t one = 1;
    while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

 private:
  io_uring_sqe* NextEntry() {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    RequireOfQueue(entry != nullptr, "more requests in flight than the queue's depth");
    return entry;
  }

  void ArmWake() {
    io_uring_sqe* const entry = NextEntry();
    io_uring_prep_poll_add(entry, wake_.get(), POLLIN);
    io_uring_sqe_set_data64(entry, kWakeTag);
    Enter();
  }

  void Enter() {
    int submitted = 0;
    while ((submitted = io_uring_submit(&ring_)) == -EINTR || submitted == -EAGAIN) {
      std::this_thread::yield();  // EAGAIN: the kernel is short of memory for a moment
    }
    RequireOfQueue(submitted == 1, "io_uring_submit failed");
  }

  io_uring ring_;
  UniqueFd wake_;
  std::span<std::byte> prepared_;
};

// Each request is a pread or pwrite on one of a few threads.
class ThreadQueue final : public DiskQueue {
 public:
  explicit ThreadQueue(uint32_t depth) : requests_(depth) {
    for (uint32_t i = 0; i < std::min(depth, kMostThreads); ++i) {
      threads_.emplace_back([this] { Work(); });
    }
  }
  ~ThreadQueue() override {
    requests_.Close();
    for (std::thread& thread : threads_) thread.join();
  }

  Kind kind() const override { return Kind::kThreads; }
  void Prepare(std::span<std::byte> /*memory*/) override {}

  void Submit(const DiskRequest& request) override {
    RequireOfQueue(requests_.TryPush(DiskRequest(request)),
                   "more requests in flight than the queue's depth");
  }

  std::optional<DiskCompletion> Wait() override {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &ThreadQueue::HasNews));
    if (done_.empty()) {
      woken_ = false;
      return std::nullopt;
    }
    const DiskCompletion completion = done_.front();
    done_.pop_front();
    return completion;
  }

  void Wake() override {
    absl::MutexLock lock(&mutex_);
    woken_ = true;
  }

 private:
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return woken_ || !done_.empty(); }

  void Work() {
    while (const std::optional<DiskRequest> request = requests_.Pop()) {
      const auto offset = static_cast<off_t>(request->offset);
      ssize_t moved = 0;
      do {
        moved = request->kind == DiskRequest::Kind::kRead
                    ? pread(request->fd, request->memory.data(), request->memory.size(), offset)
                    : pwrite(request->fd, request->memory.data(), request->memory.size(), offset);
      } while (moved < 0 && errno == EINTR);
      const int64_t result = moved < 0 ? -errno : moved;
      absl::MutexLock lock(&mutex_);
      done_.push_back({request->tag, result});
    }
  }

  BoundedQueue<DiskRequest> requests_;
  absl::Mutex mutex_;
  std::deque<DiskCompletion> done_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// Whether `error` of an open, a read or a write with O_DIRECT says that the file system has none.
bool RefusesDirectIo(int error) { return error == EINVAL || error == EOPNOTSUPP; }

}  // namespace

absl::StatusOr<std::unique_ptr<DiskQueue>> DiskQueue::Create(Kind kind, uint32_t depth) {
  if (kind == Kind::kThreads) return std::make_unique<ThreadQueue>(depth);
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoError("create an eventfd");
  io_uring ring;
  // One entry more, for the wake.
  if (const int error = io_uring_queue_init(depth + 1, &ring, 0); error < 0) {
    return absl::ErrnoToStatus(-error, "set up io_uring");
  }
  return std::make_unique<UringQueue>(ring, std::move(wake));
}

std::unique_ptr<DiskQueue> DiskQueue::CreateBest(uint32_t depth) {
  auto queue = Create(Kind::kUring, depth);
  if (queue.ok()) return *std::move(queue);
  return std::make_unique<ThreadQueue>(depth);
}

absl::StatusOr<UniqueFd> OpenDiskFile(const std::string& path, DiskFileMode mode) {
  // Without O_NONBLOCK a pipe that lies at `path` would be waited for.
  const int flags = O_CLOEXEC | (mode.write ? O_WRONLY | O_CREAT | O_EXCL : O_RDONLY | O_NONBLOCK) |
                    (mode.direct ? O_DIRECT : 0);
  UniqueFd fd(open(path.c_str(), flags, 0600));
  if (!fd.valid()) return DiskError(errno, absl::StrCat("open ", path));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return DiskError(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is no regular file: remove it"));
  }
  // io_uring fails requests on a file that would not block.
  if (!mode.write && fcntl(fd.get(), F_SETFL, flags & O_DIRECT) != 0) {
    return DiskError(errno, absl::StrCat("set flags of ", path));
  }
  return fd;
}

absl::StatusOr<bool> SupportsDirectIo(const std::string& directory) {
  std::string path = directory + "/probe";
  // Something that cannot be removed has the name: another one serves.
  if (unlink(path.c_str()) != 0 && errno != ENOENT) absl::StrAppend(&path, ".", RandomId64());
  WITHY_ASSIGN_OR_RETURN(HugeMemory page, HugeMemory::Allocate(kDiskAlign));
  const UniqueFd fd(open(path.c_str(), O_CLOEXEC | O_RDWR | O_CREAT | O_EXCL | O_DIRECT, 0600));
  int error = fd.valid() ? 0 : errno;
  if (fd.valid()) {
    const auto whole = static_cast<ssize_t>(kDiskAlign);
    if (pwrite(fd.get(), page.bytes().data(), kDiskAlign, 0) != whole ||
        pread(fd.get(), page.bytes().data(), kDiskAlign, 0) != whole) {
      error = errno;
    }
  }
  unlink(path.c_str());  // open(2) may create the file and then refuse O_DIRECT
  if (error == 0) return true;
  if (RefusesDirectIo(error)) return false;
  return DiskError(error, absl::StrCat("write and read ", path));
}

absl::Status DiskError(int error, const std::string& what) {
  const absl::Status status = absl::ErrnoToStatus(error, what);
  if (error != ENOSPC && error != EDQUOT && error != EFBIG) return status;
  return absl::ResourceExhaustedError(absl::StrCat("disk full: ", status.message()));
}

}  // namespace withy
