#include "engine/weights/architecture/architecture.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace withy::engine {
namespace {

constexpr std::array<Architecture, 15> kArchitectures = {{
    {.name = "llama",
     .rope_pairing = RopePairing::kAdjacent,
     .window_rule = WindowRule::kEveryLayer},  // Mistral
    {.name = "qwen2", .needs_qkv_bias = true},
    {.name = "qwen3", .qk_norm = QkNorm::kHeads},
    {.name = "qwen3moe", .qk_norm = QkNorm::kHeads, .experts = true, .experts_share_width = true},
    {.name = "smollm3", .rope_pairing = RopePairing::kAdjacent, .rope_period = 4},
    {.name = "granite",
     .rope_pairing = RopePairing::kAdjacent,
     .rope_switch = true,
     .multipliers = true},
    {.name = "granitemoe",
     .rope_pairing = RopePairing::kAdjacent,
     .rope_switch = true,
     .experts = true,
     .multipliers = true},
    {.name = "olmoe", .qk_norm = QkNorm::kWhole, .experts = true, .normed_expert_weights = false},
    {.name = "olmo2",
     .qk_norm = QkNorm::kWhole,
     .pre_norms = false,
     .post_norms = true,
     .window_rule = WindowRule::kPattern,
     .window_period = 4},
    {.name = "phi3",
     .partial_rope = true,
     .fused_gate_up = true,
     .window_rule = WindowRule::kEveryLayer},
    {.name = "gemma2",
     .post_norms = true,
     .activation = Activation::kGelu,
     .scales_embeddings = true,
     .attention_cap = 50.0f,
     .caps_logits = true,
     .logit_cap = 30.0f,
     .layers_scaled_by_width = 46,
     .window_rule = WindowRule::kPattern,
     .window = 4096,
     .window_period = 2,
     .window_rope_scaled = true},
    {.name = "gemma3",
     .qk_norm = QkNorm::kHeads,
     .post_norms = true,
     .activation = Activation::kGelu,
     .scales_embeddings = true,
     .caps_logits = true,
     .layers_scaled_by_width = 62,
     .window_rule = WindowRule::kPattern,
     .window_period = 6,
     .window_rope_base = 10000.0f},
    {.name = "gemma3n",
     .qk_norm = QkNorm::kHeads,
     .post_norms = true,
     .activation = Activation::kGelu,
     .scales_embeddings = true,
     .caps_logits = true,
     .logit_cap = 30.0f,
     .attention_scale = 1.0f,
     .v_norm = true,
     .shares_kv = true,
     .layer_widths = true,
     .gate_cuts = true,
     .alternating_updates = true,
     .laurel_rank = 64,
     .nested_slices = true,
     .layer_inputs = true,
     .window_rule = WindowRule::kPattern,
     .window_period = 5,
     .window_rope_base = 10000.0f},
    {.name = "gpt2",
     .needs_qkv_bias = true,
     .layer_norms = true,
     .learned_positions = true,
     .product_biases = true,
     .gated_mlp = false,
     .activation = Activation::kGelu},
    {.name = "gpt-oss",
     .needs_qkv_bias = true,
     .product_biases = true,
     .ffn_norm = "post_attention_norm",
     .activation = Activation::kClampedSilu,
     .experts = true,
     .weighs_chosen_experts = true,
     .needs_head = true,
     .attention_sinks = true,
     .window_rule = WindowRule::kPattern,
     .needs_window = true,
     .window_period = 2,
     .window_rope_scaled = true,
     .whole_yarn_bounds = false},
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
