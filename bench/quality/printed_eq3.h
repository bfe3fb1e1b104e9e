// Which KV chunks lose bits by LLMS's eq. 3 as printed: it multiplies densities by 1 / ratio, so
// that it rewards compression, and for densities as attention has them gives every chunk the same
// format. Neighbours: kv_ratios.h compares; policy/kv/kv_precision.h is what the store does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/kv/kv_precision.h"

namespace withy::bench {

// Formats by chunk, of chunks none of which is pinned or has lost bits: eq. 3 maximised over the
// thresholds of eq. 2, within `budget_bytes` as equally as whole chunks allow. Empty: no thresholds
// do. `formats`: as of policy::ChooseFormats.
std::vector<policy::KvFormatIndex> FormatsByPrintedEq3(
    std::span<const policy::KvFormatCost> formats, std::span<const policy::DensityChunk> chunks,
    uint64_t budget_bytes);

}  // namespace withy::bench
