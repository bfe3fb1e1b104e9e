// Random loads for tests of their plans.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "policy/kv/kv_load_plan.h"

namespace withy::policy {

inline constexpr uint64_t kMib = 1 << 20;

inline double RandomUnit(std::mt19937& random) {
  return std::uniform_real_distribution<double>(0, 1)(random);
}

inline LoadCosts RandomLoadCosts(std::mt19937& random) {
  return {.recompute_fixed_ms = random() % 2 == 0 ? 0 : 3 * RandomUnit(random),
          .recompute_chunk_ms = 0.1 + RandomUnit(random),
          .recompute_position_ms = random() % 2 == 0 ? 0 : 0.02 * RandomUnit(random),
          .read_fixed_ms = random() % 2 == 0 ? 0 : 3 * RandomUnit(random),
          .read_mib_ms = 0.1 + 2 * RandomUnit(random)};
}

inline std::vector<MissingChunk> RandomMissing(std::mt19937& random, size_t count,
                                               bool all_stored) {
  std::vector<MissingChunk> missing;
  uint32_t position = 0;
  while (missing.size() < count) {
    position += 1 + (random() % 4 == 0 ? random() % 5 : 0);
    const uint64_t bytes = kMib >> (random() % 3);
    missing.push_back({position, !all_stored && random() % 6 == 0 ? 0 : bytes});
  }
  return missing;
}

}  // namespace withy::policy
