#include "context_store/disk/kv_writer.h"

#include <cerrno>
#include <cstring>

#include "base/round_up.h"
#include "base/status.h"
#include "context_store/invariant.h"

namespace withy::context_store {

KvWriter::KvWriter(DiskQueue& queue, std::span<std::byte> memory, int fd, uint64_t offset)
    : queue_(queue), fd_(fd), offset_(offset) {
  static_assert(kBufferBytes % kDiskAlign == 0);
  Invariant(memory.size() >= kMemoryBytes, "the writer's memory is too small");
  for (size_t i = 0; i < kDepth; ++i) {
    buffers_.push_back({.memory = memory.subspan(i * kBufferBytes, kBufferBytes)});
    free_.push_back(i);
  }
  current_ = free_.back();
  free_.pop_back();
}

KvWriter::~KvWriter() {
  while (free_.size() + 1 < buffers_.size()) WaitForOne();
}

std::span<std::byte> KvWriter::Room(size_t bytes) {
  Invariant(bytes <= kMaxRoom, "more room than a writer gives");
  if (filled_ >= kRequestBytes) Flush(filled_ / kDiskAlign * kDiskAlign);
  const std::span<std::byte> room = buffers_[current_].memory.subspan(filled_, bytes);
  filled_ += bytes;
  return room;
}

absl::Status KvWriter::Finish() {
  const size_t padded = RoundUp(filled_, kDiskAlign);
  std::memset(buffers_[current_].memory.data() + filled_, 0, padded - filled_);
  filled_ = padded;
  if (filled_ > 0) Flush(filled_);
  while (free_.size() + 1 < buffers_.size()) WaitForOne();
  return status_;
}

// Writes the first `bytes` of the current buffer and moves the rest to another.
void KvWriter::Flush(size_t bytes) {
  while (free_.empty()) WaitForOne();
  const size_t next = free_.back();
  free_.pop_back();
  std::memcpy(buffers_[next].memory.data(), buffers_[current_].memory.data() + bytes,
              filled_ - bytes);
  Buffer& buffer = buffers_[current_];
  buffer.offset = offset_;
  buffer.wanted = bytes;
  buffer.done = 0;
  if (status_.ok()) {
    Submit(current_);
  } else {
    free_.push_back(current_);
  }
  offset_ += bytes;
  filled_ -= bytes;
  current_ = next;
}

void KvWriter::Submit(size_t index) {
  const Buffer& buffer = buffers_[index];
  queue_.Submit({.kind = DiskRequest::Kind::kWrite,
                 .fd = fd_,
                 .offset = buffer.offset + buffer.done,
                 .memory = buffer.memory.subspan(buffer.done, buffer.wanted - buffer.done),
                 .tag = index});
}

void KvWriter::WaitForOne() {
  const std::optional<DiskCompletion> completion = queue_.Wait();
  if (!completion.has_value()) return;
  Buffer& buffer = buffers_[completion->tag];
  const int64_t result = completion->result;
  const size_t before = buffer.done;
  if (result > 0) {
    written_bytes_ += static_cast<uint64_t>(result);
    // A short write may end anywhere; the next one has to start at a multiple of kDiskAlign.
    buffer.done += static_cast<size_t>(result);
    if (buffer.done < buffer.wanted) buffer.done = buffer.done / kDiskAlign * kDiskAlign;
  }
  // A write that a full disk cut short tells the reason when it is continued.
  const bool more = buffer.done > before && buffer.done < buffer.wanted;
  if (more || result == -EINTR || result == -EAGAIN) {
    Submit(completion->tag);
    return;
  }
  if (buffer.done < buffer.wanted && status_.ok()) {
    status_ = DiskError(result < 0 ? static_cast<int>(-result) : ENOSPC,
                        absl::StrCat("write ", buffer.wanted, " bytes at ", buffer.offset));
  }
  free_.push_back(completion->tag);
}

}  // namespace withy::context_store
