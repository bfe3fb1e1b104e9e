#include "bench/contexts/contestants.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"

namespace withy::bench {
namespace {

using policy::EvictionPolicy;
using policy::LoadPolicy;
using policy::PrecisionPolicy;

constexpr policy::KvStrategy kLmk = {.precision = std::nullopt,
                                     .eviction = EvictionPolicy::kContextLru,
                                     .load = LoadPolicy::kRecomputeAll,
                                     .uses_disk = false,
                                     .writes_ahead = false};

// Systems that write what leaves, and read all of it back.
constexpr policy::KvStrategy Swapping(EvictionPolicy eviction) {
  return {.precision = std::nullopt,
          .eviction = eviction,
          .load = LoadPolicy::kReadAll,
          .writes_ahead = false};
}

// As LLMS: contexts are compressed when their calls have ended.
constexpr policy::KvStrategy Llms(PrecisionPolicy precision) {
  return {.precision = precision, .compresses_ahead = true};
}

constexpr Contestant kContestants[] = {
    {},
    {.name = "llms", .store = Llms(PrecisionPolicy::kDensity)},
    {.name = "lmk", .store = kLmk, .computes_meanwhile = false},
    {.name = "swap", .store = Swapping(EvictionPolicy::kContextLru), .computes_meanwhile = false},
    {.name = "vllm-s",
     .store = Swapping(EvictionPolicy::kChunkLru),
     .working_bits = 16,
     .computes_meanwhile = false},
    {.name = "vllm-sq", .store = Swapping(EvictionPolicy::kChunkLru), .computes_meanwhile = false},
    {.name = "cake",
     .store = {.precision = std::nullopt, .load = LoadPolicy::kCake},
     .computes_meanwhile = false},
    {.name = "llms-uniform", .store = Llms(PrecisionPolicy::kUniform)},
    {.name = "withy-8bit", .store = {.precision = std::nullopt}},
    {.name = "withy-read", .store = {.load = LoadPolicy::kReadAll}},
    {.name = "withy-lazy", .store = {.eviction = EvictionPolicy::kChunkLru, .writes_ahead = false}},
    {.name = "withy-whole", .computes_meanwhile = false},
};

}  // namespace

absl::StatusOr<Contestant> FindContestant(std::string_view name) {
  std::vector<std::string> names;
  for (const Contestant& contestant : kContestants) {
    if (contestant.name == name) return contestant;
    names.emplace_back(contestant.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("no way to keep KV is called \"", ToAbsl(name),
                                                 "\"; there are ", absl::StrJoin(names, ", ")));
}

}  // namespace withy::bench
