// A model file's recommended sampling parameters: the metadata keys general.sampling.*, as
// llama.cpp reads them. Neighbour: wire/answer_defaults.h ranks them between the configuration and
// withy's own defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/gguf/reader.h"

namespace withy::engine {

// A field is set if the file has its key with a usable value.
struct RecommendedSampling {
  std::optional<float> temperature;  // 0 = greedy
  std::optional<uint32_t> top_k;     // 0 = all
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<uint32_t> repetition_window;
  // Keys with unusable values, and the values. They count as missing.
  std::vector<std::string> ignored;

  bool any() const {
    return temperature || top_k || top_p || min_p || repetition_penalty || repetition_window;
  }
};

// Reads the keys temp, top_k, top_p, min_p, penalty_repeat and penalty_last_n of any integer or
// floating-point type, or a string holding a number. Values that disable a step in llama.cpp
// disable it here: temp <= 0 is greedy, top_k <= 0 all, top_p >= 1 off, min_p <= 0 off. A negative
// penalty_last_n means the longest allowed window.
RecommendedSampling ReadRecommendedSampling(const GgufFile& file);

}  // namespace withy::engine
