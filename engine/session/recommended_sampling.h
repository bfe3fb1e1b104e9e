// What a model file says of how its tokens are best drawn: the keys general.sampling.* of its
// metadata, as llama.cpp reads them. Neighbours: wire/answer_defaults.h puts it between the
// configuration and withy's own defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/gguf/reader.h"

namespace withy::engine {

// A field is set where the file has its key with a usable value.
struct RecommendedSampling {
  std::optional<float> temperature;  // 0 = greedy
  std::optional<uint32_t> top_k;     // 0 = all
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<uint32_t> repetition_window;
  // Keys whose value cannot be used, with the value: they count as missing.
  std::vector<std::string> ignored;

  bool any() const {
    return temperature || top_k || top_p || min_p || repetition_penalty || repetition_window;
  }
};

// Keys temp, top_k, top_p, min_p, penalty_repeat and penalty_last_n, of any integer or floating
// type, or a string that holds a number. Values that switch something off in llama.cpp do so here:
// temp <= 0 is greedy, top_k <= 0 all, top_p >= 1 off, min_p <= 0 off; a negative penalty_last_n is
// the longest that there is.
RecommendedSampling ReadRecommendedSampling(const GgufFile& file);

}  // namespace withy::engine
