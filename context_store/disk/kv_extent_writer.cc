#include "context_store/disk/kv_extent_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "context_store/disk/kv_writer.h"

namespace withy::context_store {

uint32_t MaxChunksPerExtent(uint32_t layers, uint32_t block_bytes) {
  uint64_t chunks = kKvSegmentBytes / (uint64_t{layers} * block_bytes);
  while (chunks > 1 &&
         KvExtentLayout{layers, static_cast<uint32_t>(chunks), block_bytes}.DiskBytes() >
             kKvSegmentBytes) {
    --chunks;
  }
  return static_cast<uint32_t>(std::clamp<uint64_t>(chunks, 1, kMaxKvExtentChunks));
}

absl::Status CheckExtentWrite(const KvExtentWrite& write) {
  const size_t chunks = write.identities.size();
  const bool sizes = write.layers >= 1 && write.layers <= kMaxKvLayers && write.block_bytes >= 16 &&
                     write.block_bytes % 16 == 0 && write.block_bytes <= kMaxKvBlockBytes &&
                     write.layer_stride >= write.block_bytes &&
                     (write.blocks.empty() || write.blocks.size() == write.layers);
  if (sizes && chunks >= 1 && chunks <= MaxChunksPerExtent(write.layers, write.block_bytes) &&
      write.chunks.size() == chunks) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "KV extent of ", write.layers, " layers, ", chunks, " identities, ", write.chunks.size(),
      " chunks, blocks of ", write.block_bytes, " bytes every ", write.layer_stride, ": 1..",
      kMaxKvLayers, " layers and blocks of a multiple of ", "16 and at most ", kMaxKvBlockBytes,
      " bytes are possible",
      sizes ? absl::StrCat(", and 1..", MaxChunksPerExtent(write.layers, write.block_bytes),
                           " chunks")
            : ""));
}

KvExtentWriter::KvExtentWriter(std::unique_ptr<DiskQueue> queue, HugeMemory memory,
                               const Limits& limits)
    : limits_(limits), memory_(std::move(memory)), queue_(std::move(queue)) {
  queue_->Prepare(memory_.bytes());
}

absl::Status KvExtentWriter::Write(const KvExtentWrite& write, const KvExtent& extent, int fd) {
  const KvExtentLayout layout = extent.layout();
  // Space is reserved first, so that a full disk is found at once and the file is in one place.
  while (fallocate(fd, 0, static_cast<off_t>(extent.offset),
                   static_cast<off_t>(layout.DiskBytes())) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) break;  // not every file system can
    return DiskError(errno, absl::StrCat("reserve ", layout.DiskBytes(), " bytes"));
  }
  const absl::Time begin = absl::Now();
  KvPieceSealer sealer(write.owner, extent, KvPieceSealer::Direction::kSeal);
  KvWriter writer(*queue_, memory_.bytes(), fd, extent.offset);
  for (uint32_t number = 0; number < layout.Pieces(); ++number) {
    if (limits_.stop != nullptr && limits_.stop->HasBeenNotified()) {
      return absl::CancelledError("the store stops");
    }
    const KvPiece piece = layout.Piece(number);
    const uint32_t block = write.blocks.empty() ? piece.layer : write.blocks[piece.layer];
    const std::span<std::byte> room = writer.Room(piece.bytes + kKvCheckBytes);
    ForEachBlockPart(piece, layout.block_bytes,
                     [&](size_t chunk, uint32_t in_block, uint32_t in_piece, uint32_t bytes) {
                       std::memcpy(room.data() + in_piece,
                                   write.chunks[chunk] + block * write.layer_stride + in_block,
                                   bytes);
                     });
    sealer.Seal(piece, room);
  }
  const absl::Status status = writer.Finish();
  written_bytes_ += writer.written_bytes();
  if (limits_.bytes_per_second == 0) return status;
  const absl::Time due = begin + absl::Seconds(static_cast<double>(layout.DiskBytes()) /
                                               static_cast<double>(limits_.bytes_per_second));
  if (limits_.stop == nullptr) {
    absl::SleepFor(due - absl::Now());
  } else if (limits_.stop->WaitForNotificationWithDeadline(due)) {
    return absl::CancelledError("the store stops");
  }
  return status;
}

}  // namespace withy::context_store
