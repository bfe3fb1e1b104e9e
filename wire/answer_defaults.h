// What a call gets that does not say how tokens are drawn and how long its answer may be: the
// configuration's, else the model file's, else withy's own. Pure. Neighbours: wire.h fills requests
// with it, engine/session/recommended_sampling.h reads the file. See types.proto, Sampling.
#pragma once

#include <cstdint>
#include <string>

#include "engine/sampling/sampler.h"
#include "engine/session/recommended_sampling.h"
#include "withy/v1/config.pb.h"
#include "withy/v1/types.pb.h"

namespace withy::engine {

// Of answers to messages: far longer than answers are, so that the model ends its turn itself, and
// short enough that one which never does holds the board for a minute, not for a window.
inline constexpr uint32_t kDefaultTokens = 2048;
// Of answers to raw text, which has no turn that the model could end.
inline constexpr uint32_t kDefaultRawTokens = 256;

// As is, for callers without a model: greedy answers as long as the window allows.
struct AnswerDefaults {
  v1::Sampling sampling = {};   // every field set but the seed; or none, and requests set theirs
  uint32_t max_tokens = 0;      // 0 = what the window has room for
  uint32_t raw_max_tokens = 0;  // the same of raw text
};

// `asked` with what it leaves out taken from `defaults`; beside a temperature of 0 that it sets,
// what it leaves out is off.
v1::Sampling Complete(const v1::Sampling& asked, const v1::Sampling& defaults);

// `config` as FillDefaults leaves it. A top_k above `vocabulary` is none.
AnswerDefaults DefaultsFor(const v1::ModelConfig& config, const RecommendedSampling& file,
                           int32_t vocabulary);

// "greedy", or "temperature 0.7, top-p 0.95, repetition penalty 1.1 over 256 tokens": what is off
// is left out.
std::string Describe(const v1::Sampling& sampling);

// With every field set.
v1::Sampling ToWire(const SamplingParams& params);

}  // namespace withy::engine
