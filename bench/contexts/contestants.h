// The systems that withy's way to keep KV is compared with, on the same store, segments and
// formats. Neighbours: contestant_store_main.cc is a store that treats KV as one of them does,
// contexts_run.h measures it.
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
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "policy/kv/kv_strategy.h"

namespace withy::bench {

struct Contestant {
  std::string_view name = "withy";
  policy::KvStrategy store = {};
  uint32_t working_bits = 8;       // in which KV is computed
  bool computes_meanwhile = true;  // a call's own prompt, while the KV before it is loaded
};

// The store that plays a contestant, and the variable that names it.
inline constexpr char kContestantStore[] = "withy-bench-context-store";
inline constexpr char kContestantVariable[] = "WITHY_CONTESTANT";

// Errors: INVALID_ARGUMENT listing the names.
absl::StatusOr<Contestant> FindContestant(std::string_view name);

}  // namespace withy::bench
