// What differs between architectures, as data: one entry for each that withy computes. The names
// and defaults are those of llama.cpp's GGUF files. Neighbours: shape.h joins an entry with the
// metadata of a file; nothing else asks for an architecture by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace withy::engine {

// Pairs of elements of a head that RoPE rotates, of n elements that it turns.
enum class RopePairing : uint8_t {
  kAdjacent,  // (2i, 2i+1); converters permute the rows of Q and K accordingly
  kHalves,    // (i, i + n/2)
};

// RMS norms of Q and K before RoPE.
enum class QkNorm : uint8_t {
  kNone,
  kHeads,  // of each head, with weights [head_dim]
  kWhole,  // of all heads together, with weights [q_rows] and [kv_rows]
};

// The function of the MLP's gate, or of its neurons without one. kGelu is GELU's approximation by
// tanh. kClampedSilu takes gate and up together: gate * sigmoid(1.702 * gate) * (up + 1), of a gate
// of at most 7 and an up from -7 to 7.
enum class Activation : uint8_t { kSilu, kGelu, kClampedSilu };

// What the key attention.sliding_window means. Without it, attention is full.
enum class WindowRule : uint8_t {
  kShortensContext,  // the context ends where a window would begin to hide keys
  kEveryLayer,
  kPattern,  // all but the last of every Architecture::window_period layers, or as the key
             // attention.sliding_window_pattern says
};

struct Architecture {
  std::string_view name;
  RopePairing rope_pairing = RopePairing::kHalves;
  // RoPE may turn only the first rope.dimension_count elements of a head.
  bool partial_rope = false;
  // The last of every so many layers has no RoPE. 0: all layers have it.
  int32_t rope_period = 0;
  // Whether rope.scaling.finetuned = false means that no layer has RoPE.
  bool rope_switch = false;
  bool needs_qkv_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  // Norms subtract the mean and add a bias (LayerNorm), with attention.layer_norm_epsilon.
  bool layer_norms = false;
  // A vector of each position (position_embd) is added to the embedding, and no layer has RoPE.
  bool learned_positions = false;
  // attn_output, ffn_up and ffn_down have biases; with experts, so have the router and the three
  // products of each expert.
  bool product_biases = false;
  bool gated_mlp = true;                   // ffn_gate; without it the activation is that of ffn_up
  bool pre_norms = true;                   // attn_norm and ffn_norm, of what attention and MLP read
  std::string_view ffn_norm = "ffn_norm";  // the tensor's name
  bool post_norms = false;  // post_attention_norm and post_ffw_norm, of what they add
  Activation activation = Activation::kSilu;
  bool fused_gate_up = false;  // ffn_up has the rows of gate, then those of up
  // The MLP is a mixture of experts; without post_norms.
  bool experts = false;
  // Where expert_feed_forward_length is missing, feed_forward_length is that of all experts that a
  // row chooses, else of each.
  bool experts_share_width = false;
  bool normed_expert_weights = true;  // where expert_weights_norm is missing
  // expert_gating_func may also be 3: a softmax of the logits of those that were chosen.
  bool weighs_chosen_experts = false;
  bool scales_embeddings = false;  // by sqrt(d_model)
  bool multipliers = false;        // embedding_scale, residual_scale, attention.scale, logit_scale
  bool needs_head = false;         // the head is never the embedding
  // Each query head has a logit (attn_sinks) that is in the sum of its softmax alone.
  bool attention_sinks = false;
  float attention_cap = 0.0f;  // default of attn_logit_softcapping; 0: there is no such key
  bool caps_logits = false;    // final_logit_softcapping
  float logit_cap = 0.0f;      // its default; 0: none
  // A model of so many layers scales q.k by 1/sqrt(d_model / heads), not by 1/sqrt(head_dim).
  int32_t layers_scaled_by_width = 0;
  float attention_scale = 0.0f;  // of q.k; 0: as above
  bool v_norm = false;           // an RMS norm of each head of V, without weights
  // The last attention.shared_kv_layers layers attend to the K and V of an earlier layer.
  bool shares_kv = false;
  // feed_forward_length may have a value for each layer.
  bool layer_widths = false;
  // Gates are cut off (ModelShape::gate_cuts), as the key activation_sparsity_scale says.
  bool gate_cuts = false;
  // The stream has altup.num_inputs copies: AltUp (ModelShape::streams).
  bool alternating_updates = false;
  // Rank of LAuReL, a branch beside attention (ModelShape::laurel_rank); 0: none.
  int32_t laurel_rank = 0;
  // Levels are slices that the model was trained with (levels.h).
  bool nested_slices = false;
  // Each layer has an input of its own (ModelShape::layer_width), of
  // embedding_length_per_layer_input numbers.
  bool layer_inputs = false;
  WindowRule window_rule = WindowRule::kShortensContext;
  int32_t window = 0;         // where the file names none; 0: none
  bool needs_window = false;  // the file must name one
  int32_t window_period = 0;
  // RoPE base of layers with a window where rope.freq_base_swa is missing; 0: that of all layers.
  float window_rope_base = 0.0f;
  bool window_rope_scaled = false;  // rope.scaling holds for layers with a window, too
  // YaRN's range of pairs ends at whole pairs. Without, as the model was trained; llama.cpp rounds.
  bool whole_yarn_bounds = true;
};

// nullptr if withy does not compute it.
const Architecture* FindArchitecture(std::string_view name);

// "llama, qwen2, ..."
std::string SupportedArchitectures();

}  // namespace withy::engine
