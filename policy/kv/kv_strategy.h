// How the store treats the KV of idle contexts, as one value: its precision, what leaves the arena,
// when it is written, how it comes back. Pure. Neighbours: kv_precision.h, kv_eviction.h and
// kv_load_plan.h have the parts; context_store carries a strategy out. The service runs `withy`;
// the others are the systems that it is compared with, on the same store, segments and formats.
//
//   name     KV       fewer bits         on disk  written         leaves       comes back
//   withy    8 bits   at need, density   yes      after a call    LCTRU        read, recomputed
//   llms     8 bits   after a call       yes      after a call    LCTRU        read, recomputed
//   lmk      8 bits   no                 no       -               contexts     recomputed
//   swap     8 bits   no                 yes      when it leaves  contexts     read
//   vllm-s   16 bits  no                 yes      when it leaves  chunks, LRU  read
//   vllm-sq  8 bits   no                 yes      when it leaves  chunks, LRU  read
//   cake     8 bits   no                 yes      after a call    LCTRU        Cake
//
// With `withy` and `llms` a call's own prompt goes through a layer as soon as that layer's KV is
// there; with the other systems, when all KV is. `llms` brings each context to the ratio when its
// call has ended, as LLMS does. Ablations are `withy` with one technique exchanged, and
// `llms-uniform`:
//   llms-uniform      `llms` with one format for all chunks, the largest that keeps the ratio
//   withy-8bit        no compression
//   withy-read        what is on disk is read, not recomputed
//   withy-lazy        written when it leaves, chunks by LRU
//   withy-whole       a call's own prompt waits until all KV is there
//
// Source: LLMS section 4 (baselines) and section 5.3 (ablations); Cake is arXiv 2410.03065. LLMS
// stores KV at 8 bits by default; VLLM-S is without compression, so at 16 bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "policy/kv/kv_eviction.h"
#include "policy/kv/kv_load_plan.h"
#include "policy/kv/kv_precision.h"

namespace withy::policy {

struct KvStrategy {
  std::string_view name = "withy";
  // Bits in which KV is computed: 8, or 16 for comparisons.
  uint32_t working_bits = 8;
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
  // Whether a call's own prompt is computed layer by layer while the KV before it is loaded. Of the
  // worker: benchmarks obey it, the store tells layers in any case.
  bool computes_meanwhile = true;

  bool operator==(const KvStrategy&) const = default;
};

// In the order of the table above.
std::vector<std::string> KvStrategyNames();
// Errors: INVALID_ARGUMENT listing the names.
absl::StatusOr<KvStrategy> FindKvStrategy(std::string_view name);

}  // namespace withy::policy
