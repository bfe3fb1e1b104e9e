// Which calls may take KV of an arena that all of them share, so that none is ever cut because of
// another one. Pure. Neighbour: context_store/lease/lease_table.h asks before it admits a call and
// before it gives a call more room; whoever has to wait is asked about again when a call ends.
//
// A call may come to need its prompt and its longest answer, which few calls use up. To set that
// aside for each would leave most of the arena empty; to give room as it is asked for can end with
// every call waiting for another one. So room is given as long as some order is left in which all
// calls can be answered in full, one after another. Source: the banker's algorithm (Dijkstra, EWD
// 623); LLMS has one call at a time.
#pragma once

#include <cstdint>
#include <vector>

namespace withy::policy {

// A call that holds KV. In chunks of the working precision.
struct KvHolder {
  uint32_t more = 0;   // that it may still come to need
  uint32_t freed = 0;  // of those that it holds now, those that others may have when it ends
};

// Whether all calls can be answered in full, in some order, when `places` chunks may be taken now.
bool AllCanFinish(uint64_t places, std::vector<KvHolder> calls);

// Chunks that may be claimed with each of `leases` leases before its call has come and said what it
// needs, so that an arena of `arena` chunks holds a window of `window` chunks beside them. Each may
// lie across the place of another one. At most kMostAhead.
inline constexpr int32_t kMostAhead = 16;
int32_t ChunksAhead(int32_t arena, int32_t window, int32_t leases);

// So often may later calls be admitted before one that waits: a small call need not wait until a
// large one has ended, and the large one gets its turn.
inline constexpr uint32_t kMostOvertaken = 16;

}  // namespace withy::policy
