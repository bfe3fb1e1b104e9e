#include "policy/kv/kv_demotion.h"

#include <algorithm>

#include "policy/constants.h"

namespace withy::policy {

bool StaysExact(size_t chunk, size_t chunks) {
  return chunk < kFirstExactChunks || chunk + kLastExactChunks >= chunks;
}

DemotionPlan PlanDemotions(std::span<const KvFormatCost> formats,
                           std::span<const std::vector<DensityChunk>> contexts, double ratio,
                           uint64_t bytes_to_free, PrecisionPolicy policy) {
  DemotionPlan plan;
  for (size_t i = 0; i < contexts.size() && plan.freed_bytes < bytes_to_free; ++i) {
    const std::vector<DensityChunk>& chunks = contexts[i];
    uint64_t bytes = 0;
    for (const DensityChunk& chunk : chunks) bytes += formats[chunk.format].chunk_bytes;
    const auto full_bytes = static_cast<double>(chunks.size() * formats.front().chunk_bytes);
    const auto least_bytes = static_cast<uint64_t>(ratio * full_bytes);
    const uint64_t asked = std::min(bytes, bytes_to_free - plan.freed_bytes);
    const uint64_t budget = std::max(least_bytes, bytes - asked);
    if (bytes <= budget) continue;
    const FormatChoice choice = ChooseFormatsWithin(formats, chunks, budget, policy);
    for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      if (choice.formats[chunk] == chunks[chunk].format) continue;
      plan.demotions.push_back({i, chunk, choice.formats[chunk]});
    }
    plan.freed_bytes += bytes - choice.bytes;
  }
  return plan;
}

}  // namespace withy::policy
