#include "engine/weights/shape.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "base/status.h"
#include "base/utf8.h"

namespace withy::engine {
namespace {

// Limits that keep all sizes below far from overflow; no known model comes close.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxWidth = 1 << 17;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 256;  // limit of a KV block
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxContext = 1 << 24;
constexpr int32_t kMinContext = 2;
constexpr char kRopeFactors[] = "rope_freqs.weight";

class ShapeReader {
 public:
  explicit ShapeReader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<ModelShape> Read() {
    WITHY_RETURN_IF_ERROR(ReadArchitecture());
    std::vector<absl::Status> problems;
    const auto note = [&problems](const absl::Status& status) {
      if (!status.ok()) problems.push_back(status);
      return status.ok();
    };
    note(RefuseNonCausal());
    note(RefuseExperts());
    // RoPE turns the elements of a head, whose size needs the model's width.
    if (note(ReadSizes()) && note(ReadHeads())) note(ReadRope());
    note(ReadVocabulary());
    WITHY_RETURN_IF_ERROR(JoinProblems(problems));
    return std::move(shape_);
  }

 private:
  std::string Key(std::string_view suffix) const {
    return absl::StrCat(shape_.architecture, ".", ToAbsl(suffix));
  }

  absl::Status Wrong(std::string_view key, int64_t value, std::string_view wanted) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": ", ToAbsl(key), " is ", value,
                                                   "; it must be ", ToAbsl(wanted)));
  }

  // An integer in [1, limit]; `fallback` (unless 0) if the key is missing.
  absl::Status ReadCount(const std::string& key, int64_t limit, int64_t fallback, int32_t* out) {
    int64_t value = fallback;
    if (fallback == 0 || file_.Has(key)) {
      WITHY_ASSIGN_OR_RETURN(value, file_.GetInt(key));
    }
    if (value < 1 || value > limit) return Wrong(key, value, absl::StrCat("1 to ", limit));
    *out = static_cast<int32_t>(value);
    return absl::OkStatus();
  }

  absl::Status ReadArchitecture() {
    WITHY_ASSIGN_OR_RETURN(std::string_view architecture, file_.GetString("general.architecture"));
    WITHY_ASSIGN_OR_RETURN(std::string_view name, file_.GetStringOr("general.name", ""));
    shape_.architecture = architecture;
    shape_.name = ValidUtf8(name, kMaxShownBytes);
    architecture_ = FindArchitecture(architecture);
    if (architecture_ == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat(file_.path(), ": architecture \"", ValidUtf8(architecture, kMaxShownBytes),
                       "\" is not supported; supported are ", SupportedArchitectures(),
                       ": choose a model of one of them"));
    }
    shape_.rope_pairing = architecture_->rope_pairing;
    shape_.qk_norm = architecture_->qk_norm;
    shape_.needs_qkv_bias = architecture_->needs_qkv_bias;
    return absl::OkStatus();
  }

  absl::Status RefuseNonCausal() {
    WITHY_ASSIGN_OR_RETURN(bool causal, file_.GetBoolOr(Key("attention.causal"), true));
    if (!causal) {
      return absl::UnimplementedError(
          absl::StrCat(file_.path(), ": ", Key("attention.causal"),
                       " is false; only models that generate text from left to right are "
                       "supported"));
    }
    return absl::OkStatus();
  }

  absl::Status RefuseExperts() {
    WITHY_ASSIGN_OR_RETURN(int64_t experts, file_.GetIntOr(Key("expert_count"), 0));
    if (experts != 0) {
      return absl::UnimplementedError(absl::StrCat(file_.path(), ": ", Key("expert_count"), " is ",
                                                   experts, "; only dense models are supported"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadSizes() {
    WITHY_RETURN_IF_ERROR(ReadCount(Key("block_count"), kMaxLayers, 0, &shape_.layers));
    WITHY_RETURN_IF_ERROR(ReadCount(Key("embedding_length"), kMaxWidth, 0, &shape_.d_model));
    WITHY_RETURN_IF_ERROR(ReadCount(Key("feed_forward_length"), kMaxWidth, 0, &shape_.d_ff));
    WITHY_RETURN_IF_ERROR(ReadCount(Key("context_length"), kMaxContext, 0, &shape_.context_length));
    const std::string window_key = Key("attention.sliding_window");
    WITHY_ASSIGN_OR_RETURN(int64_t window, file_.GetIntOr(window_key, 0));
    const bool windowed = window > 0 && window < shape_.context_length;
    if (windowed) shape_.context_length = static_cast<int32_t>(window);
    if (shape_.context_length < kMinContext) {
      return Wrong(windowed ? window_key : Key("context_length"), shape_.context_length,
                   absl::StrCat("at least ", kMinContext, ": one token of a prompt and one of its ",
                                "answer"));
    }
    const std::string epsilon_key = Key("attention.layer_norm_rms_epsilon");
    WITHY_ASSIGN_OR_RETURN(double epsilon, file_.GetFloat(epsilon_key));
    if (!(epsilon > 0.0 && epsilon < 1.0)) {
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": ", epsilon_key, " is ",
                                                     epsilon, "; it must be between 0 and 1"));
    }
    shape_.rms_epsilon = static_cast<float>(epsilon);
    if (shape_.d_model % 32 != 0) {
      return Wrong(Key("embedding_length"), shape_.d_model, "a multiple of 32");
    }
    if (shape_.d_ff % 32 != 0) {
      return Wrong(Key("feed_forward_length"), shape_.d_ff, "a multiple of 32");
    }
    return absl::OkStatus();
  }

  absl::Status ReadHeads() {
    const std::string heads_key = Key("attention.head_count");
    WITHY_RETURN_IF_ERROR(ReadCount(heads_key, kMaxHeads, 0, &shape_.heads));
    const std::string kv_key = Key("attention.head_count_kv");
    WITHY_RETURN_IF_ERROR(ReadCount(kv_key, shape_.heads, shape_.heads, &shape_.kv_heads));
    if (shape_.heads % shape_.kv_heads != 0) {
      return Wrong(kv_key, shape_.kv_heads,
                   absl::StrCat("a divisor of ", heads_key, " (", shape_.heads, ")"));
    }
    const std::string dim_key = Key("attention.key_length");
    const int64_t natural_dim = std::max(1, shape_.d_model / shape_.heads);
    if (!file_.Has(dim_key) && shape_.d_model % shape_.heads != 0) {
      return Wrong(heads_key, shape_.heads,
                   absl::StrCat("a divisor of ", Key("embedding_length"), " (", shape_.d_model,
                                ") when ", dim_key, " is missing"));
    }
    WITHY_RETURN_IF_ERROR(ReadCount(dim_key, kMaxHeadDim, natural_dim, &shape_.head_dim));
    if (shape_.head_dim % 32 != 0) return Wrong(dim_key, shape_.head_dim, "a multiple of 32");
    const std::string value_key = Key("attention.value_length");
    WITHY_ASSIGN_OR_RETURN(int64_t value_dim, file_.GetIntOr(value_key, shape_.head_dim));
    if (value_dim != shape_.head_dim) {
      return Wrong(value_key, value_dim,
                   absl::StrCat("equal to the key length, ", shape_.head_dim));
    }
    return absl::OkStatus();
  }

  absl::Status ReadVocabulary() {
    const std::string key = Key("vocab_size");
    int64_t tokens = 0;
    if (file_.Has("tokenizer.ggml.tokens")) {
      WITHY_ASSIGN_OR_RETURN(uint64_t count, file_.GetArrayCount("tokenizer.ggml.tokens"));
      tokens = static_cast<int64_t>(std::min<uint64_t>(count, uint64_t{kMaxVocab} + 1));
    }
    WITHY_RETURN_IF_ERROR(ReadCount(key, kMaxVocab, tokens, &shape_.vocab_size));
    if (shape_.vocab_size < tokens) {
      return Wrong(key, shape_.vocab_size,
                   absl::StrCat("at least the number of tokenizer.ggml.tokens, ", tokens));
    }
    return absl::OkStatus();
  }

  absl::Status ReadRope() {
    const std::string dim_key = Key("rope.dimension_count");
    WITHY_ASSIGN_OR_RETURN(int64_t rope_dim, file_.GetIntOr(dim_key, shape_.head_dim));
    if (rope_dim != shape_.head_dim) {
      return Wrong(dim_key, rope_dim, absl::StrCat("the head size, ", shape_.head_dim));
    }
    const std::string base_key = Key("rope.freq_base");
    WITHY_ASSIGN_OR_RETURN(double base, file_.GetFloatOr(base_key, 10000.0));
    if (!(base > 1.0 && base < 1e12)) {
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": ", base_key, " is ", base,
                                                     "; it must be between 1 and 1e12"));
    }
    const int32_t pairs = shape_.head_dim / 2;
    shape_.rope_frequencies.resize(static_cast<size_t>(pairs));
    for (int32_t i = 0; i < pairs; ++i) {
      shape_.rope_frequencies[static_cast<size_t>(i)] =
          static_cast<float>(std::pow(base, -2.0 * i / shape_.head_dim));
    }
    WITHY_RETURN_IF_ERROR(ReadRopeScaling());
    return DivideByRopeFactors();
  }

  // Applies the file's own frequency divisors, which converters write for Llama 3.
  absl::Status DivideByRopeFactors() {
    const TensorInfo* tensor = file_.FindTensor(kRopeFactors);
    if (tensor == nullptr) return absl::OkStatus();
    std::vector<float>& frequencies = shape_.rope_frequencies;
    if (tensor->type != GgmlType::kF32 ||
        tensor->elements() != static_cast<int64_t>(frequencies.size())) {
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor ", kRopeFactors,
                                                     " must be F32 with ", frequencies.size(),
                                                     " elements"));
    }
    std::vector<float> factors(frequencies.size());
    std::memcpy(factors.data(), file_.Data(*tensor).data(), factors.size() * sizeof(float));
    for (size_t i = 0; i < factors.size(); ++i) {
      if (!(factors[i] > 0.0f && factors[i] < 1e9f)) {
        return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor ", kRopeFactors,
                                                       " element ", i, " is ", factors[i],
                                                       "; it must be above 0 and below 1e9"));
      }
      frequencies[i] /= factors[i];
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> ReadPositive(const std::string& key, double fallback) {
    WITHY_ASSIGN_OR_RETURN(double value, file_.GetFloatOr(key, fallback));
    if (!(value > 0.0 && value < 1e9)) {
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": ", key, " is ", value,
                                                     "; it must be above 0 and below 1e9"));
    }
    return value;
  }

  // The common divisor of all frequencies. As in llama.cpp 0 means none, and a file without the
  // present key may have the old one.
  absl::StatusOr<double> ReadRopeFactor() {
    std::string key = Key("rope.scaling.factor");
    if (!file_.Has(key)) key = Key("rope.scale_linear");
    WITHY_ASSIGN_OR_RETURN(const double factor, file_.GetFloatOr(key, 0.0));
    if (factor == 0.0) return 1.0;
    return ReadPositive(key, 1.0);
  }

  // Checks that a key which would change the computation has its neutral value.
  absl::Status RequireNeutral(std::string_view suffix, double neutral) {
    const std::string key = Key(suffix);
    WITHY_ASSIGN_OR_RETURN(const double value, file_.GetFloatOr(key, neutral));
    if (value == neutral) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat(file_.path(), ": ", key, " is ", value, "; only ", neutral, " is supported"));
  }

  absl::Status ReadRopeScaling() {
    const std::string type_key = Key("rope.scaling.type");
    // A file with a factor but no type means the oldest type.
    WITHY_ASSIGN_OR_RETURN(std::string_view type, file_.GetStringOr(type_key, "linear"));
    WITHY_RETURN_IF_ERROR(RequireNeutral("rope.scaling.attn_factor", 1.0));
    WITHY_RETURN_IF_ERROR(RequireNeutral("rope.scaling.alpha", 0.0));
    WITHY_ASSIGN_OR_RETURN(const double factor, ReadRopeFactor());
    if (type == "none") return absl::OkStatus();
    if (type == "linear") {
      for (float& f : shape_.rope_frequencies) f = static_cast<float>(f / factor);
      return absl::OkStatus();
    }
    if (type == "llama3") {
      const bool in_tensor = file_.FindTensor(kRopeFactors) != nullptr;
      return in_tensor ? absl::OkStatus() : ScaleLikeLlama3(factor);
    }
    return absl::UnimplementedError(
        absl::StrCat(file_.path(), ": ", type_key, " is \"", ValidUtf8(type, kMaxShownBytes),
                     "\", which is not supported; supported are none, linear, llama3"));
  }

  // The published rule of Llama 3.1: stretches long wavelengths by `factor`, keeps short ones, and
  // blends those between.
  absl::Status ScaleLikeLlama3(double factor) {
    WITHY_ASSIGN_OR_RETURN(double low, ReadPositive(Key("rope.scaling.low_freq_factor"), 1.0));
    WITHY_ASSIGN_OR_RETURN(double high, ReadPositive(Key("rope.scaling.high_freq_factor"), 4.0));
    const std::string original_key = Key("rope.scaling.original_context_length");
    WITHY_ASSIGN_OR_RETURN(int64_t original, file_.GetIntOr(original_key, 8192));
    if (original < 1) return Wrong(original_key, original, "at least 1");
    if (!(high > low)) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_.path(), ": ", Key("rope.scaling.high_freq_factor"), " is ", high,
                       "; it must be above the low one, ", low));
    }
    for (float& f : shape_.rope_frequencies) {
      const double wavelength = 2.0 * std::numbers::pi / f;
      const double turns = static_cast<double>(original) / wavelength;
      const double keep = std::clamp((turns - low) / (high - low), 0.0, 1.0);
      f = static_cast<float>((1.0 - keep) * f / factor + keep * f);
    }
    return absl::OkStatus();
  }

  const GgufFile& file_;
  const Architecture* architecture_ = nullptr;  // of the file
  ModelShape shape_;
};

}  // namespace

absl::StatusOr<ModelShape> ReadShape(const GgufFile& file) { return ShapeReader(file).Read(); }

}  // namespace withy::engine
