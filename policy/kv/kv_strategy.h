// How the store treats the KV of idle contexts, as one value: its precision, what leaves the arena,
// when it is written, how it comes back. The service has the default; a benchmark starts the same
// store with another one. Neighbours: kv_precision.h, kv_eviction.h and kv_load_plan.h have the
// parts; context_store carries a strategy out; bench/contexts/contestants.h has the systems that it
// is compared with.
#pragma once

#include <optional>

#include "policy/kv/kv_eviction.h"
#include "policy/kv/kv_load_plan.h"
#include "policy/kv/kv_precision.h"

namespace withy::policy {

struct KvStrategy {
  // Which chunks of an idle context lose bits where room is needed; none: no chunk does.
  std::optional<PrecisionPolicy> precision = PrecisionPolicy::kDensity;
  // True: a context is brought to the ratio when its call has ended. False: chunks lose bits only
  // while the arena needs room that no exact measure makes (kv_demotion.h).
  bool compresses_ahead = false;
  // kContextLru: whole contexts leave, else chunks.
  EvictionPolicy eviction = EvictionPolicy::kLctru;
  // Of chunks that are not in the arena when their context is called.
  LoadPolicy load = LoadPolicy::kPrefix;
  bool uses_disk = true;
  // True: KV is written when its call has ended. False: when it leaves the arena, while the call
  // that needs the room waits.
  bool writes_ahead = true;

  bool operator==(const KvStrategy&) const = default;
};

}  // namespace withy::policy
