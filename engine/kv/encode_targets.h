// The builds of the encoder, one for each instruction set. Neighbours: encode.cc chooses.
#pragma once

#include <cstddef>

#include "engine/kv/block.h"

namespace withy::engine {

// Encodes one head; `in` and `out` are blocks.
using EncodeHeadFn = void (*)(const KvGeometry& g, int head, const std::byte* in, KvFormat from,
                              KvFormat to, std::byte* out);

EncodeHeadFn PortableEncodeHead();
// nullptr if the CPU lacks AVX2 or FMA, or the build is not for x86.
EncodeHeadFn Avx2EncodeHead();

}  // namespace withy::engine
