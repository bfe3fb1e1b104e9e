// Reads and writes of files with several requests in flight: by io_uring, or by a few threads where
// the kernel refuses io_uring (seccomp filters of containers, kernels before 5.6). Neighbours:
// context_store keeps KV with it, engine/weights streams weights. Knows nothing about what the
// files hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace withy {

// Offsets, lengths and addresses of requests on a file opened with O_DIRECT are multiples of this:
// the largest logical block of common disks, and the page size of the file systems.
inline constexpr size_t kDiskAlign = 4096;

struct DiskRequest {
  enum class Kind : uint8_t { kRead, kWrite };
  Kind kind = Kind::kRead;
  int fd = -1;
  uint64_t offset = 0;               // bytes from the start of the file
  std::span<std::byte> memory = {};  // borrowed until the request completes
  uint64_t tag = 0;                  // returned with the completion; not UINT64_MAX
};

struct DiskCompletion {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes read or written, which may be fewer than asked for; or -errno
};

// One thread at a time uses a queue; only Wake may be called by others. Destroyed with no request
// in flight.
class DiskQueue {
 public:
  enum class Kind : uint8_t { kUring, kThreads };

  // At most `depth` requests are in flight at a time. Errors of kUring: those of
  // io_uring_setup(2), such as UNIMPLEMENTED and PERMISSION_DENIED. kThreads does not fail.
  static absl::StatusOr<std::unique_ptr<DiskQueue>> Create(Kind kind, uint32_t depth);
  // io_uring if the kernel permits it, else threads.
  static std::unique_ptr<DiskQueue> CreateBest(uint32_t depth);

  virtual ~DiskQueue() = default;
  DiskQueue() = default;
  DiskQueue(const DiskQueue&) = delete;
  DiskQueue& operator=(const DiskQueue&) = delete;

  virtual Kind kind() const = 0;
  // Requests will mostly use `memory`, which lives as long as the queue. Lets the kernel prepare it
  // once instead of with each request; has no effect where the limit on locked memory is too low.
  // Once, before the first Submit.
  virtual void Prepare(std::span<std::byte> memory) = 0;
  // Starts a request. Its completion is returned by Wait, also if it fails at once.
  virtual void Submit(const DiskRequest& request) = 0;
  // Waits for a completion; nullopt after a Wake. Several Wakes may be reported as one.
  virtual std::optional<DiskCompletion> Wait() = 0;
  // Makes the present or the next Wait return nullopt. Thread-safe.
  virtual void Wake() = 0;
};

// Opens a file of `directory` past the page cache if `direct`.
struct DiskFileMode {
  bool write = false;  // creates the file; it must not exist
  bool direct = true;
};
// Errors: those of open(2), FAILED_PRECONDITION (no regular file); all name the path.
absl::StatusOr<UniqueFd> OpenDiskFile(const std::string& path, DiskFileMode mode);

// Whether files in `directory` can be written and read with O_DIRECT, found out with a probe file
// that is removed again. Errors, all naming the path: RESOURCE_EXHAUSTED (no space for the probe)
// and others of open(2), write(2) and read(2) that do not mean a refusal of O_DIRECT.
absl::StatusOr<bool> SupportsDirectIo(const std::string& directory);

// An error of a file: RESOURCE_EXHAUSTED for a full disk, a used-up quota or a file size limit,
// else by errno.
absl::Status DiskError(int error, const std::string& what);

}  // namespace withy
