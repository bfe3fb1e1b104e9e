// Default sampling and answer length of a call: from the configuration, else the model file, else
// built in (types.proto, Sampling). Pure. Neighbours: wire.h fills requests with them,
// engine/session/recommended_sampling.h reads the file.
#pragma once

#include <cstdint>
#include <string>

#include "engine/sampling/sampler.h"
#include "engine/session/recommended_sampling.h"
#include "withy/v1/config.pb.h"
#include "withy/v1/types.pb.h"

namespace withy::engine {

// Default maximum for answers to messages: long enough for the model to end its turn, and short
// enough that a model that never ends it occupies the board for a minute, not for a whole window.
inline constexpr uint32_t kDefaultTokens = 2048;
// Default maximum for answers to raw text, which has no turn to end.
inline constexpr uint32_t kDefaultRawTokens = 256;

// Default-constructed, for callers without a model: greedy answers as long as the window allows.
struct AnswerDefaults {
  v1::Sampling sampling = {};   // every field set but the seed; or empty: requests set theirs
  uint32_t max_tokens = 0;      // 0 = what the window has room for
  uint32_t raw_max_tokens = 0;  // the same for raw text
};

// Fills the unset fields of `asked` from `defaults`. If `asked` sets temperature 0, its unset
// fields are off instead.
v1::Sampling WithDefaults(const v1::Sampling& asked, const v1::Sampling& defaults);

// `config` has its defaults filled in. A top_k above `vocabulary` becomes 0 (off).
AnswerDefaults DefaultsFor(const v1::ModelConfig& config, const RecommendedSampling& file,
                           int32_t vocabulary);

// "greedy", or "temperature 0.7, top-p 0.95, repetition penalty 1.1 over 256 tokens". Parameters
// that are off are left out.
std::string Describe(const v1::Sampling& sampling);

// Sets every field.
v1::Sampling ToWire(const SamplingParams& params);
// What is added to logits and subtracted from them; the rest of `params` stays.
void CountsFromWire(const v1::Sampling& sampling, SamplingParams* params);
// Of a message with every field set.
SamplingParams ParamsOf(const v1::Sampling& sampling);

}  // namespace withy::engine
