#include "engine/weights/architecture.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace withy::engine {
namespace {

constexpr std::array<Architecture, 3> kArchitectures = {{
    {.name = "llama", .rope_pairing = RopePairing::kAdjacent},
    {.name = "qwen2", .needs_qkv_bias = true},
    {.name = "qwen3", .qk_norm = QkNorm::kHeads},
}};

}  // namespace

const Architecture* FindArchitecture(std::string_view name) {
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return &architecture;
  }
  return nullptr;
}

std::string SupportedArchitectures() {
  std::string names;
  for (const Architecture& architecture : kArchitectures) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", ToAbsl(architecture.name));
  }
  return names;
}

}  // namespace withy::engine
