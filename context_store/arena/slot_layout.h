// How slots lie in the arena: where there is room, and where there would be. Pure. Neighbours:
// slot_pool.h has the slots, idle_kv.h moves and evicts them by this.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "context_store/arena/slot_pool.h"

namespace withy::context_store {

// Bytes of the largest gap. What is free beyond it is fragmented.
uint64_t LargestGap(const SlotPool& pool);
// How many slots of `bytes` the gaps hold.
uint64_t PlacesInGaps(const SlotPool& pool, uint64_t bytes);
// How many slots of `bytes` there would be room for if all slots but `staying`, and those that are
// quarantined for a writer, were gaps. Slots in `staying` that do not exist are ignored.
uint64_t PlacesBeside(const SlotPool& pool, std::vector<SlotAt> staying, uint64_t bytes);
// The slots to Slide, in this order, so that the gaps hold one more slot of `bytes`: those with the
// fewest bytes. Empty: no slides achieve it. Only slots for which `may_slide` holds are moved; it
// is asked about resident slots that are not pinned.
std::vector<SlotAt> CheapestSlides(const SlotPool& pool, uint64_t bytes,
                                   const std::function<bool(SlotAt slot)>& may_slide);
// The pages that are out of use.
std::vector<SlotPool::Pages> WithheldPages(const SlotPool& pool);
// Whether slots and gaps fill the space without overlap, no gap touches another one, and the counts
// are those of the slots. For audits.
bool FillsItsSpace(const SlotPool& pool);

}  // namespace withy::context_store
