// Decoders of the blocks that quants.cc has not: K-quants of 2, 3 and 8 bits, and the types with a
// table of values or with three values. Neighbour: quants.h, whose functions take every type; call
// those. Plain scalar code that runs at import.
#pragma once

#include <cstdint>

#include "engine/gguf/types.h"

namespace withy::engine {

// Writes the elements of one block to `out` ([block_elements] of the type).
using BlockDecoder = void (*)(const uint8_t* block, float* out);

// Null for a type that is not decoded here. Here are Q2_K, Q3_K, Q8_K, IQ4_NL, IQ4_XS, MXFP4,
// TQ1_0 and TQ2_0.
BlockDecoder FindLowBitDecoder(GgmlType type);

// Writes one block as whole numbers and scales: element i is scales[i / 32] * quants[i], with the
// same result as the block's decoder.
using BlockSplitter = void (*)(const uint8_t* block, float* scales, int8_t* quants);

// Types whose blocks of 32 elements have one scale and quants in -128..127: Q5_0, Q8_0, Q3_K, Q8_K,
// IQ4_NL, IQ4_XS, MXFP4, TQ1_0 and TQ2_0. Null for other types.
BlockSplitter FindBlockSplitter(GgmlType type);

}  // namespace withy::engine
