// Which chunks of a context lack the blocks of layers with a sliding window, or may lack them
// (policy/kv/kv_window.h). Functions of ArenaKv's state, under its lock. Neighbours:
// idle/kv_compressor.h takes such blocks out of the arena, disk/kv_storage.h does not write them,
// lease/lease_chunks.h sees to it that no call is to compute what would read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "context_store/arena/arena_kv.h"

namespace withy::context_store {

// Whether windows hide the chunk from all tokens that are to come.
bool IsHidden(const ArenaKv& kv, const KvContext& context, uint32_t number);
// Whether the chunk may lack the blocks of layers with a window: it is hidden, and no part of a
// prefix that others have, too: another context may begin with that and then differ.
bool MayLack(const ArenaKv& kv, const KvContext& context, uint32_t number);
// The format of the slot that the chunk's copy is read into.
KvFormat LoadFormat(const ArenaKv& kv, const KvContext& context, uint32_t number);
// By chunk: whether what calls would get lacks blocks: its slot, or else what is read.
std::vector<bool> Lacking(const ArenaKv& kv, const KvContext& context);
// Bytes that the context's chunks take which are not in the arena.
uint64_t BytesToLoad(const ArenaKv& kv, const std::string& context_id);

// Copies that lack blocks which are not hidden any more, because the context is shorter, are given
// up, as far as the chunk in the arena has the blocks.
void GiveUpLackingCopies(const ArenaKv& kv, KvContext* context);
// Keeps as many of an idle context's first `keep_chunks` chunks as a call can continue behind.
void KeepUsable(ArenaKv* kv, KvContext* context, size_t keep_chunks);

}  // namespace withy::context_store
