#include "context_store/arena/arena_locks.h"

#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace withy::context_store {
namespace {

uint64_t SystemLimit() {
  rlimit limit{};
  return getrlimit(RLIMIT_MEMLOCK, &limit) == 0 ? limit.rlim_cur : 0;
}

}  // namespace

LockPlan::LockPlan(uint64_t arena_bytes, uint64_t limit_bytes)
    : arena_bytes_(arena_bytes),
      limit_bytes_(limit_bytes),
      pieces_((arena_bytes + kPieceBytes - 1) / kPieceBytes) {}

uint64_t LockPlan::BytesOf(uint32_t piece) const {
  return std::min(kPieceBytes, arena_bytes_ - piece * kPieceBytes);
}

void LockPlan::Lock(uint32_t piece, std::vector<uint32_t>* locked) {
  if (locked_bytes_ + BytesOf(piece) > limit_bytes_) {
    waiting_.insert(piece);
    return;
  }
  waiting_.erase(piece);
  pieces_[piece].locked = true;
  locked_bytes_ += BytesOf(piece);
  locked->push_back(piece);
}

std::vector<ByteRange> LockPlan::Runs(std::vector<uint32_t> pieces) const {
  std::sort(pieces.begin(), pieces.end());
  std::vector<ByteRange> runs;
  for (const uint32_t piece : pieces) {
    const uint64_t offset = piece * kPieceBytes;
    if (runs.empty() || runs.back().offset + runs.back().bytes != offset) {
      runs.push_back({offset, 0});
    }
    runs.back().bytes += BytesOf(piece);
  }
  return runs;
}

LockPlan::Change LockPlan::Hold(uint64_t holder, std::span<const ByteRange> slots) {
  std::set<uint32_t>& held = held_[holder];
  std::vector<uint32_t> locked;
  for (const ByteRange& slot : slots) {
    if (slot.bytes == 0 || slot.offset + slot.bytes > arena_bytes_) continue;
    const auto last = static_cast<uint32_t>((slot.offset + slot.bytes - 1) / kPieceBytes);
    for (auto piece = static_cast<uint32_t>(slot.offset / kPieceBytes); piece <= last; ++piece) {
      if (!held.insert(piece).second) continue;
      if (++pieces_[piece].holders == 1) Lock(piece, &locked);
    }
  }
  return {.unlock = {}, .lock = Runs(std::move(locked))};
}

LockPlan::Change LockPlan::Drop(uint64_t holder) {
  std::vector<uint32_t> unlocked, locked;
  if (const auto held = held_.find(holder); held != held_.end()) {
    for (const uint32_t piece : held->second) {
      if (--pieces_[piece].holders > 0) continue;
      waiting_.erase(piece);
      if (!pieces_[piece].locked) continue;
      pieces_[piece].locked = false;
      locked_bytes_ -= BytesOf(piece);
      unlocked.push_back(piece);
    }
    held_.erase(held);
  }
  const std::vector<uint32_t> waiting(waiting_.begin(), waiting_.end());
  for (const uint32_t piece : waiting) {
    if (locked_bytes_ + kPieceBytes > limit_bytes_) break;
    Lock(piece, &locked);
  }
  return {.unlock = Runs(std::move(unlocked)), .lock = Runs(std::move(locked))};
}

void LockPlan::LowerLimit() { limit_bytes_ = locked_bytes_; }

void LockPlan::OnRefused(const ByteRange& range) {
  const auto end =
      static_cast<uint32_t>((range.offset + range.bytes + kPieceBytes - 1) / kPieceBytes);
  for (auto piece = static_cast<uint32_t>(range.offset / kPieceBytes); piece < end; ++piece) {
    if (!pieces_[piece].locked) continue;
    pieces_[piece].locked = false;
    locked_bytes_ -= BytesOf(piece);
  }
}

// ONFAULT, so that the call does not touch the whole arena at once.
ArenaLocks::ArenaLocks(std::span<std::byte> memory, uint64_t limit_bytes)
    : memory_(memory), limit_bytes_(limit_bytes) {
  if (limit_bytes >= memory.size() && mlock2(memory.data(), memory.size(), MLOCK_ONFAULT) == 0) {
    all_ = true;
    locked_bytes_ = memory.size();
    return;
  }
  limit_bytes_ = std::min(limit_bytes, SystemLimit());
  spdlog::info(
      "RLIMIT_MEMLOCK is {} and the KV arena has {} bytes: only what calls use is locked into "
      "memory",
      limit_bytes_, memory.size());
  thread_ = std::thread([this] { Run(); });
}

ArenaLocks::~ArenaLocks() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void ArenaLocks::Hold(uint64_t holder, std::vector<ByteRange> slots) {
  if (all_ || slots.empty()) return;
  absl::MutexLock lock(&mutex_);
  tasks_.push_back({.holder = holder, .slots = std::move(slots)});
}

void ArenaLocks::Drop(uint64_t holder) {
  if (all_) return;
  absl::MutexLock lock(&mutex_);
  tasks_.push_back({.holder = holder, .drop = true});
}

void ArenaLocks::Await() {
  const auto idle = [this]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return tasks_.empty() && !busy_; };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&idle));
}

void ArenaLocks::Run() {
  LockPlan plan(memory_.size(), limit_bytes_);
  const auto something = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stop_ || !tasks_.empty();
  };
  absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.Await(absl::Condition(&something));
    if (stop_) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    busy_ = true;
    mutex_.Unlock();
    Carry(task, &plan);
    mutex_.Lock();
    busy_ = false;
  }
}

void ArenaLocks::Carry(const Task& task, LockPlan* plan) {
  const LockPlan::Change change =
      task.drop ? plan->Drop(task.holder) : plan->Hold(task.holder, task.slots);
  for (const ByteRange& range : change.unlock) {
    munlock(memory_.data() + range.offset, range.bytes);
  }
  bool refused = false;
  for (const ByteRange& range : change.lock) {
    if (!refused && mlock2(memory_.data() + range.offset, range.bytes, MLOCK_ONFAULT) == 0)
      continue;
    if (!refused) {
      spdlog::info("the system locks no more than {} bytes of the KV arena: {}",
                   locked_bytes_.load(), std::strerror(errno));
    }
    refused = true;
    plan->OnRefused(range);
  }
  if (refused) plan->LowerLimit();
  locked_bytes_ = plan->locked_bytes();
}

}  // namespace withy::context_store
