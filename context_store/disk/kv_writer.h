// Writes a stream of bytes to a file with several aligned requests in flight. Neighbour:
// kv_segments.cc, which writes one extent by one KvWriter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/disk_io.h"

namespace withy::context_store {

// Used by one thread, for one stream. Room(n) gives memory for the next n bytes; Finish writes what
// is left, padded with zeros to a multiple of kDiskAlign.
class KvWriter {
 public:
  static constexpr size_t kRequestBytes = 512 << 10;
  static constexpr size_t kMaxRoom = 128 << 10;
  static constexpr uint32_t kDepth = 4;
  static constexpr size_t kBufferBytes = kRequestBytes + kMaxRoom;
  static constexpr size_t kMemoryBytes = kDepth * kBufferBytes;

  // `memory` has kMemoryBytes, aligned to kDiskAlign. `queue` has no request in flight and a depth
  // of at least kDepth; both are borrowed. `offset` is a multiple of kDiskAlign.
  KvWriter(DiskQueue& queue, std::span<std::byte> memory, int fd, uint64_t offset);
  // Waits for requests in flight.
  ~KvWriter();
  KvWriter(const KvWriter&) = delete;
  KvWriter& operator=(const KvWriter&) = delete;

  // The next `bytes` (<= kMaxRoom) bytes of the stream, to be filled before the next call. After a
  // write failed, what is filled in is dropped.
  std::span<std::byte> Room(size_t bytes);
  // Errors: RESOURCE_EXHAUSTED (disk full), others of write(2).
  absl::Status Finish();

  uint64_t written_bytes() const { return written_bytes_; }

 private:
  struct Buffer {
    std::span<std::byte> memory;
    uint64_t offset = 0;  // of the request in the file
    size_t wanted = 0;
    size_t done = 0;
  };
  void Flush(size_t bytes);
  void Submit(size_t buffer);
  void WaitForOne();

  DiskQueue& queue_;
  const int fd_;
  uint64_t offset_;  // in the file, of the current buffer's first byte
  std::vector<Buffer> buffers_;
  std::vector<size_t> free_;
  size_t current_;
  size_t filled_ = 0;  // bytes of the current buffer
  uint64_t written_bytes_ = 0;
  absl::Status status_;
};

}  // namespace withy::context_store
