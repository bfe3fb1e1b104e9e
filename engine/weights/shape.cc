#include "engine/weights/shape.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "base/utf8.h"
#include "engine/weights/architecture/layer_reader.h"
#include "engine/weights/architecture/rope_reader.h"
#include "engine/weights/architecture/shape_keys.h"

namespace withy::engine {
namespace {

// Limits that keep all sizes below far from overflow; no known model comes close.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxWidth = 1 << 17;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 256;  // limit of a KV block
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxContext = 1 << 24;
constexpr int64_t kMaxExperts = 1024;
constexpr int32_t kMinContext = 2;

class ShapeReader {
 public:
  // `architecture`: null: the one that the file names.
  explicit ShapeReader(const GgufFile& file, const Architecture* architecture = nullptr)
      : file_(file),
        keys_(file, std::string(file.GetStringOr("general.architecture", "").value_or(""))),
        architecture_(architecture) {}

  absl::StatusOr<ModelShape> Read() {
    WITHY_RETURN_IF_ERROR(ReadArchitecture());
    std::vector<absl::Status> problems;
    const auto note = [&problems](const absl::Status& status) {
      if (absl::IsNotFound(status)) {
        problems.push_back(absl::NotFoundError(
            absl::StrCat(status.message(), ": download the model again, or convert it again")));
      } else if (!status.ok()) {
        problems.push_back(status);
      }
      return status.ok();
    };
    note(RefuseNonCausal());
    if (!architecture_->experts) {
      note(RefuseBeyond("expert_count", 0,
                        "a model of this architecture must have none: choose a dense model"));
    }
    note(RefuseVision());
    // RoPE turns the elements of a head, whose size needs the model's width.
    if (note(ReadSizes()) && note(ReadHeads()) && note(ReadWindows()) && note(ReadScales()) &&
        note(ReadLayerKinds(keys_, *architecture_, &shape_))) {
      if (architecture_->experts) note(ReadExperts());
      note(ReadRope(keys_, *architecture_, &shape_));
      ForgetWindowsThatHideNothing();
    }
    note(ReadVocabulary());
    WITHY_RETURN_IF_ERROR(JoinProblems(problems));
    return std::move(shape_);
  }

 private:
  // An integer in [1, limit]; `fallback` (unless 0) if the key is missing.
  absl::Status ReadCount(const std::string& key, int64_t limit, int64_t fallback, int32_t* out) {
    int64_t value = fallback;
    if (fallback == 0 || file_.Has(key)) {
      WITHY_ASSIGN_OR_RETURN(value, file_.GetInt(key));
    }
    if (value < 1 || value > limit) return keys_.Wrong(key, value, absl::StrCat("1 to ", limit));
    *out = static_cast<int32_t>(value);
    return absl::OkStatus();
  }

  absl::Status ReadArchitecture() {
    WITHY_ASSIGN_OR_RETURN(std::string_view architecture, file_.GetString("general.architecture"));
    WITHY_ASSIGN_OR_RETURN(std::string_view name, file_.GetStringOr("general.name", ""));
    shape_.architecture = architecture;
    shape_.name = ValidUtf8(name, kMaxShownBytes);
    if (architecture_ == nullptr) architecture_ = FindArchitecture(architecture);
    if (architecture_ == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat(file_.path(), ": architecture \"", ValidUtf8(architecture, kMaxShownBytes),
                       "\" is not supported; supported are ", SupportedArchitectures(),
                       ": choose a model of one of them"));
    }
    shape_.rope_pairing = architecture_->rope_pairing;
    shape_.qk_norm = architecture_->qk_norm;
    shape_.needs_qkv_bias = architecture_->needs_qkv_bias;
    shape_.layer_norms = architecture_->layer_norms;
    shape_.learned_positions = architecture_->learned_positions;
    shape_.product_biases = architecture_->product_biases;
    shape_.gated_mlp = architecture_->gated_mlp;
    shape_.pre_norms = architecture_->pre_norms;
    shape_.post_norms = architecture_->post_norms;
    shape_.activation = architecture_->activation;
    shape_.fused_gate_up = architecture_->fused_gate_up;
    shape_.attention_sinks = architecture_->attention_sinks;
    shape_.v_norm = architecture_->v_norm;
    shape_.nested_slices = architecture_->nested_slices;
    return absl::OkStatus();
  }

  absl::Status RefuseNonCausal() {
    WITHY_ASSIGN_OR_RETURN(bool causal, file_.GetBoolOr(keys_.Key("attention.causal"), true));
    if (!causal) {
      return absl::UnimplementedError(
          absl::StrCat(file_.path(), ": ", keys_.Key("attention.causal"),
                       " is false; only models that generate text from left to right are "
                       "supported"));
    }
    return absl::OkStatus();
  }

  // After the sizes: d_ff becomes what a row computes.
  absl::Status ReadExperts() {
    WITHY_RETURN_IF_ERROR(ReadCount(keys_.Key("expert_count"), kMaxExperts, 0, &shape_.experts));
    WITHY_RETURN_IF_ERROR(
        ReadCount(keys_.Key("expert_used_count"), shape_.experts, 0, &shape_.experts_used));
    const std::string width_key = keys_.Key("expert_feed_forward_length");
    const int32_t sharers = architecture_->experts_share_width ? shape_.experts_used : 1;
    WITHY_RETURN_IF_ERROR(ReadCount(width_key, kMaxWidth, std::max(1, shape_.d_ff / sharers),
                                    &shape_.expert_neurons));
    if (shape_.expert_neurons % 32 != 0) {
      return keys_.Wrong(width_key, shape_.expert_neurons, "a multiple of 32");
    }
    if (int64_t{shape_.experts_used} * shape_.expert_neurons > kMaxWidth) {
      return keys_.Wrong(keys_.Key("expert_used_count"), shape_.experts_used,
                         absl::StrCat("at most ", kMaxWidth / shape_.expert_neurons, " with ",
                                      shape_.expert_neurons, " neurons an expert"));
    }
    shape_.d_ff = shape_.experts_used * shape_.expert_neurons;
    WITHY_RETURN_IF_ERROR(RefuseOtherExperts());
    WITHY_ASSIGN_OR_RETURN(
        shape_.normed_expert_weights,
        file_.GetBoolOr(keys_.Key("expert_weights_norm"), architecture_->normed_expert_weights));
    WITHY_RETURN_IF_ERROR(
        keys_.ReadFactor("expert_weights_scale", 1.0f, &shape_.expert_weight_scale));
    if (shape_.expert_weight_scale == 0.0f) shape_.expert_weight_scale = 1.0f;  // as in llama.cpp
    return absl::OkStatus();
  }

  absl::Status RefuseOtherExperts() {
    constexpr int64_t kSoftmax = 1;
    constexpr int64_t kSoftmaxOfChosen = 3;
    const std::string gating_key = keys_.Key("expert_gating_func");
    WITHY_ASSIGN_OR_RETURN(const int64_t gating, file_.GetIntOr(gating_key, kSoftmax));
    const bool of_chosen = architecture_->weighs_chosen_experts && gating == kSoftmaxOfChosen;
    WITHY_RETURN_IF_ERROR(
        RefuseBeyond("expert_shared_count", 0, "only models without shared experts are supported"));
    WITHY_RETURN_IF_ERROR(RefuseBeyond("leading_dense_block_count", 0,
                                       "only models with experts in every layer are supported"));
    if (!of_chosen) {
      WITHY_RETURN_IF_ERROR(RefuseBeyond("expert_gating_func", kSoftmax,
                                         "only routers with a softmax (1) are supported"));
    }
    return RefuseBeyond("expert_group_count", 1, "only routers without groups are supported");
  }

  // Refuses a file in which a number is not from 0 to `most`; a missing one is `most`.
  absl::Status RefuseBeyond(std::string_view suffix, int64_t most, std::string_view supported) {
    const std::string key = keys_.Key(suffix);
    WITHY_ASSIGN_OR_RETURN(const int64_t value, file_.GetIntOr(key, most));
    if (value >= 0 && value <= most) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat(file_.path(), ": ", key, " is ", value, "; ", ToAbsl(supported)));
  }

  absl::Status RefuseVision() {
    const std::string key = keys_.Key("deepstack_mapping");
    if (!file_.Has(key)) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat(file_.path(), ": ", key, " is for images; only models of text are supported"));
  }

  absl::Status ReadSizes() {
    WITHY_RETURN_IF_ERROR(ReadCount(keys_.Key("block_count"), kMaxLayers, 0, &shape_.layers));
    WITHY_RETURN_IF_ERROR(ReadCount(keys_.Key("embedding_length"), kMaxWidth, 0, &shape_.d_model));
    WITHY_RETURN_IF_ERROR(ReadNeurons(keys_, *architecture_, kMaxWidth, &shape_));
    WITHY_RETURN_IF_ERROR(
        ReadCount(keys_.Key("context_length"), kMaxContext, 0, &shape_.context_length));
    WITHY_RETURN_IF_ERROR(RequireContext(keys_.Key("context_length"), shape_.context_length));
    const std::string epsilon_key = keys_.Key(
        shape_.layer_norms ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon");
    WITHY_ASSIGN_OR_RETURN(double epsilon, file_.GetFloat(epsilon_key));
    if (!(epsilon > 0.0 && epsilon < 1.0)) {
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": ", epsilon_key, " is ",
                                                     epsilon, "; it must be between 0 and 1"));
    }
    shape_.rms_epsilon = static_cast<float>(epsilon);
    if (shape_.d_model % 32 != 0) {
      return keys_.Wrong(keys_.Key("embedding_length"), shape_.d_model, "a multiple of 32");
    }
    return absl::OkStatus();
  }

  absl::Status RequireContext(std::string_view key, int32_t tokens) const {
    if (tokens >= kMinContext) return absl::OkStatus();
    return keys_.Wrong(
        key, tokens,
        absl::StrCat("at least ", kMinContext, ": one token of a prompt and one of its answer"));
  }

  // What a layer sees.
  absl::Status ReadWindows() {
    const std::string key = keys_.Key("attention.sliding_window");
    WITHY_ASSIGN_OR_RETURN(const int64_t window, file_.GetIntOr(key, architecture_->window));
    if (architecture_->needs_window) {
      int32_t named = 0;
      WITHY_RETURN_IF_ERROR(ReadCount(key, kMaxContext, 0, &named));
    }
    // Layers of a pattern may have another RoPE, too.
    const bool hides = window < shape_.context_length;
    if (window <= 0 || (!hides && architecture_->window_rule != WindowRule::kPattern)) {
      return absl::OkStatus();
    }
    const auto tokens = static_cast<int32_t>(std::min<int64_t>(window, shape_.context_length));
    WITHY_RETURN_IF_ERROR(RequireContext(key, tokens));
    if (architecture_->window_rule == WindowRule::kShortensContext) {
      shape_.context_length = tokens;
      return absl::OkStatus();
    }
    shape_.windows.assign(static_cast<size_t>(shape_.layers), tokens);
    if (architecture_->window_rule == WindowRule::kEveryLayer) return absl::OkStatus();
    WITHY_ASSIGN_OR_RETURN(const std::vector<bool> windowed, ReadWindowPattern());
    for (size_t layer = 0; layer < windowed.size(); ++layer) {
      if (!windowed[layer]) shape_.windows[layer] = 0;
    }
    const bool any = std::find(windowed.begin(), windowed.end(), true) != windowed.end();
    if (!any) shape_.windows.clear();
    return absl::OkStatus();
  }

  // After the RoPE, which may be another one in layers with such a window.
  void ForgetWindowsThatHideNothing() {
    const auto hides = [&](int32_t window) { return window > 0 && window < shape_.context_length; };
    if (std::none_of(shape_.windows.begin(), shape_.windows.end(), hides)) shape_.windows.clear();
  }

  // Which layers have a window: one value for each, or a period whose last layer has none.
  absl::StatusOr<std::vector<bool>> ReadWindowPattern() {
    const std::string key = keys_.Key("attention.sliding_window_pattern");
    const auto layers = static_cast<size_t>(shape_.layers);
    std::vector<bool> windowed(layers);
    if (file_.GetArrayCount(key).ok()) {
      WITHY_ASSIGN_OR_RETURN(const std::vector<int64_t> values, file_.GetIntArray(key));
      if (values.size() != layers) {
        return keys_.Wrong(absl::StrCat(key, "'s length"), static_cast<int64_t>(values.size()),
                           absl::StrCat("the number of layers, ", layers));
      }
      for (size_t i = 0; i < layers; ++i) windowed[i] = values[i] != 0;
      return windowed;
    }
    WITHY_ASSIGN_OR_RETURN(const int64_t period, file_.GetIntOr(key, architecture_->window_period));
    if (period < 0 || period > kMaxLayers) {
      return keys_.Wrong(key, period, absl::StrCat("0 to ", kMaxLayers));
    }
    for (size_t i = 0; i < layers; ++i) {
      windowed[i] = period == 0 || static_cast<int64_t>(i) % period < period - 1;
    }
    return windowed;
  }

  absl::Status ReadScales() {
    if (architecture_->scales_embeddings) {
      shape_.embedding_scale = std::sqrt(static_cast<float>(shape_.d_model));
    }
    shape_.attention_scale = architecture_->attention_scale;
    if (architecture_->layers_scaled_by_width == shape_.layers) {
      const int32_t width = std::max(1, shape_.d_model / shape_.heads);
      shape_.attention_scale = 1.0f / std::sqrt(static_cast<float>(width));
    }
    if (architecture_->multipliers) WITHY_RETURN_IF_ERROR(ReadMultipliers());
    if (architecture_->attention_cap > 0.0f) {
      WITHY_RETURN_IF_ERROR(keys_.ReadFactor("attn_logit_softcapping", architecture_->attention_cap,
                                             &shape_.attention_cap));
    }
    if (!architecture_->caps_logits) return absl::OkStatus();
    return keys_.ReadFactor("final_logit_softcapping", architecture_->logit_cap, &shape_.logit_cap);
  }

  absl::Status ReadMultipliers() {
    WITHY_RETURN_IF_ERROR(file_.GetFloat(keys_.Key("logit_scale")).status());
    float divisor = 1.0f;
    WITHY_RETURN_IF_ERROR(keys_.ReadFactor("logit_scale", 1.0f, &divisor));
    if (divisor > 0.0f) shape_.logit_scale = 1.0f / divisor;
    for (const auto& [suffix, factor] : {std::pair{"embedding_scale", &shape_.embedding_scale},
                                         std::pair{"residual_scale", &shape_.residual_scale}}) {
      WITHY_RETURN_IF_ERROR(keys_.ReadFactor(suffix, 1.0f, factor));
      if (*factor == 0.0f) *factor = 1.0f;  // as in llama.cpp 0 means none
    }
    return keys_.ReadFactor("attention.scale", 0.0f, &shape_.attention_scale);
  }

  absl::Status ReadHeads() {
    const std::string heads_key = keys_.Key("attention.head_count");
    WITHY_RETURN_IF_ERROR(ReadCount(heads_key, kMaxHeads, 0, &shape_.heads));
    const std::string kv_key = keys_.Key("attention.head_count_kv");
    WITHY_RETURN_IF_ERROR(ReadCount(kv_key, shape_.heads, shape_.heads, &shape_.kv_heads));
    if (shape_.heads % shape_.kv_heads != 0) {
      return keys_.Wrong(kv_key, shape_.kv_heads,
                         absl::StrCat("a divisor of ", heads_key, " (", shape_.heads, ")"));
    }
    const std::string dim_key = keys_.Key("attention.key_length");
    const int64_t natural_dim = std::max(1, shape_.d_model / shape_.heads);
    if (!file_.Has(dim_key) && shape_.d_model % shape_.heads != 0) {
      return keys_.Wrong(heads_key, shape_.heads,
                         absl::StrCat("a divisor of ", keys_.Key("embedding_length"), " (",
                                      shape_.d_model, ") when ", dim_key, " is missing"));
    }
    WITHY_RETURN_IF_ERROR(ReadCount(dim_key, kMaxHeadDim, natural_dim, &shape_.head_dim));
    if (shape_.head_dim % 32 != 0) return keys_.Wrong(dim_key, shape_.head_dim, "a multiple of 32");
    const std::string value_key = keys_.Key("attention.value_length");
    WITHY_ASSIGN_OR_RETURN(int64_t value_dim, file_.GetIntOr(value_key, shape_.head_dim));
    if (value_dim != shape_.head_dim) {
      return keys_.Wrong(value_key, value_dim,
                         absl::StrCat("equal to the key length, ", shape_.head_dim));
    }
    return absl::OkStatus();
  }

  absl::Status ReadVocabulary() {
    const std::string key = keys_.Key("vocab_size");
    int64_t tokens = 0;
    if (file_.Has("tokenizer.ggml.tokens")) {
      WITHY_ASSIGN_OR_RETURN(uint64_t count, file_.GetArrayCount("tokenizer.ggml.tokens"));
      tokens = static_cast<int64_t>(std::min<uint64_t>(count, uint64_t{kMaxVocab} + 1));
    }
    WITHY_RETURN_IF_ERROR(ReadCount(key, kMaxVocab, tokens, &shape_.vocab_size));
    if (shape_.vocab_size < tokens) {
      return keys_.Wrong(key, shape_.vocab_size,
                         absl::StrCat("at least the number of tokenizer.ggml.tokens, ", tokens));
    }
    return absl::OkStatus();
  }

  const GgufFile& file_;
  const ShapeKeys keys_;
  const Architecture* architecture_;  // of the file
  ModelShape shape_;
};

}  // namespace

void ModelShape::UseWindow(int32_t window) {
  if (long_rope_frequencies.empty()) return;
  short_rope = (window > 0 ? std::min(window, context_length) : context_length) <= long_rope_above;
  if (!short_rope) rope_frequencies = long_rope_frequencies;
  long_rope_frequencies.clear();
}

std::string BeyondLlama(const ModelShape& s) {
  const auto has = [](const auto& list, auto wanted) {
    return std::find(list.begin(), list.end(), wanted) != list.end();
  };
  std::string text;
  const auto add = [&text](bool is, std::string_view what) {
    if (is) absl::StrAppend(&text, text.empty() ? "" : ", ", ToAbsl(what));
  };
  add(s.rope_dims > 0 && s.rope_dims < s.head_dim, "partial RoPE");
  add(has(s.ropes, ModelShape::kNoRope) && !s.learned_positions, "layers without RoPE");
  add(has(s.ropes, int8_t{1}), "two RoPE bases");
  add(s.learned_positions, "learned positions");
  add(s.layer_norms, "LayerNorm");
  add(s.product_biases, "biases of all products");
  add(!s.gated_mlp, "an MLP without a gate");
  add(s.qk_norm == QkNorm::kWhole, "norms of whole Q and K");
  add(!s.pre_norms || s.post_norms, "norms after attention and MLP");
  add(s.activation == Activation::kGelu, "GELU");
  add(s.activation == Activation::kClampedSilu, "a clamped activation");
  add(s.experts > 0, "experts");
  add(s.embedding_scale != 1.0f, "scaled embeddings");
  add(s.residual_scale != 1.0f, "scaled residuals");
  add(s.attention_scale != 0.0f, "an attention scale");
  add(s.logit_scale != 1.0f, "scaled logits");
  add(s.attention_cap > 0.0f || s.logit_cap > 0.0f, "soft-caps");
  add(!s.windows.empty(), "sliding windows");
  add(s.attention_sinks, "attention sinks");
  add(s.v_norm, "norms of V");
  add(!s.kv_sources.empty(), "shared K and V");
  add(!s.layer_neurons.empty(), "layers of several widths");
  add(!s.gate_cuts.empty(), "gates that are cut off");
  add(s.streams > 1, "copies of the residual stream");
  add(s.laurel_rank > 0, "a branch beside attention");
  add(s.has_layer_inputs(), "inputs of each layer");
  return text;
}

absl::StatusOr<ModelShape> ReadShape(const GgufFile& file) { return ShapeReader(file).Read(); }

absl::StatusOr<ModelShape> ReadShapeAs(const GgufFile& file, const Architecture& architecture) {
  return ShapeReader(file, &architecture).Read();
}

}  // namespace withy::engine
