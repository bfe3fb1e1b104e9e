#include "context_store/arena_keeper.h"

#include <signal.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/status.h"

namespace withy::context_store {
namespace {

bool StillRuns(const WorkerRecord& worker) {
  const auto pid = static_cast<pid_t>(worker.pid);
  // If we may not read a process's /proc entry (another user's), it counts as the same process
  // while its pid is in use.
  if (worker.start_ticks == 0) return kill(pid, 0) == 0 || errno == EPERM;
  return ProcessStartTicks(pid) == worker.start_ticks;
}

absl::Status CheckIdentities(const std::unordered_set<std::string>& public_chunks) {
  for (const std::string& identity : public_chunks) {
    if (identity.size() == kIdentityBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "public_chunks: an identity of ", identity.size(), " bytes; must be ", kIdentityBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ArenaKeeper::LoadPreviousWorkers() {
  RecordDb& db = parts_.records.db();
  std::vector<WorkerRecord> workers;
  RecordBatch batch;
  const auto visit = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    batch.Delete(key);
    WorkerRecord worker;
    if (payload.ok() && Decode(*payload, &worker).ok()) workers.push_back(worker);
    return true;
  };
  WITHY_RETURN_IF_ERROR(db.Scan(kWorkerPrefix, visit));
  if (!arena().recovered()) return workers.empty() ? absl::OkStatus() : db.Write(batch);
  absl::MutexLock lock(&previous_mutex_);
  previous_workers_ = std::move(workers);
  return absl::OkStatus();
}

bool ArenaKeeper::PreviousWorkerLives(WorkerInstance attaching, pid_t pid) {
  RecordBatch ended;
  bool any_ended = false, any_lives = false;
  {
    absl::MutexLock lock(&previous_mutex_);
    std::erase_if(previous_workers_, [&](const WorkerRecord& worker) {
      // A worker that begins anew in its process has another instance and the same pid.
      const bool same_process = pid > 0 && worker.pid == pid;
      if (worker.instance != attaching && !same_process && StillRuns(worker)) return false;
      ended.Delete(WorkerKey(worker.instance));
      return any_ended = true;
    });
    any_lives = !previous_workers_.empty();
  }
  if (!any_ended) return any_lives;
  // The next store process would find out by itself.
  const absl::Status written = parts_.records.db().Write(ended);
  if (!written.ok()) {
    spdlog::warn("records of workers that are gone stay: {}", std::string(written.message()));
  }
  return any_lives;
}

absl::StatusOr<Attached> ArenaKeeper::Attach(WorkerInstance worker, const Geometry& geometry,
                                             pid_t pid,
                                             std::unordered_set<std::string> public_chunks) {
  WITHY_RETURN_IF_ERROR(CheckIdentities(public_chunks));
  absl::MutexLock attaching(&attach_mutex_);
  if (PreviousWorkerLives(worker, pid)) {
    return absl::FailedPreconditionError(
        "a worker from before the store's restart still has the arena mapped: it must attach "
        "first, or end");
  }
  LeaseBook::Listeners ended;
  Attached attached;
  {
    absl::MutexLock lock(&book_.mutex());
    if (geometry != book_.table().kv().geometry) book_.AwaitWriters();
    WITHY_ASSIGN_OR_RETURN(attached, book_.table().Attach(worker, geometry));
    book_.table().SetPublicChunks(std::move(public_chunks));
    ended = book_.TakeEnded(attached.ended);
    book_.RecordGauges();
  }
  if (attached.reset) WITHY_RETURN_IF_ERROR(AdoptEarlier(geometry));
  spdlog::info("worker {:x} attached: epoch {}, chunks of {} bytes, {} stale leases ended", worker,
               attached.epoch, geometry.ChunkBytes(KvFormat::kQ8), ended.size());
  for (const auto& listener : ended) {
    listener->OnEnded(
        absl::AbortedError("a worker attached again, the lease's epoch is over: attach again"));
  }
  return attached;
}

absl::StatusOr<ArenaOffer> ArenaKeeper::ConnectWorker(WorkerInstance worker, uint64_t epoch,
                                                      pid_t pid) {
  const WorkerRecord record{worker, pid, ProcessStartTicks(pid).value_or(0)};
  ArenaOffer offer;
  {
    absl::MutexLock lock(&book_.mutex());
    LeaseTable& table = book_.table();
    if (epoch != table.epoch()) {
      return absl::AbortedError(absl::StrCat("epoch ", epoch, " is over, the arena's is ",
                                             table.epoch(), ": attach again"));
    }
    table.WorkerConnected(worker);
    offer.epoch = epoch;
    offer.arena_bytes = arena().bytes();
    offer.block_bytes = table.kv().geometry.block_bytes;
  }
  RecordBatch batch;
  batch.PutNote(WorkerKey(worker), Encode(record));  // a full disk refuses no worker
  // Without this record a restarted store would not know the worker, so the worker must not get the
  // memory.
  const absl::Status written = parts_.records.db().Write(batch);
  if (!written.ok()) {
    DisconnectWorker(worker);
    return written;
  }
  return offer;
}

void ArenaKeeper::DisconnectWorker(WorkerInstance worker) {
  RecordBatch batch;
  batch.Delete(WorkerKey(worker));
  if (const absl::Status written = parts_.records.db().Write(batch); !written.ok()) {
    spdlog::warn("worker {:x} is gone, its record stays: {}", worker,
                 std::string(written.message()));
  }
  LeaseBook::Listeners ended;
  LeaseNotices notices;
  {
    absl::MutexLock lock(&book_.mutex());
    Effects effects = book_.table().WorkerGone(worker);
    ended = book_.TakeEnded(effects.ended);
    notices = book_.Apply(std::move(effects));
  }
  parts_.metrics.leases.broken.Add(ended.size());
  spdlog::info("worker {:x} is gone, {} leases ended", worker, ended.size());
  for (const auto& listener : ended) listener->OnEnded(absl::AbortedError("the worker is gone"));
  notices.Tell();
}

ArenaKeeper::KeptByContext ArenaKeeper::FindKept(const Geometry& geometry, uint64_t* wrong) {
  std::vector<KeptChunk> described;
  uint64_t first_epoch = 0;
  {
    absl::MutexLock lock(&book_.mutex());
    if (book_.directory().geometry() == geometry) described = book_.directory().Chunks();
    first_epoch = parts_.first_epoch;
  }
  KeptByContext kept;
  std::set<std::string> deleted;
  // Contexts may share a slot.
  std::map<std::tuple<SlotAt, KvFormat, std::string>, bool> matches;
  for (KeptChunk& chunk : described) {
    if (deleted.contains(chunk.context_id)) continue;
    if (!kept.contains(chunk.context_id) && !parts_.records.Knows(chunk.context_id)) {
      deleted.insert(chunk.context_id);
      continue;
    }
    const auto [match, added] =
        matches.try_emplace({chunk.slot.units, chunk.slot.format, chunk.identity.identity});
    if (added) {
      match->second = book_.arena().Matches(geometry.kv(), chunk.slot, chunk.identity.identity,
                                            chunk.identity.tokens, first_epoch);
    }
    if (match->second) {
      kept[chunk.context_id].push_back(std::move(chunk));
    } else {
      ++*wrong;
    }
  }
  return kept;
}

void ArenaKeeper::BorrowCopies(std::vector<StoredContext>* contexts) {
  struct Missing {
    std::string app_id;
    ContextChunk* chunk;
  };
  std::unordered_multimap<std::string_view, Missing> missing;  // by identity
  for (StoredContext& context : *contexts) {
    for (ContextChunk& chunk : context.chunks) {
      if (chunk.stored != 0) continue;
      missing.emplace(chunk.identity.identity,
                      Missing{parts_.records.contexts().AppOf(context.context_id), &chunk});
    }
  }
  if (missing.empty()) return;
  absl::MutexLock lock(&book_.mutex());
  for (const StoredContext& context : *contexts) {
    const std::string app_id = parts_.records.contexts().AppOf(context.context_id);
    for (const ContextChunk& chunk : context.chunks) {
      if (chunk.stored == 0) continue;
      const auto [first, last] = missing.equal_range(chunk.identity.identity);
      for (auto one = first; one != last; ++one) {
        const bool may = one->second.app_id == app_id ||
                         book_.table().kv().public_chunks.contains(chunk.identity.identity);
        if (may) book_.table().idle().copies().Borrow(one->second.chunk, chunk);
      }
    }
  }
}

absl::StatusOr<ArenaKeeper::StoredByContext> ArenaKeeper::FindStored(const Geometry& geometry) {
  StoredByContext stored;
  if (parts_.disk == nullptr) return stored;
  const auto exists = [&](std::string_view id) { return parts_.records.Knows(id); };
  WITHY_ASSIGN_OR_RETURN(std::vector<StoredContext> on_disk, parts_.disk->Adopt(geometry, exists));
  BorrowCopies(&on_disk);
  for (StoredContext& context : on_disk) {
    stored.emplace(std::move(context.context_id), std::move(context.chunks));
  }
  return stored;
}

absl::Status ArenaKeeper::AdoptEarlier(const Geometry& geometry) {
  uint64_t wrong = 0, adopted = 0;
  KeptByContext kept = FindKept(geometry, &wrong);
  absl::StatusOr<StoredByContext> stored = FindStored(geometry);
  if (!stored.ok()) {
    absl::MutexLock lock(&book_.mutex());
    book_.table().adoption().End();  // no entry may stay of what is free from now on
    return stored.status();
  }
  std::vector<std::pair<int64_t, std::string>> by_use;
  for (const auto& [id, chunks] : kept) by_use.emplace_back(parts_.records.LastUse(id), id);
  for (const auto& [id, chunks] : *stored) {
    if (!kept.contains(id)) by_use.emplace_back(parts_.records.LastUse(id), id);
  }
  std::sort(by_use.begin(), by_use.end());
  {
    absl::MutexLock lock(&book_.mutex());
    for (const auto& [used, id] : by_use) {
      adopted += book_.table().adoption().Adopt(id, kept[id], std::move((*stored)[id]),
                                                parts_.records.contexts().AppOf(id));
    }
    book_.table().adoption().End();
    book_.RecordGauges();
  }
  parts_.metrics.chunks.kept.Add(adopted);
  parts_.metrics.chunks.not_kept.Add(wrong);
  if (arena().recovered()) {
    spdlog::info("the kept arena has {} chunks of {} contexts; {} did not match and are dropped",
                 adopted, kept.size(), wrong);
  }
  parts_.idle.ReleaseCopies();
  return absl::OkStatus();
}

}  // namespace withy::context_store
