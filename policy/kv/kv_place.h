// Where the KV of a chunk is, and the actions that move it. A chunk is 16 tokens of a context, all
// layers. Pure. Neighbours: kv_precision.h, kv_eviction.h, kv_load_plan.h and kv_disk.h decide
// which actions to take; context_store carries them out.
//
// What each action makes of a place ("-": impossible):
//
//   action       resident           resident, with copy        stored              to be recomputed
//   kDemote      fewer bits         fewer bits, copy stays     -                   -
//   kWrite       with copy          with copy of its format    -                   -
//   kDrop        to be recomputed   stored                     -                   -
//   kDeleteCopy  -                  resident, without copy     to be recomputed    -
//   kRead        -                  the copy's format (1)      resident, with copy -
//   kRecompute   format 0 (2)       format 0 (2), copy stays   format 0, with copy format 0
//
//   (1) only if the copy has more bits   (2) only if it has another format
//
// Source: LLMS sections 3.1 (Reclaim, Load, Fault) and 3.3 (recompute). Ours adds the copy that a
// resident chunk may have on disk: a chunk with a copy leaves the arena without a write.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "absl/status/statusor.h"

namespace withy::policy {

// How the KV of a chunk is coded: an index into the formats of the model, which are ordered from
// the most bytes to the fewest. 0 is the working format, in which KV is computed.
using KvFormatIndex = uint8_t;

// Neither in the arena nor on disk: it can only be computed again, from the text.
struct KvToRecompute {
  bool operator==(const KvToRecompute&) const = default;
};

// On disk only.
struct KvStored {
  KvFormatIndex format = 0;
  bool operator==(const KvStored&) const = default;
};

// In the arena, where attention reads it.
struct KvResident {
  KvFormatIndex format = 0;
  // Format of the copy on disk, which may have more or fewer bits. None: there is no copy.
  std::optional<KvFormatIndex> copy = std::nullopt;
  bool operator==(const KvResident&) const = default;
};

using KvPlace = std::variant<KvToRecompute, KvStored, KvResident>;

struct KvAction {
  enum class Kind {
    kDemote,      // recode the chunk in the arena with fewer bits
    kWrite,       // store a copy of the resident chunk, in its format, in place of an older copy
    kDrop,        // free the chunk's place in the arena
    kDeleteCopy,  // give up the copy on disk, or find it lost or wrong
    kRead,        // read the copy into the arena
    kRecompute,   // compute the chunk from the text
  };
  Kind kind = Kind::kDrop;
  KvFormatIndex format = 0;  // the new one; of kDemote only
  bool operator==(const KvAction&) const = default;
};

// The place of a chunk at `place` after `action`. Errors: FAILED_PRECONDITION naming the action and
// the place, where the table above has no entry.
absl::StatusOr<KvPlace> ApplyAction(const KvAction& action, const KvPlace& place);

}  // namespace withy::policy
