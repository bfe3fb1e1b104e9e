// What the memory wall compares and how its figures come about: ways of decoding by name, samples,
// ratios of ours to the others. Pure. Neighbours: speculation_wall.cc measures,
// speculation_wall_pair.h decodes prompts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/samples.h"
#include "bench/speculation/speculation_decoder.h"

namespace withy::bench {

// A way of decoding under a budget. Names:
//   stream         one token a pass, streamed by withy
//   mmap           one token a pass, paged by the kernel from the mapped packed file
//   layers         one token a pass, whole layers streamed with overlap, nothing kept (StdPL)
//   peer           llama-bench over the mapped GGUF
//   tree[:SOURCE]  the service's token trees; SOURCE: auto, lookup, prefix or draft, as a call asks
//                  for it, and +ahead, with which trees go on growing while the target waits for
//                  weights; default: auto+ahead
//   service[:SOURCE]  the service's five processes, asked over gRPC; SOURCE: as above, or off for
//                  one token a pass; default: auto. The limit holds for all five together
//   line:N         linear speculation: N drafted tokens a pass
//   single[:F/R]   the Big Little Decoder: falls back at single tokens that the draft gives less
//                  than F, and takes back what the target gives less than exp(-R); lossy
//   sti            the layers in 4 bits, one token a pass, streamed (STI); lossy
struct WallWay {
  enum class Kind {
    kAlone,    // a contestant of speculation_wall_run.h; its tokens do not matter
    kPair,     // answers prompts with target and draft (speculation_wall_pair.h)
    kShards,   // likewise, with the target in fewer bits
    kService,  // answers prompts in five processes (speculation_wall_service.h)
  };
  std::string name;
  Kind kind = Kind::kAlone;
  DecodeWay decode = {};  // of the others

  // Whether its memory has the draft model.
  bool uses_draft() const {
    return (kind == Kind::kPair || kind == Kind::kService) && decode.uses_draft();
  }
  bool lossless() const { return kind != Kind::kShards && decode.big_little.fallback <= 0; }
};

// Errors: INVALID_ARGUMENT, which lists the ways.
absl::StatusOr<WallWay> ParseWay(const std::string& name);

// A budget in per cent of the weights, (0, 100], as a share. Errors: INVALID_ARGUMENT.
absl::StatusOr<double> BudgetShare(const std::string& percent);

// One answer in one way.
struct WallAnswer {
  std::string way;
  int32_t prompt = 0;  // index
  DecodedAnswer answer;
};

// All answers of one way at one budget in one round.
struct WallSum {
  double ms = 0, draft_ms = 0;
  int64_t tokens = 0, passes = 0, window_drafted = 0, drafted = 0, accepted = 0;

  double token_s() const { return tokens == 0 ? 0 : ms / 1e3 / static_cast<double>(tokens); }
  double tokens_a_pass() const {
    return passes == 0 ? 0 : static_cast<double>(tokens) / static_cast<double>(passes);
  }
  double accepted_share() const {
    return drafted == 0 ? 0 : static_cast<double>(accepted) / static_cast<double>(drafted);
  }
};
WallSum SumOf(const std::vector<WallAnswer>& answers);
std::map<std::string, WallSum> SumByWay(const std::vector<WallAnswer>& answers);

// Adds what one round at one budget says of one way against the others: the ratio of their seconds
// a token to its. `token_s`: seconds a token by way; without `ours` nothing is added. Keys, with
// `prefix` before and _`percent` behind: _vs_WAY, _vs_linear_N for line:N, _vs_best_linear, the
// fastest line of the round, and _vs_off for service:off. Ways with other options are left out.
void AddRatios(const std::string& prefix, const std::string& ours, const std::string& percent,
               const std::map<std::string, double>& token_s, Samples* samples);

// Least median over all budgets of KEY_PERCENT; 0 without any.
double LeastOver(const std::vector<std::string>& percents, const std::string& key,
                 const Samples& samples);

}  // namespace withy::bench
