// Which tokens of a context have to be computed: all that are new, and those of reused chunks that
// the store has yielded. Pure. Neighbours: policy/kv/kv_load.h says which chunks these are,
// context_kv.h has the slots.
#pragma once

#include <cstdint>

#include "policy/kv/kv_load.h"

namespace withy::serving {

// Chunks that `tokens` tokens take.
int32_t ChunksFor(int32_t tokens);

// A view: valid until the load or the number of reused tokens changes. Positions are from token 0
// on. A token is missing if it is new or of a chunk that has to be recomputed; KV of all others is
// only read.
class KvHoles {
 public:
  KvHoles(const policy::KvLoad& load, int32_t reused_tokens)
      : load_(load), reused_tokens_(reused_tokens) {}

  // The first token of a chunk that is being read from disk; the first new one if none is.
  int32_t FirstReading() const;
  // The first missing token at or behind `at`.
  int32_t SkipPresent(int32_t at) const;
  // How many of the tokens [from, to) are missing.
  int32_t Count(int32_t from, int32_t to) const;
  // The first missing token behind the first `count` missing ones at or behind `from`.
  int32_t After(int32_t from, int32_t count) const;
  // The first chunk to compute at or behind chunk `from`; KvLoad::kNone: there is none.
  uint32_t NextToCompute(int32_t from) const;

 private:
  const policy::KvLoad& load_;
  const int32_t reused_tokens_;
};

}  // namespace withy::serving
