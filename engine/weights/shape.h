// The shape of a model and its RoPE, read from GGUF metadata and checked. Neighbours: packer.h
// checks tensors against it; model/ computes with it. Reads no tensor bytes.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/weights/architecture/architecture.h"

namespace withy::engine {

struct ModelShape {
  std::string architecture;
  std::string name;  // general.name as UTF-8, at most kMaxShownBytes; may be empty
  int32_t layers = 0;
  int32_t d_model = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  // Neurons that a row computes: with experts experts_used * expert_neurons, of layers of several
  // widths the most.
  int32_t d_ff = 0;
  int32_t vocab_size = 0;
  int32_t context_length = 0;
  float rms_epsilon = 0.0f;  // of all norms
  RopePairing rope_pairing = RopePairing::kAdjacent;
  int32_t rope_dims = 0;  // elements of a head that RoPE turns, from the first on; even
  // Angle of pair i at position p: p * rope_frequencies[i]; [rope_dims / 2], and in a model with
  // two RoPE bases as many for the layers with a window. Includes scaling: linear (also if a factor
  // has no type), llama3, YaRN, and the divisors of a rope_freqs.weight or
  // rope_factors_short.weight tensor.
  std::vector<float> rope_frequencies;
  // LongRoPE: those of windows above long_rope_above tokens; empty: the model has no LongRoPE, or
  // UseWindow has chosen.
  std::vector<float> long_rope_frequencies = {};
  int32_t long_rope_above = 0;
  // Whether UseWindow has chosen the frequencies of short windows, of two.
  bool short_rope = false;
  // Factors of the cosines and sines, of each RoPE base: 1 but for YaRN and LongRoPE.
  std::array<float, 2> rope_scales = {1.0f, 1.0f};
  QkNorm qk_norm = QkNorm::kNone;
  bool needs_qkv_bias = false;
  // As in Architecture.
  bool layer_norms = false;
  bool learned_positions = false;
  bool product_biases = false;
  bool gated_mlp = true;
  bool pre_norms = true;
  bool post_norms = false;
  Activation activation = Activation::kSilu;
  bool fused_gate_up = false;
  bool attention_sinks = false;
  bool v_norm = false;
  bool nested_slices = false;
  // Neurons of each layer; empty: all have d_ff.
  std::vector<int32_t> layer_neurons = {};
  // Layer whose K and V a layer attends to: its own, or one that is before it and has as much of a
  // window. Layers without K and V of their own are the last ones. Empty: all have their own.
  std::vector<int32_t> kv_sources = {};
  // Before its activation, an element x of a layer's gate becomes max(0, x - (mean + cut *
  // deviation)) of the row's elements; kNoCut: it stays. Empty: all stay.
  std::vector<float> gate_cuts = {};
  static constexpr float kNoCut = -std::numeric_limits<float>::infinity();
  // AltUp: so many copies of the residual stream. A layer computes from the first; all of them
  // follow, by factors that the layer finds for each row. Source: Baykal et al., "Alternating
  // Updates for Efficient Transformers", section 3; factors by a router are Gemma 3n's. 1: none.
  int32_t streams = 1;
  // LAuReL: what a layer's attention reads also goes through two matrices of this rank, and the
  // stream becomes the sum of both branches / sqrt(2). Source: Menghani et al., "LAuReL: Learned
  // Augmented Residual Layer", the low-rank version (LAuReL-LR). 0: none.
  int32_t laurel_rank = 0;
  // Numbers of a layer's own input, which are made of the token's row of a second embedding and of
  // the first stream before the layers; what the layer makes of them is added to all streams but
  // the first. 0: none.
  int32_t layer_width = 0;
  // Mixture of experts: the MLP is `experts` MLPs of expert_neurons neurons each, of which a router
  // chooses experts_used for each row. Their weights are a softmax, over the chosen ones if
  // normed_expert_weights, else over all, times expert_weight_scale. 0: the MLP is one.
  int32_t experts = 0;
  int32_t experts_used = 0;
  int32_t expert_neurons = 0;
  bool normed_expert_weights = true;
  float expert_weight_scale = 1.0f;
  // Factors of what the embedding gives, of what attention and MLP add, of the logits.
  float embedding_scale = 1.0f;
  float residual_scale = 1.0f;
  float logit_scale = 1.0f;
  float attention_scale = 0.0f;  // of q.k; 0: 1 / sqrt(head_dim)
  // Scores and logits become cap * tanh(score / cap); 0: they do not.
  float attention_cap = 0.0f;
  float logit_cap = 0.0f;
  // A row of a layer sees so many positions, the last its own; 0: all. Empty: all layers see all.
  std::vector<int32_t> windows = {};
  // Which frequencies a layer has: 0 the first, 1 the second, kNoRope none. Empty: all the first.
  std::vector<int8_t> ropes = {};
  static constexpr int8_t kNoRope = -1;

  int32_t NeuronsOf(int32_t layer) const {
    return layer_neurons.empty() ? d_ff : layer_neurons[static_cast<size_t>(layer)];
  }
  float GateCutOf(int32_t layer) const {
    return gate_cuts.empty() ? kNoCut : gate_cuts[static_cast<size_t>(layer)];
  }
  int32_t KvSourceOf(int32_t layer) const {
    return kv_sources.empty() ? layer : kv_sources[static_cast<size_t>(layer)];
  }
  // Layers with K and V of their own: [0, kv_layers()). KV blocks are only theirs.
  int32_t kv_layers() const {
    int32_t own = layers;
    while (own > 1 && KvSourceOf(own - 1) != own - 1) --own;
    return own;
  }
  bool has_layer_inputs() const { return layer_width > 0; }
  int32_t layer_inputs_width() const { return layers * layer_width; }

  int32_t WindowOf(int32_t layer) const {
    return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
  }
  // Chooses LongRoPE's frequencies for contexts of at most `window` tokens; 0: of context_length.
  // As in llama.cpp, a context has one set, whatever tokens it holds: KV stays valid as it grows.
  void UseWindow(int32_t window);
  int8_t RopeOf(int32_t layer) const {
    return ropes.empty() ? int8_t{0} : ropes[static_cast<size_t>(layer)];
  }
  // Whether what attention and MLP give is normed or scaled before it is added to the stream.
  bool ChangesBranches() const { return post_norms || residual_scale != 1.0f; }

  int32_t query_heads_per_group() const { return heads / kv_heads; }
  int32_t q_rows() const { return heads * head_dim; }
  int32_t kv_rows() const { return kv_heads * head_dim; }

  // Unit by which levels cut attention (docs/method-elastic.md, Units): one query head of every
  // group; with fewer than three query heads per KV head, a KV head with its query heads.
  bool cuts_kv_heads() const { return query_heads_per_group() < 3; }
  int32_t query_heads_per_unit() const {
    return cuts_kv_heads() ? query_heads_per_group() : kv_heads;
  }
  // KV heads of a level with `query_heads` query heads.
  int32_t kv_heads_of(int32_t query_heads) const {
    return cuts_kv_heads() ? query_heads / query_heads_per_group() : kv_heads;
  }
};

// What a model of this shape computes beyond llama with biases and norms of heads, for people, such
// as "GELU, sliding windows"; empty: nothing. Whoever computes only the latter refuses the others.
std::string BeyondLlama(const ModelShape& shape);

// A missing key has the same default as in llama.cpp. A file without tensors, as packed files have
// their metadata, has no LongRoPE. Errors: UNIMPLEMENTED (architecture, RoPE scaling, forms of
// experts, non-causal attention; names what is supported), NOT_FOUND or INVALID_ARGUMENT naming
// file, key, value and limit; the messages of several in one.
absl::StatusOr<ModelShape> ReadShape(const GgufFile& file);
// The same of a file whose architecture is none of the table's.
absl::StatusOr<ModelShape> ReadShapeAs(const GgufFile& file, const Architecture& architecture);

}  // namespace withy::engine
