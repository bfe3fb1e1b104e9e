#include "context_store/lease/lease_audit_testing.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "context_store/arena/slot_layout.h"

namespace withy::context_store {
namespace {

// Slots of contexts: each has as many contexts as it says, which have the same chunk there.
std::string AuditShared(const LeaseState& state) {
  std::map<SlotAt, std::vector<std::pair<const KvContext*, uint32_t>>> with;
  for (const auto& [id, context] : state.kv.contexts) {
    for (uint32_t i = 0; i < context.kv.chunks.size(); ++i) {
      if (const auto& slot = context.kv.chunks[i].slot; slot.has_value()) {
        with[slot->units].emplace_back(&context, i);
      }
    }
  }
  for (const auto& [slot, owners] : with) {
    if (state.kv.pool.at(slot).state != SlotPool::State::kResident ||
        state.kv.pool.at(slot).contexts != owners.size()) {
      return absl::StrCat("slot ", slot, " has ", owners.size(), " contexts and does not know it");
    }
    const auto& [first, number] = owners.front();
    const ContextChunk& chunk = first->kv.chunks[number];
    for (size_t i = 1; i < owners.size(); ++i) {
      const auto& [other, at] = owners[i];
      const ContextChunk& its = other->kv.chunks[at];
      const bool equal = at == number && its.slot == chunk.slot && its.shared && chunk.shared &&
                         its.identity.identity == chunk.identity.identity &&
                         its.identity.tokens == static_cast<uint32_t>(kChunkTokens) &&
                         !its.loading && !chunk.loading;
      if (!equal) return absl::StrCat("slot ", slot, " is shared by unequal chunks");
      const bool may = (!first->app_id.empty() && first->app_id == other->app_id) ||
                       state.kv.public_chunks.contains(chunk.identity.identity);
      if (!may) return absl::StrCat("slot ", slot, " is shared by two apps");
    }
  }
  return "";
}

}  // namespace

std::string AuditLeases(const LeaseState& state) {
  std::set<SlotAt> seen, of_leases;
  uint64_t claimed = 0, resident = 0, saved = 0;
  uint32_t waiting = 0;
  for (const auto& [id, lease] : state.leases) {
    for (const auto& [chunk, slot] : lease.claimed) {
      if (state.kv.pool.at(slot).state != SlotPool::State::kClaimed ||
          state.kv.pool.at(slot).owner != id || !of_leases.insert(slot).second)
        return absl::StrCat("slot ", slot, " of lease ", id, " is not its own");
      claimed += state.kv.geometry.ChunkBytes(KvFormat::kQ8);
    }
    if (!lease.granted && !lease.claimed.empty())
      return absl::StrCat("lease ", id, " waits with slots");
    waiting += lease.granted ? 0 : 1;
  }
  for (const LeaseId id : state.room_queue) {
    if (!state.leases.contains(id) || state.leases.at(id).admitted)
      return "a lease waits for room for nothing";
  }
  for (const auto& [context_id, context] : state.kv.contexts) {
    if (context.holder != 0 && !state.leases.contains(context.holder))
      return "a holder that is not a lease";
    if (!context.taken() && !context.waiting.empty()) return "a lease waits for a free context";
    if (context.next != 0 && (context.holder != 0 || !state.room_queue.contains(context.next)))
      return "a context's next lease does not wait for room";
    for (const ContextChunk& chunk : context.kv.chunks) {
      if (chunk.loading && (context.holder == 0 || !chunk.slot.has_value()))
        return absl::StrCat("a chunk of context ", context_id, " is read for nobody");
      if (chunk.nowhere() && context.holder == 0 && &chunk == &context.kv.chunks.back())
        return absl::StrCat("the last chunk of context ", context_id, " is nowhere");
      if (!chunk.slot.has_value()) continue;
      if (of_leases.contains(chunk.slot->units)) {
        return absl::StrCat("slot ", chunk.slot->units, " of context ", context_id,
                            " is a lease's");
      }
      if (seen.insert(chunk.slot->units).second) {
        resident += state.kv.geometry.ChunkBytes(chunk.slot->format);
      } else {
        saved += state.kv.geometry.ChunkBytes(chunk.slot->format);
      }
    }
  }
  std::map<StoredCopy, uint32_t> copies;
  for (const auto& [context_id, context] : state.kv.contexts) {
    for (const ContextChunk& chunk : context.kv.chunks) {
      if (chunk.stored != 0) ++copies[chunk.stored];
    }
  }
  std::erase_if(copies, [](const auto& copy) { return copy.second == 1; });
  if (copies.size() != state.kv.copies.shared().size() ||
      !std::all_of(copies.begin(), copies.end(), [&](const auto& copy) {
        const auto found = state.kv.copies.shared().find(copy.first);
        return found != state.kv.copies.shared().end() && found->second == copy.second;
      })) {
    return "a copy on disk has other chunks than it knows";
  }
  // Slots of loads and demotions under way are claimed by nobody that is seen here.
  const SlotPool::Counts& counts = state.kv.pool.counts();
  if (claimed > counts.claimed || resident != counts.resident || saved != counts.saved ||
      waiting != state.waiting) {
    return "a slot or a waiting lease got lost";
  }
  if (const std::string wrong = AuditShared(state); !wrong.empty()) return wrong;
  return FillsItsSpace(state.kv.pool) ? "" : "slots and gaps do not fill the arena";
}

}  // namespace withy::context_store
