#include "context_store/lease/lease_chunks.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "context_store/arena/hidden_kv.h"
#include "policy/kv/kv_window.h"

namespace withy::context_store {
namespace {

// Whether a lease at this level may compute the chunk again and gets the same chunk.
bool IsRecomputable(const ContextChunk& chunk, const LoadRules& rules, bool rebuild) {
  return !rebuild && chunk.identity.tokens == static_cast<uint32_t>(kChunkTokens) &&
         chunk.identity.model_level_percent == rules.level_percent;
}

}  // namespace

ResidentChunks LeaseChunks::Resident(LeaseId id) const {
  const auto found = state_.leases.find(id);
  if (found == state_.leases.end() || found->second.context_id.empty()) return {};
  const Lease& lease = found->second;
  const ContextChunks& context = state_.kv.contexts.at(lease.context_id).kv;
  ResidentChunks resident;
  for (uint32_t i = 0; i < context.chunks.size(); ++i) {
    using State = ResidentChunk::State;
    const ContextChunk& chunk = context.chunks[i];
    const auto claimed = lease.claimed.find(i);
    if (chunk.slot.has_value()) {
      resident.push_back(
          {{i, *chunk.slot}, chunk.identity, chunk.loading ? State::kReading : State::kResident});
    } else if (claimed != lease.claimed.end()) {
      resident.push_back(
          {{i, {claimed->second, KvFormat::kQ8}}, chunk.identity, State::kToCompute});
    } else {
      break;
    }
  }
  return resident;
}

std::set<uint32_t> LeaseChunks::PlanLoad(const LoadRules& rules, bool rebuild, KvContext* context) {
  ContextChunks* const kv = &context->kv;
  std::vector<KvFormat> formats;
  for (uint32_t i = 0; i < kv->chunks.size(); ++i) {
    formats.push_back(LoadFormat(state_.kv, *context, i));
  }
  std::vector<policy::MissingChunk> missing;
  for (uint32_t i = 0; i < kv->chunks.size(); ++i) {
    const ContextChunk& chunk = kv->chunks[i];
    if (chunk.slot.has_value()) continue;
    if (!IsRecomputable(chunk, rules, rebuild)) {
      if (chunk.stored == 0) {
        Truncate(i, kv, &state_.kv.pool);
        break;
      }
      continue;  // it is read in any case
    }
    missing.push_back({i, chunk.stored == 0 ? 0 : state_.kv.geometry.ChunkBytes(formats[i])});
  }
  std::set<uint32_t> recompute;
  const policy::LoadPlan plan = policy::PlanLoad(missing, rules.costs, rules.policy);
  double claimed_ms = 0;
  for (const size_t i : plan.recompute) {
    if (missing[i].stored_bytes != 0) {
      claimed_ms += rules.costs.RecomputeMs(missing[i]);
      if (claimed_ms > rules.claimed_share * plan.ms()) continue;
    }
    recompute.insert(missing[i].position);
  }
  KeepComputable(&recompute, kv, formats);
  return recompute;
}

// A chunk can be computed only if the windows of its tokens are whole. Others are read; if they
// have no copy, what is behind them is of no use, nor are chunks that lack blocks which the next
// token would read.
void LeaseChunks::KeepComputable(std::set<uint32_t>* recompute, ContextChunks* kv,
                                 const std::vector<KvFormat>& formats) {
  if (state_.kv.geometry.window_reach == 0) return;
  std::vector<bool> lacks;
  for (uint32_t i = 0; i < kv->chunks.size(); ++i) {
    const ContextChunk& chunk = kv->chunks[i];
    if (recompute->contains(i) &&
        !policy::CanContinue(lacks, i * kChunkTokens, state_.kv.geometry.window_reach)) {
      if (chunk.stored == 0) {
        Truncate(i, kv, &state_.kv.pool);
        break;
      }
      recompute->erase(i);
    }
    const KvFormat read = chunk.slot.has_value() ? chunk.slot->format : formats[i];
    lacks.push_back(!recompute->contains(i) && LacksBlocks(read));
  }
  if (kv->chunks.empty()) return;
  const auto chunks = static_cast<uint32_t>(kv->chunks.size());
  const uint32_t tokens = (chunks - 1) * kChunkTokens + kv->chunks.back().identity.tokens;
  const uint32_t reach = state_.kv.geometry.window_reach;
  if (!policy::CanContinue(lacks, tokens, reach)) {
    Truncate(policy::ContinuableChunks(lacks, chunks, reach), kv, &state_.kv.pool);
  }
  recompute->erase(recompute->lower_bound(static_cast<uint32_t>(kv->chunks.size())),
                   recompute->end());
}

std::vector<ChunkLoad> LeaseChunks::BeginLoad(LeaseId id, const LoadRules& rules,
                                              uint64_t* evicted) {
  const absl::StatusOr<Lease*> found = state_.Granted(id);
  if (!found.ok() || (*found)->context_id.empty()) return {};
  Lease& lease = **found;
  KvContext& context = *state_.ContextOf(lease);
  std::vector<uint32_t> missing;
  for (uint32_t i = 0; i < context.kv.chunks.size(); ++i) {
    if (!context.kv.chunks[i].slot.has_value()) missing.push_back(i);
  }
  state_.kv.ShareMissing(&context);
  const std::set<uint32_t> recompute = PlanLoad(rules, lease.rebuild, &context);
  std::vector<ChunkLoad> loads = TakeLoadSlots(&lease, id, recompute, rules, evicted);
  lease.to_load = 0;
  if (!missing.empty() && room_.OthersAdmitted(id) && !room_.CanAllFinishNow()) {
    // The slots cut gaps into small ones (see StandWell).
    GiveUpLoadSlots(&lease, missing, loads);
    idle_.EvictAll(evicted);
    loads = TakeLoadSlots(&lease, id, recompute, rules, evicted);
    if (!room_.CanAllFinishNow()) {  // what the store writes just now is in the way: it is computed
      GiveUpLoadSlots(&lease, missing, loads);
      loads.clear();
    }
  }
  state_.kv.Collect(&context);
  lease.told = HeldPrefix(lease.claimed, context.kv);
  return loads;
}

// Slots for the chunks that have none, from the first one on, for as many as there is room.
std::vector<ChunkLoad> LeaseChunks::TakeLoadSlots(Lease* lease, LeaseId id,
                                                  const std::set<uint32_t>& recompute,
                                                  const LoadRules& rules, uint64_t* evicted) {
  std::vector<ChunkLoad> loads;
  const KvContext& context = *state_.ContextOf(*lease);
  std::vector<ContextChunk>& chunks = state_.ContextOf(*lease)->kv.chunks;
  std::optional<Evictions> queue;
  bool recomputable = true;
  std::vector<bool> lacks;  // what stays so if all missing chunks are computed
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    ContextChunk& chunk = chunks[i];
    lacks.push_back(chunk.slot.has_value() && LacksBlocks(chunk.slot->format));
    if (chunk.slot.has_value()) continue;
    recomputable = recomputable && IsRecomputable(chunk, rules, lease->rebuild) &&
                   policy::CanContinue(lacks, i * kChunkTokens, state_.kv.geometry.window_reach);
    if (!queue.has_value()) queue = idle_.MakeEvictions();
    const KvFormat format =
        recompute.contains(i) ? KvFormat::kQ8 : LoadFormat(state_.kv, context, i);
    const auto slot = queue->Claim(state_.kv.geometry.ChunkBytes(format), id, evicted);
    if (!slot.has_value()) break;
    if (recompute.contains(i)) {
      lease->claimed[i] = *slot;
      continue;
    }
    state_.kv.pool.Keep(*slot);
    chunk.slot = KvSlot{*slot, format};
    chunk.loading = true;
    loads.push_back({i, *chunk.slot, chunk.stored, state_.kv.pool.Pin(*slot), recomputable});
  }
  return loads;
}

void LeaseChunks::GiveUpLoadSlots(Lease* lease, const std::vector<uint32_t>& missing,
                                  const std::vector<ChunkLoad>& loads) {
  FreeClaimed(&lease->claimed, &state_.kv.pool);  // it had none before
  for (const ChunkLoad& load : loads) state_.kv.pool.Unpin(load.slot.units, load.pin);
  ContextChunks& kv = state_.ContextOf(*lease)->kv;
  for (const uint32_t chunk : missing) {
    if (chunk < kv.chunks.size()) LeaveSlot(&kv.chunks[chunk], &kv, &state_.kv.pool);
  }
}

bool LeaseChunks::IsLoading(std::string_view context_id, const ChunkLoad& load) const {
  const auto found = state_.kv.contexts.find(std::string(context_id));
  if (load.pin != state_.kv.pool.run() || found == state_.kv.contexts.end()) return false;
  const std::vector<ContextChunk>& chunks = found->second.kv.chunks;
  return load.chunk < chunks.size() && chunks[load.chunk].loading &&
         chunks[load.chunk].slot == load.slot;
}

std::vector<ChunkSlot> LeaseChunks::Yield(LeaseId id, std::span<const ChunkLoad> loads,
                                          uint64_t* evicted) {
  std::vector<ChunkSlot> left;
  const absl::StatusOr<Lease*> found = state_.Granted(id);
  if (!found.ok() || (*found)->context_id.empty()) return left;
  Lease& lease = **found;
  std::vector<ContextChunk>& chunks = state_.ContextOf(lease)->kv.chunks;
  std::optional<Evictions> queue;
  for (const ChunkLoad& load : loads) {
    if (!IsLoading(lease.context_id, load)) break;
    SlotAt slot = load.slot.units;
    if (load.slot.format == KvFormat::kQ8) {
      state_.kv.pool.Unpin(slot, load.pin);
      state_.kv.pool.Take(slot, id);
    } else {
      const uint32_t held = state_.HeldChunks(lease);
      if (!room_.HasRoomFor(id, 1, held)) break;
      if (!queue.has_value()) queue = idle_.MakeEvictions();
      const auto claimed = queue->Claim(state_.kv.geometry.ChunkBytes(KvFormat::kQ8), id, evicted);
      if (!claimed.has_value()) break;
      const uint32_t more = Lacking(lease.need, held);
      if (!room_.StandWell(id, {&*claimed, 1}, more)) {
        state_.kv.pool.Free(*claimed);
        break;
      }
      state_.kv.pool.Unpin(slot, load.pin);
      state_.kv.pool.Free(slot);
      slot = *claimed;
    }
    chunks[load.chunk].loading = false;
    chunks[load.chunk].slot.reset();
    lease.claimed[load.chunk] = slot;
    left.push_back({load.chunk, {slot, KvFormat::kQ8}});
  }
  return left;
}

void LeaseChunks::FinishLoad(std::string_view context_id, const std::vector<ChunkLoad>& loads,
                             const std::vector<bool>& read) {
  const auto found = state_.kv.contexts.find(std::string(context_id));
  for (size_t i = 0; i < loads.size(); ++i) {
    const ChunkLoad& load = loads[i];
    if (load.pin != state_.kv.pool.run()) return;  // the arena was emptied meanwhile
    state_.kv.pool.Unpin(load.slot.units, load.pin);
    if (found == state_.kv.contexts.end() || load.chunk >= found->second.kv.chunks.size()) continue;
    ContextChunk& chunk = found->second.kv.chunks[load.chunk];
    if (!chunk.loading || chunk.slot != load.slot) continue;
    chunk.loading = false;
    if (read[i]) continue;
    state_.kv.pool.Free(chunk.slot->units);
    chunk.slot.reset();
    if (chunk.stored == load.stored) state_.kv.copies.GiveUp(std::exchange(chunk.stored, 0));
  }
}

absl::Status LeaseChunks::Fault(LeaseId id, uint32_t chunk) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, state_.Granted(id));
  KvContext* context = state_.ContextOf(*lease);
  if (lease->rebuild) {
    return absl::InvalidArgumentError("fault during a rebuild: claim the chunk, or abort");
  }
  if (context == nullptr || chunk >= context->kv.chunks.size() ||
      !context->kv.chunks[chunk].slot.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fault of chunk ", chunk, ", which is not resident"));
  }
  // No other context keeps, and no later call is given, what does not match.
  const ContextChunk& wrong = context->kv.chunks[chunk];
  if (wrong.shared) DropEverywhere(context, chunk, wrong.slot->units);
  // The slots go to the worker, not to the free list: chunks that it claimed after these must stay
  // contiguous.
  MoveToLease(chunk, id, &context->kv, &lease->claimed, &state_.kv.pool);
  state_.kv.Collect(context);
  return absl::OkStatus();
}

// Of idle contexts. One that a call uses finds out itself.
void LeaseChunks::DropEverywhere(const KvContext* except, uint32_t number, SlotAt slot) {
  for (KvContext* context : state_.kv.ContextsWith(slot, number)) {
    if (context != except && context->idle()) state_.kv.Evict(context, number);
  }
}

absl::StatusOr<ResidentChunks> LeaseChunks::Share(LeaseId id, uint32_t first,
                                                  const std::vector<Identities>& wanted) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, state_.Granted(id));
  KvContext* context = state_.ContextOf(*lease);
  if (context == nullptr || lease->rebuild) {
    return absl::InvalidArgumentError(
        "share: only a call on a context may share chunks of other contexts");
  }
  std::vector<ContextChunk*> best;
  for (const Identities& identities : wanted) {
    for (const std::string& identity : identities) {
      if (identity.size() == kIdentityBytes) continue;
      return absl::InvalidArgumentError(absl::StrCat("share: an identity of ", identity.size(),
                                                     " bytes; must be ", kIdentityBytes));
    }
    std::vector<ContextChunk*> equal = state_.kv.FindEqual(*context, first, identities);
    // What others have in fewer bits is computed: a new context is exact.
    const auto end = std::find_if(equal.begin(), equal.end(), [&](const ContextChunk* chunk) {
      return chunk == nullptr || !state_.kv.MayStandFor(*chunk, KvFormat::kQ8);
    });
    equal.erase(end, equal.end());
    // What lacks blocks is of use only if the call's tokens do not read them.
    std::vector<bool> lacks = Lacking(state_.kv, *context);
    lacks.resize(first);
    for (const ContextChunk* chunk : equal) lacks.push_back(LacksBlocks(chunk->slot->format));
    const auto chunks = static_cast<uint32_t>(lacks.size());
    const uint32_t keep = policy::ContinuableChunks(lacks, chunks, state_.kv.geometry.window_reach);
    equal.resize(std::max(keep, first) - first);
    if (equal.size() > best.size()) best = std::move(equal);
  }
  ResidentChunks shared;
  const bool claimed = !lease->claimed.empty() && lease->claimed.rbegin()->first >= first;
  if (best.empty() || claimed || HeldPrefix(lease->claimed, context->kv) < first) return shared;
  Truncate(first, &context->kv, &state_.kv.pool);
  for (ContextChunk* equal : best) {
    const auto number = static_cast<uint32_t>(context->kv.chunks.size());
    ContextChunk& chunk = context->kv.chunks.emplace_back();
    chunk.identity = equal->identity;
    state_.kv.Share(&chunk, equal);
    shared.push_back({{number, *chunk.slot}, chunk.identity});
  }
  if (room_.OthersAdmitted(id) &&
      !room_.CanAllFinishNow()) {  // the slots would stay where others need them
    Truncate(first, &context->kv, &state_.kv.pool);
    state_.kv.Collect(context);
    shared.clear();
    return shared;
  }
  lease->told = std::max(lease->told, HeldPrefix(lease->claimed, context->kv));
  state_.kv.Collect(context);
  return shared;
}

}  // namespace withy::context_store
