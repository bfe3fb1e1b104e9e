#include "context_store/idle/idle_keeper.h"

#include <spdlog/spdlog.h>

#include <cstring>
#include <utility>

#include "base/thread_role.h"
#include "context_store/arena/slot_layout.h"

namespace withy::context_store {
namespace {

// Contexts that wait to be tidied. A context that finds no place is tidied after its next call.
constexpr size_t kTidyQueue = 1024;
// What is moved within the arena under one hold of the lock: a few milliseconds at most.
constexpr uint64_t kMostMovedBytes = 16 << 20;
// A disk that has written no context for so long is taken to hang, and is not waited for again
// until the second time is over.
constexpr int64_t kPatienceNanos = 10 * kNanosPerSecond;
constexpr int64_t kHangNanos = 60 * kNanosPerSecond;
constexpr absl::Duration kLook = absl::Milliseconds(100);

}  // namespace

IdleKeeper::IdleKeeper(const IdleParts& parts, const IdleOptions& options)
    : parts_(parts),
      options_(options),
      compressor_(parts.book, parts.costs, parts.metrics, options.compression),
      thread_(1, kTidyQueue, parts.clock) {
  if (parts.disk != nullptr) {
    writer_ = std::make_unique<IdleWriter>(
        parts.book, parts.records, *parts.disk, parts.metrics, parts.clock,
        [this](const std::set<StoredCopy>& lost) { ForgetCopies(lost); });
  }
}

void IdleKeeper::End(absl::Duration last_writes) {
  // Shared with the task, which may end after the waiting.
  const auto written = std::make_shared<absl::Notification>();
  // If the queue is full, all of the time passes.
  (void)thread_.TryRun([written] { written->Notify(); });
  written->WaitForNotificationWithTimeout(last_writes);
  ended_ = true;
  if (const uint32_t left = waiting_; left > 0) {
    spdlog::warn("KV of {} contexts is not on disk yet and will be computed again", left);
  }
}

void IdleKeeper::Tidy(const std::string& context_id) {
  if (ended_) return;
  SetThreadRole(ThreadRole::kComputes);
  if (options_.compresses_ahead) compressor_.Compress(context_id);
  if (writer_ != nullptr && options_.writes_ahead) writer_->Write(context_id);
  ReleaseCopies();
  parts_.book.AdvanceWaiting();  // demotions have ended
  RecordMetrics();
}

void IdleKeeper::TidyLater(const std::string& context_id) {
  ++waiting_;
  const bool accepted = thread_.TryRun([this, context_id] {
    Tidy(context_id);
    --waiting_;
  });
  if (!accepted) --waiting_;
}

void IdleKeeper::AwaitTidy() {
  absl::Notification done;
  thread_.Run([&] { done.Notify(); });
  done.WaitForNotification();
}

// Summing up 60,000 chunks takes about a millisecond under the lock, once after a call.
void IdleKeeper::RecordMetrics() {
  if (parts_.disk != nullptr) parts_.metrics.RecordDisk(parts_.disk->Stats());
  absl::MutexLock lock(&parts_.book.mutex());
  parts_.metrics.RecordFormats(parts_.book.table().kv().Bytes());
}

void IdleKeeper::RecordMetricsLater() {
  thread_.Run([this] { RecordMetrics(); });
}

void IdleKeeper::ForgetCopies(const std::set<StoredCopy>& lost) {
  if (lost.empty()) return;
  std::set<std::string> had;
  {
    absl::MutexLock lock(&parts_.book.mutex());
    had = parts_.book.table().idle().ForgetCopies(lost);
  }
  for (const std::string& context_id : had) {
    if (parts_.records.Knows(context_id)) TidyLater(context_id);
  }
}

void IdleKeeper::ReleaseCopies() {
  if (writer_ != nullptr) writer_->ReleaseCopies();
}

bool IdleKeeper::LacksRoomLocked(uint64_t bytes) const {
  const LeaseTable& table = parts_.book.table();
  const uint64_t chunk_bytes = table.kv().geometry.ChunkBytes(KvFormat::kQ8);
  const uint64_t held = PlacesInGaps(table.kv().pool, chunk_bytes) * chunk_bytes;
  if (bytes <= held) return false;
  return held + table.idle().ExactRoom() - table.kv().pool.counts().free < bytes;
}

bool IdleKeeper::LacksRoom(uint64_t bytes) const {
  absl::MutexLock lock(&parts_.book.mutex());
  return parts_.book.table().kv().geometry.layers > 0 && LacksRoomLocked(bytes);
}

bool IdleKeeper::HasHidden(uint64_t bytes) const {
  absl::MutexLock lock(&parts_.book.mutex());
  const LeaseTable& table = parts_.book.table();
  if (table.kv().geometry.window_reach == 0) return false;
  const uint64_t chunk_bytes = table.kv().geometry.ChunkBytes(KvFormat::kQ8);
  return PlacesInGaps(table.kv().pool, chunk_bytes) * chunk_bytes < bytes &&
         !table.idle().Hidden(1).empty();
}

bool IdleKeeper::MakesRoom(uint64_t bytes) const {
  if (writer_ != nullptr && !options_.writes_ahead) return true;
  return !options_.compresses_ahead && (LacksRoom(bytes) || HasHidden(bytes));
}

// What is moved fills the gaps that it leaves, from the smallest on, so that whole places of chunks
// become free.
void IdleKeeper::DropHidden(uint64_t bytes) {
  absl::MutexLock making(&room_mutex_);
  if (!HasHidden(bytes)) return;
  uint64_t held = 0;
  {
    absl::MutexLock lock(&parts_.book.mutex());
    const ArenaKv& kv = parts_.book.table().kv();
    const uint64_t chunk_bytes = kv.geometry.ChunkBytes(KvFormat::kQ8);
    held = PlacesInGaps(kv.pool, chunk_bytes) * chunk_bytes;
  }
  if (held >= bytes) return;
  compressor_.DropHidden(bytes - held);
  absl::MutexLock lock(&parts_.book.mutex());
  const ArenaKv& kv = parts_.book.table().kv();
  if (kv.pool.counts().free >= bytes) CompactLocked(bytes);
}

void IdleKeeper::AwaitSwapOut(uint64_t bytes) {
  if (!writer_->takes_writes()) return;
  // Shared with the task, which may end after the waiting.
  const auto done = std::make_shared<absl::Notification>();
  const bool accepted = thread_.TryRun([this, bytes, done] {
    writer_->SwapOut(bytes);
    ReleaseCopies();
    done->Notify();
  });
  if (!accepted) return;
  const telemetry::Counter& chunks = parts_.metrics.chunks.written;
  uint64_t written = chunks.value();
  int64_t since_ns = parts_.clock.SteadyNanos();
  while (!done->WaitForNotificationWithTimeout(kLook)) {
    const int64_t now_ns = parts_.clock.SteadyNanos();
    if (const uint64_t now = chunks.value(); now != written) {
      written = now;
      since_ns = now_ns;
    }
    if (stopping_) return;
    if (!options_.writes_ahead || now_ns - since_ns < kPatienceNanos) continue;
    spdlog::warn("the disk has taken no KV for {} s: chunks lose bits, or are computed again",
                 kPatienceNanos / kNanosPerSecond);
    writer_->RestUntil(now_ns + kHangNanos);
    return;
  }
}

void IdleKeeper::MakeRoom(uint64_t bytes) {
  if (!MakesRoom(bytes)) return;
  if (!options_.compresses_ahead) DropHidden(bytes);
  const bool writes = writer_ != nullptr && !options_.writes_ahead;
  if (!writes && (options_.compresses_ahead || !LacksRoom(bytes))) return;
  if (writer_ != nullptr) AwaitSwapOut(bytes);
  if (options_.compresses_ahead || !options_.compression.precision.has_value()) return;
  absl::MutexLock making(&room_mutex_);
  if (!LacksRoom(bytes)) return;  // others may have made it, while this thread waited
  uint64_t room = 0;
  {
    absl::MutexLock lock(&parts_.book.mutex());
    room = parts_.book.table().idle().ExactRoom();
  }
  if (room < bytes) compressor_.CompressFor(bytes - room);
  Compact(bytes);
}

void IdleKeeper::Compact(uint64_t bytes) {
  absl::MutexLock lock(&parts_.book.mutex());
  if (LacksRoomLocked(bytes)) CompactLocked(bytes);
}

void IdleKeeper::CompactLocked(uint64_t bytes) {
  LeaseTable& table = parts_.book.table();
  const uint64_t chunk_bytes = table.kv().geometry.ChunkBytes(KvFormat::kQ8);
  const engine::KvMemory memory = parts_.book.arena().memory();
  table.idle().Compact((bytes + chunk_bytes - 1) / chunk_bytes, kMostMovedBytes,
                       [&](SlotAt from, SlotAt to, uint64_t moved) {
                         std::memmove(memory.base + KvSlot{to, KvFormat::kQ8}.offset(),
                                      memory.base + KvSlot{from, KvFormat::kQ8}.offset(), moved);
                       });
  parts_.book.RecordGauges();
}

}  // namespace withy::context_store
