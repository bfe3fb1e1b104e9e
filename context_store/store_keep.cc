// Store: takes over what earlier runs left of contexts when a worker attaches: chunks that are
// still in the arena, because systemd kept its memory, and chunks on disk. A chunk in the arena is
// used only if its blocks are whole and are what the arena's directory says: a process that was
// killed at any moment leaves nothing half written or foreign behind that passes. By now every
// worker that had the arena mapped has attached again or is dead.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "base/status.h"
#include "context_store/store.h"

namespace withy::context_store {

Store::KeptByContext Store::FindKept(const Geometry& geometry, uint64_t* wrong) {
  std::vector<KeptChunk> described;
  uint64_t first_epoch = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (directory_->geometry() == geometry) described = directory_->Chunks();
    first_epoch = FirstEpoch();
  }
  KeptByContext kept;
  std::set<std::string> deleted;
  // Contexts may share a slot.
  std::map<std::tuple<SlotAt, KvFormat, std::string>, bool> matches;
  for (KeptChunk& chunk : described) {
    if (deleted.contains(chunk.context_id)) continue;
    if (!kept.contains(chunk.context_id) && contexts_->AppOf(chunk.context_id).empty()) {
      deleted.insert(chunk.context_id);
      continue;
    }
    const auto [match, added] =
        matches.try_emplace({chunk.slot.units, chunk.slot.format, chunk.identity.identity});
    if (added) {
      match->second = arena_->Matches(geometry.kv(), chunk.slot, chunk.identity.identity,
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

int64_t Store::LastUse(std::string_view context_id) const {
  const auto summary = contexts_->Find(contexts_->AppOf(context_id), context_id);
  return summary.ok() ? summary->record.last_used_unix_ns : 0;
}

void Store::BorrowCopies(std::vector<StoredContext>* contexts) {
  struct Missing {
    std::string app_id;
    ContextChunk* chunk;
  };
  std::unordered_multimap<std::string_view, Missing> missing;  // by identity
  for (StoredContext& context : *contexts) {
    for (ContextChunk& chunk : context.chunks) {
      if (chunk.stored != 0) continue;
      missing.emplace(chunk.identity.identity,
                      Missing{contexts_->AppOf(context.context_id), &chunk});
    }
  }
  if (missing.empty()) return;
  absl::MutexLock lock(&mutex_);
  for (const StoredContext& context : *contexts) {
    const std::string app_id = contexts_->AppOf(context.context_id);
    for (const ContextChunk& chunk : context.chunks) {
      if (chunk.stored == 0) continue;
      const auto [first, last] = missing.equal_range(chunk.identity.identity);
      for (auto one = first; one != last; ++one) {
        const bool may = one->second.app_id == app_id ||
                         table_->kv().public_chunks.contains(chunk.identity.identity);
        if (may) table_->idle().Borrow(one->second.chunk, chunk);
      }
    }
  }
}

absl::Status Store::AdoptEarlier(const Geometry& geometry) {
  uint64_t wrong = 0, adopted = 0;
  KeptByContext kept = FindKept(geometry, &wrong);
  std::map<std::string, std::vector<ContextChunk>> stored;
  if (kv_ != nullptr) {
    const auto exists = [&](std::string_view id) { return !contexts_->AppOf(id).empty(); };
    absl::StatusOr<std::vector<StoredContext>> on_disk = kv_->Adopt(geometry, exists);
    if (!on_disk.ok()) {
      absl::MutexLock lock(&mutex_);
      table_->idle().EndAdoption();  // no entry may stay of what is free from now on
      return on_disk.status();
    }
    BorrowCopies(&*on_disk);
    for (StoredContext& context : *on_disk) {
      stored.emplace(std::move(context.context_id), std::move(context.chunks));
    }
  }
  std::vector<std::pair<int64_t, std::string>> by_use;
  for (const auto& [id, chunks] : kept) by_use.emplace_back(LastUse(id), id);
  for (const auto& [id, chunks] : stored) {
    if (!kept.contains(id)) by_use.emplace_back(LastUse(id), id);
  }
  std::sort(by_use.begin(), by_use.end());
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [used, id] : by_use) {
      adopted += table_->idle().Adopt(id, kept[id], std::move(stored[id]), contexts_->AppOf(id));
    }
    table_->idle().EndAdoption();
    RecordGauges();
  }
  kept_.Add(adopted);
  not_kept_.Add(wrong);
  if (arena_->recovered()) {
    spdlog::info("the kept arena has {} chunks of {} contexts; {} did not match and are dropped",
                 adopted, kept.size(), wrong);
  }
  ReleaseCopies();
  return absl::OkStatus();
}

}  // namespace withy::context_store
