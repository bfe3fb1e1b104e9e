#include "policy/kv/kv_strategy.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"

namespace withy::policy {
namespace {

constexpr KvStrategy kWithy;

constexpr KvStrategy Lmk() {
  return {.name = "lmk",
          .precision = std::nullopt,
          .eviction = EvictionPolicy::kContextLru,
          .load = LoadPolicy::kRecomputeAll,
          .uses_disk = false,
          .writes_ahead = false,
          .computes_meanwhile = false};
}

// Systems that write what leaves, and read all of it back.
constexpr KvStrategy Swapping(std::string_view name, uint32_t working_bits,
                              EvictionPolicy eviction) {
  return {.name = name,
          .working_bits = working_bits,
          .precision = std::nullopt,
          .eviction = eviction,
          .load = LoadPolicy::kReadAll,
          .writes_ahead = false,
          .computes_meanwhile = false};
}

// As LLMS: contexts are compressed when their calls have ended.
constexpr KvStrategy Llms(std::string_view name, PrecisionPolicy precision) {
  return {.name = name, .precision = precision, .compresses_ahead = true};
}

constexpr KvStrategy Cake() {
  return {.name = "cake",
          .precision = std::nullopt,
          .load = LoadPolicy::kCake,
          .computes_meanwhile = false};
}

constexpr KvStrategy Lazy() {
  return {.name = "withy-lazy", .eviction = EvictionPolicy::kChunkLru, .writes_ahead = false};
}

constexpr std::array<KvStrategy, 12> kStrategies = {
    kWithy,
    Llms("llms", PrecisionPolicy::kDensity),
    Lmk(),
    Swapping("swap", 8, EvictionPolicy::kContextLru),
    Swapping("vllm-s", 16, EvictionPolicy::kChunkLru),
    Swapping("vllm-sq", 8, EvictionPolicy::kChunkLru),
    Cake(),
    Llms("llms-uniform", PrecisionPolicy::kUniform),
    KvStrategy{.name = "withy-8bit", .precision = std::nullopt},
    KvStrategy{.name = "withy-read", .load = LoadPolicy::kReadAll},
    Lazy(),
    KvStrategy{.name = "withy-whole", .computes_meanwhile = false},
};

}  // namespace

std::vector<std::string> KvStrategyNames() {
  std::vector<std::string> names;
  for (const KvStrategy& strategy : kStrategies) names.emplace_back(strategy.name);
  return names;
}

absl::StatusOr<KvStrategy> FindKvStrategy(std::string_view name) {
  for (const KvStrategy& strategy : kStrategies) {
    if (strategy.name == name) return strategy;
  }
  return absl::InvalidArgumentError(absl::StrCat("no KV strategy is called \"", ToAbsl(name),
                                                 "\"; there are ",
                                                 absl::StrJoin(KvStrategyNames(), ", ")));
}

}  // namespace withy::policy
