#include "context_store/lease/idle_kv.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "context_store/arena/hidden_kv.h"
#include "context_store/arena/slot_layout.h"
#include "context_store/invariant.h"

namespace withy::context_store {
namespace {

// From the most bits to the fewest, for the order of evictions.
policy::KvFormatIndex EvictionIndex(KvFormat format) {
  constexpr int kMostBits = 32;
  return static_cast<policy::KvFormatIndex>(kMostBits - engine::KBits(format) -
                                            engine::VBits(format));
}

policy::EvictableChunk Describe(const ContextChunk& chunk, bool has_copy,
                                const Geometry& geometry) {
  policy::EvictableChunk evictable;
  evictable.place.format = EvictionIndex(chunk.slot->format);
  if (has_copy) evictable.place.copy = EvictionIndex(chunk.stored_format);
  evictable.bytes = geometry.ChunkBytes(chunk.slot->format);
  return evictable;
}

}  // namespace

Evictions::Evictions(ArenaKv& kv, policy::EvictionPolicy policy, const KvContext* except,
                     bool copies_only)
    : kv_(&kv), policy_(policy), except_(except), copies_only_(copies_only) {}

std::optional<SharedUse> Evictions::UseOf(const KvContext& context, const ContextChunk& chunk,
                                          const SharedUses& shared) const {
  if (!chunk.slot.has_value()) return std::nullopt;
  SharedUse use{.copies = chunk.HasExactCopy(), .latest = &context};
  if (chunk.shared) use = shared.at(chunk.slot->units);
  const bool may_leave = use.idle && use.latest == &context && (use.copies || !copies_only_);
  return may_leave ? std::optional(use) : std::nullopt;
}

uint64_t Evictions::bytes() const {
  uint64_t bytes = 0;
  const SharedUses shared = kv_->UsesOfShared(except_);
  for (const auto& [id, context] : kv_->contexts) {
    if (!context.idle() || &context == except_) continue;
    for (const ContextChunk& chunk : context.kv.chunks) {
      if (UseOf(context, chunk, shared).has_value()) {
        bytes += kv_->geometry.ChunkBytes(chunk.slot->format);
      }
    }
  }
  return bytes;
}

void Evictions::Plan(uint64_t bytes) {
  std::vector<policy::EvictableChunk> chunks;
  std::vector<Candidate> candidates;
  const SharedUses shared = kv_->UsesOfShared(except_);
  uint32_t number = 0;
  uint64_t available = 0;
  for (auto& [id, context] : kv_->contexts) {
    ++number;
    if (!context.idle() || &context == except_) continue;
    for (uint32_t i = 0; i < context.kv.chunks.size(); ++i) {
      const ContextChunk& chunk = context.kv.chunks[i];
      const std::optional<SharedUse> use = UseOf(context, chunk, shared);
      if (!use.has_value()) continue;
      policy::EvictableChunk& evictable =
          chunks.emplace_back(Describe(chunk, use->copies, kv_->geometry));
      evictable.context = number;
      evictable.position = i;
      evictable.last_used = context.last_used;
      available += evictable.bytes;
      candidates.push_back({id, &context, i});
    }
  }
  plan_.clear();
  next_ = 0;
  for (const size_t chunk : policy::PlanKvEviction(chunks, std::min(bytes, available), policy_)) {
    plan_.push_back(candidates[chunk]);
  }
}

const std::vector<Evictions::Candidate>& Evictions::Next(uint64_t bytes) {
  Plan(bytes);
  return plan_;
}

// False if the chunk has left meanwhile.
bool Evictions::Evict(const Candidate& candidate, uint64_t* evicted) {
  const std::vector<ContextChunk>& chunks = candidate.context->kv.chunks;
  if (candidate.chunk >= chunks.size() || !chunks[candidate.chunk].slot.has_value()) return false;
  for (KvContext* context : kv_->ContextsWith(candidate.context, candidate.chunk)) {
    kv_->Evict(context, candidate.chunk);
  }
  ++*evicted;
  return true;
}

bool Evictions::EvictNext(uint64_t wanted_bytes, uint64_t* evicted) {
  for (;;) {
    while (next_ < plan_.size()) {
      const Candidate candidate = plan_[next_++];
      if (!Evict(candidate, evicted)) continue;
      const auto same_context = [&] {
        return next_ < plan_.size() && plan_[next_].context == candidate.context;
      };
      while (policy_ == policy::EvictionPolicy::kContextLru && same_context()) {
        Evict(plan_[next_++], evicted);
      }
      return true;
    }
    // Twice as far as the last time: what was freed may lie in many small gaps.
    planned_bytes_ = std::max(wanted_bytes, 2 * planned_bytes_);
    Plan(planned_bytes_);
    if (plan_.empty()) return false;
  }
}

std::optional<SlotAt> Evictions::Claim(uint64_t bytes, uint64_t owner, uint64_t* evicted) {
  for (;;) {
    const std::optional<SlotAt> slot = kv_->pool.Claim(bytes, owner);
    if (slot.has_value()) return slot;
    if (EvictNext(bytes, evicted)) continue;
    if (kv_->pool.counts().withheld == 0) return std::nullopt;
    kv_->pool.GiveBack(bytes);
  }
}

std::vector<ContextChunk> IdleKv::Chunks(std::string_view context_id) const {
  const KvContext* context = std::as_const(kv_).FindIdle(context_id);
  return context == nullptr ? std::vector<ContextChunk>() : context->kv.chunks;
}

bool IdleKv::ClaimSlots(uint64_t count, LeaseId lease, bool evict, uint64_t* evicted,
                        std::vector<SlotAt>* slots) {
  const uint64_t bytes = kv_.geometry.ChunkBytes(KvFormat::kQ8);
  const auto claim_free = [&] {
    while (slots->size() < count) {
      const std::optional<SlotAt> slot = kv_.pool.Claim(bytes, lease);
      if (!slot.has_value()) return false;
      slots->push_back(*slot);
    }
    return true;
  };
  if (claim_free()) return true;
  if (evict) {
    Evictions evictions = MakeEvictions();
    const uint64_t missing = (count - slots->size()) * bytes;
    const SlotPool::Counts& counts = kv_.pool.counts();
    if (missing <= counts.free + counts.withheld + evictions.bytes()) {
      while (slots->size() < count) {
        const std::optional<SlotAt> slot = evictions.Claim(bytes, lease, evicted);
        if (!slot.has_value()) break;
        slots->push_back(*slot);
      }
      if (slots->size() == count) return true;
    }
  }
  for (const SlotAt slot : *slots) kv_.pool.Free(slot);
  slots->clear();
  return false;
}

void IdleKv::EvictAll(uint64_t* evicted) {
  Evictions evictions = MakeEvictions();
  while (evictions.EvictNext(kv_.pool.counts().total, evicted)) {
  }
  GiveBack(kv_.pool.counts().withheld);
}

std::vector<SlotPool::Pages> IdleKv::Withhold(uint64_t bytes, uint64_t page_bytes,
                                              uint64_t* evicted) {
  std::vector<SlotPool::Pages> withheld;
  Evictions evictions(kv_, policy_, nullptr, /*copies_only=*/true);
  for (uint64_t left = bytes; left >= page_bytes;) {
    // Small gaps are left to calls until they have grown: pages come back in whole pieces.
    const bool worth_it = LargestGap(kv_.pool) >= std::min(left, 16 * page_bytes);
    if (!worth_it && evictions.EvictNext(left, evicted)) continue;
    const std::optional<SlotPool::Pages> pages = kv_.pool.Withhold(left, page_bytes);
    if (!pages.has_value()) break;
    withheld.push_back(*pages);
    left -= std::min(left, pages->bytes);
  }
  return withheld;
}

std::optional<ChunkWork> IdleKv::BeginWork(std::string_view context_id, uint32_t number) {
  const KvContext* context = kv_.FindIdle(context_id);
  if (context == nullptr || number >= context->kv.chunks.size()) return std::nullopt;
  const ContextChunk& chunk = context->kv.chunks[number];
  if (!chunk.slot.has_value()) return std::nullopt;
  return ChunkWork{.context_id = std::string(context_id),
                   .chunk = number,
                   .from = *chunk.slot,
                   .identity = chunk.identity.identity,
                   .pin = kv_.pool.Pin(chunk.slot->units),
                   .rewrite = chunk.was_stored || chunk.stored != 0};
}

ContextChunk* IdleKv::EndWork(const ChunkWork& work) {
  // The chunk as it is now, if it is idle and what it was at the beginning.
  ContextChunk* same = nullptr;
  if (KvContext* context = kv_.FindIdle(work.context_id);
      context != nullptr && work.chunk < context->kv.chunks.size()) {
    ContextChunk& chunk = context->kv.chunks[work.chunk];
    if (chunk.slot == work.from && chunk.identity.identity == work.identity) same = &chunk;
  }
  kv_.pool.Unpin(work.from.units, work.pin);
  return same;
}

std::vector<std::vector<bool>> IdleKv::KeptFormats(const std::vector<std::string>& context_ids,
                                                   size_t latest) const {
  std::unordered_set<SlotAt> kept;
  for (const auto& [id, other] : kv_.contexts) {
    const std::vector<ContextChunk>& chunks = other.kv.chunks;
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (chunks[i].shared && (!other.idle() || i + latest >= chunks.size())) {
        kept.insert(chunks[i].slot->units);
      }
    }
  }
  std::vector<std::vector<bool>> keeps(context_ids.size());
  for (size_t i = context_ids.size(); i-- > 0;) {
    const KvContext* context = std::as_const(kv_).FindIdle(context_ids[i]);
    if (context == nullptr) continue;
    for (const ContextChunk& chunk : context->kv.chunks) {
      keeps[i].push_back(chunk.shared && kept.contains(chunk.slot->units));
    }
    for (const ContextChunk& chunk : context->kv.chunks) {
      if (chunk.shared) kept.insert(chunk.slot->units);
    }
  }
  return keeps;
}

uint64_t IdleKv::ExactRoom() const {
  const Evictions evictions(kv_, policy_, nullptr, /*copies_only=*/true);
  return kv_.pool.counts().free + evictions.bytes();
}

std::vector<std::string> IdleKv::ByUse() const {
  std::vector<const KvContext*> idle;
  for (const auto& [id, context] : kv_.contexts) {
    if (context.idle()) idle.push_back(&context);
  }
  std::sort(idle.begin(), idle.end(),
            [](const KvContext* a, const KvContext* b) { return a->last_used < b->last_used; });
  std::vector<std::string> ids;
  for (const KvContext* context : idle) ids.push_back(context->id);
  return ids;
}

uint64_t IdleKv::Compact(uint64_t count, uint64_t most_bytes, const MoveBytes& move) {
  const uint64_t bytes = kv_.geometry.ChunkBytes(KvFormat::kQ8);
  struct Owner {
    KvContext* context;
    uint32_t chunk;
  };
  std::unordered_multimap<SlotAt, Owner> owners;
  std::unordered_set<SlotAt> fixed;
  for (auto& [id, context] : kv_.contexts) {
    for (uint32_t i = 0; i < context.kv.chunks.size(); ++i) {
      const ContextChunk& chunk = context.kv.chunks[i];
      if (!chunk.slot.has_value()) continue;
      owners.emplace(chunk.slot->units, Owner{&context, i});
      if (!context.idle()) fixed.insert(chunk.slot->units);
    }
  }
  const auto may_slide = [&](SlotAt slot) {
    return owners.contains(slot) && !fixed.contains(slot);
  };
  uint64_t moved = 0;
  while (PlacesInGaps(kv_.pool, bytes) < count && moved < most_bytes) {
    const std::vector<SlotAt> slides = CheapestSlides(kv_.pool, bytes, may_slide);
    if (slides.empty()) break;
    for (const SlotAt from : slides) {
      const std::optional<SlotAt> to = kv_.pool.Slide(from);
      if (!to.has_value()) continue;
      move(from, *to, kv_.pool.at(*to).bytes());
      moved += kv_.pool.at(*to).bytes();
      std::vector<Owner> of_slot;
      const auto [first, last] = owners.equal_range(from);
      for (auto owner = first; owner != last; ++owner) of_slot.push_back(owner->second);
      owners.erase(first, last);
      for (const Owner& owner : of_slot) {
        owner.context->kv.chunks[owner.chunk].slot->units = *to;
        kv_.Describe(*owner.context, owner.chunk);
        owners.emplace(*to, owner);
      }
    }
  }
  return moved;
}

std::vector<IdleKv::HiddenChunk> IdleKv::Hidden(uint64_t bytes) const {
  std::vector<HiddenChunk> hidden;
  if (kv_.geometry.window_reach == 0) return hidden;
  const uint64_t freed =
      kv_.geometry.ChunkBytes(KvFormat::kQ8) - kv_.geometry.ChunkBytes(KvFormat::kQ8Global);
  for (const std::string& id : ByUse()) {
    const KvContext& context = kv_.contexts.at(id);
    for (uint32_t i = 0; i < context.kv.chunks.size() && IsHidden(kv_, context, i); ++i) {
      const std::optional<KvSlot>& slot = context.kv.chunks[i].slot;
      const bool whole = slot.has_value() && slot->format == KvFormat::kQ8;
      if (!whole || !MayLack(kv_, context, i)) continue;
      if (hidden.size() * freed >= bytes) return hidden;
      hidden.push_back({id, i});
    }
  }
  return hidden;
}

std::optional<ChunkWork> IdleKv::BeginDemotion(std::string_view context_id, uint32_t chunk,
                                               KvFormat to) {
  std::optional<ChunkWork> work = BeginWork(context_id, chunk);
  if (!work.has_value()) return work;
  const KvContext& context = kv_.contexts.at(work->context_id);
  const KvFormat from = work->from.format;
  const bool possible = LacksBlocks(to) ? from == KvFormat::kQ8 && MayLack(kv_, context, chunk)
                                        : HasFewerBits(to, from) && !LacksBlocks(from);
  // To an unfinished chunk tokens will be written.
  if (context.kv.chunks[chunk].identity.tokens != kChunkTokens || !possible) {
    EndWork(*work);
    return std::nullopt;
  }
  return work;
}

std::optional<KvSlot> IdleKv::FinishDemotion(const ChunkWork& work, KvFormat to) {
  const bool current = work.pin == kv_.pool.run();
  ContextChunk* chunk = EndWork(work);
  if (!current || chunk == nullptr) return std::nullopt;
  KvContext& context = kv_.contexts.at(work.context_id);
  const std::vector<KvContext*> with = kv_.ContextsWith(&context, work.chunk);
  // While the disk is written from the slot, its place does not become free.
  const bool may = !LacksBlocks(to) || MayLack(kv_, context, work.chunk);
  const bool idle =
      std::all_of(with.begin(), with.end(), [](const KvContext* one) { return one->idle(); });
  if (!may || !idle || kv_.pool.at(work.from.units).pins > 0) return std::nullopt;
  for (KvContext* one : with) {
    LeaveSlot(&one->kv.chunks[work.chunk], &one->kv, &kv_.pool);
    kv_.Collect(one);
  }
  const std::optional<SlotAt> slot = kv_.pool.Claim(kv_.geometry.ChunkBytes(to), kStoresOwn);
  Invariant(slot.has_value(), "a smaller slot fits the place of a larger one");
  kv_.pool.Keep(*slot);
  // The copy in the former format stays until one in the new format is written: without it, nothing
  // behind the chunk would be of use after a restart.
  ContextChunk* first = nullptr;
  for (KvContext* one : with) {
    ContextChunk& its = one->kv.chunks[work.chunk];
    if (first == nullptr) {
      first = &its;
      its.slot = KvSlot{*slot, to};
    } else {
      kv_.Join(&its, first);
    }
    kv_.Describe(*one, work.chunk);
  }
  return first->slot;
}

std::optional<ChunkWork> IdleKv::BeginWrite(std::string_view context_id, uint32_t chunk) {
  std::optional<ChunkWork> work = BeginWork(context_id, chunk);
  if (work.has_value() &&
      IsWritten(kv_.contexts.at(work->context_id).kv.chunks[chunk], work->from.format)) {
    EndWork(*work);
    return std::nullopt;
  }
  if (work.has_value()) {
    const bool lacks = work->from.format == KvFormat::kQ8 &&
                       MayLack(kv_, kv_.contexts.at(work->context_id), chunk);
    work->to = lacks ? KvFormat::kQ8Global : work->from.format;
  }
  return work;
}

std::vector<ChunkWork> IdleKv::BeginSwapOut(uint64_t bytes) {
  std::vector<ChunkWork> work;
  const uint64_t free = kv_.pool.counts().free;
  if (bytes <= free) return work;
  Evictions evictions = MakeEvictions();
  for (const Evictions::Candidate& next : evictions.Next(bytes - free)) {
    for (const KvContext* context : kv_.ContextsWith(next.context, next.chunk)) {
      std::optional<ChunkWork> one = BeginWrite(context->id, next.chunk);
      if (!one.has_value()) continue;
      work.push_back(*std::move(one));
      break;  // the others borrow the copy
    }
  }
  return work;
}

bool IdleKv::FinishWrite(const ChunkWork& work, StoredCopy stored) {
  const bool current = work.pin == kv_.pool.run();
  ContextChunk* chunk = EndWork(work);
  // A chunk may have borrowed a copy meanwhile.
  if (!current || chunk == nullptr || stored == 0 || IsWritten(*chunk, work.from.format)) {
    return false;
  }
  KvContext& context = kv_.contexts.at(work.context_id);
  // A call has come and gone meanwhile: what was left out may be wanted.
  if (work.to != work.from.format && !MayLack(kv_, context, work.chunk)) return false;
  const std::vector<KvContext*> with = kv_.ContextsWith(&context, work.chunk);
  for (KvContext* one : with) {
    ContextChunk& its = one->kv.chunks[work.chunk];
    if (!IsWritten(its, work.from.format)) GiveUpCopy(&its, &one->kv);
    kv_.Collect(one);
  }
  chunk->stored = stored;
  chunk->stored_format = work.to;
  for (KvContext* other : with) kv_.copies.Borrow(&other->kv.chunks[work.chunk], *chunk);
  return true;
}

std::set<std::string> IdleKv::ForgetCopies(const std::set<StoredCopy>& copies) {
  std::set<std::string> had;
  for (const StoredCopy copy : copies) kv_.copies.Forget(copy);
  for (auto it = kv_.contexts.begin(); it != kv_.contexts.end();) {
    ContextChunks& kv = it->second.kv;
    for (size_t i = 0; i < kv.chunks.size(); ++i) {
      ContextChunk& chunk = kv.chunks[i];
      if (!copies.contains(chunk.stored)) continue;
      chunk.stored = 0;
      had.insert(it->first);
      if (chunk.slot.has_value()) continue;
      if (it->second.idle()) {
        KeepUsable(&kv_, &it->second, i);
      } else {
        Truncate(i, &kv, &kv_.pool);
      }
    }
    kv_.Collect(&it->second);
    it = it->second.unused() ? kv_.contexts.erase(it) : std::next(it);
  }
  return had;
}

uint32_t IdleKv::Deduplicate(std::string_view context_id) {
  KvContext* context = kv_.FindIdle(context_id);
  if (context == nullptr) return 0;
  const uint32_t shared = kv_.Deduplicate(context);
  if (shared > 0) kv_.Describe(context->id);
  return shared;
}

std::optional<IdleKv::Upgrade> IdleKv::NextUpgrade() const {
  constexpr uint32_t kFullPercent = 100;
  std::optional<Upgrade> best;
  uint64_t best_used = 0;
  for (const auto& [context_id, context] : kv_.contexts) {
    if (!context.idle() || context.no_room == context.last_used) continue;
    uint32_t lowest = kFullPercent;
    for (const ContextChunk& chunk : context.kv.chunks) {
      lowest = std::min(lowest, chunk.identity.model_level_percent);
    }
    if (lowest == kFullPercent || (best.has_value() && context.last_used < best_used)) continue;
    best = {context_id, lowest};
    best_used = context.last_used;
  }
  return best;
}

}  // namespace withy::context_store
