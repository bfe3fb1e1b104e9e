#include "engine/weights/architecture/rope_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/utf8.h"

namespace withy::engine {
namespace {

constexpr char kRopeFactors[] = "rope_freqs.weight";
constexpr char kShortFactors[] = "rope_factors_short.weight";
constexpr char kLongFactors[] = "rope_factors_long.weight";
constexpr std::string_view kLongRope = "longrope";  // a value of rope.scaling.type
constexpr int64_t kMaxOriginalContext = 1 << 24;    // as of context_length

class RopeReader {
 public:
  RopeReader(const ShapeKeys& keys, const Architecture& architecture, ModelShape* shape)
      : file_(keys.file()), keys_(keys), architecture_(architecture), shape_(*shape) {}

  absl::Status Read() {
    WITHY_RETURN_IF_ERROR(ReadRopeDims());
    WITHY_ASSIGN_OR_RETURN(const double base, ReadRopeBase("rope.freq_base", 10000.0));
    shape_.rope_frequencies = Frequencies(base);
    WITHY_RETURN_IF_ERROR(ReadRopeScaling(base));
    WITHY_RETURN_IF_ERROR(DivideByFactors(kRopeFactors, &shape_.rope_frequencies));
    WITHY_RETURN_IF_ERROR(ReadLayersWithoutRope());
    WITHY_RETURN_IF_ERROR(ReadWindowRope(base));
    return ReadLongRope();
  }

 private:
  absl::Status ReadRopeDims() {
    const std::string key = keys_.Key("rope.dimension_count");
    WITHY_ASSIGN_OR_RETURN(const int64_t dims, file_.GetIntOr(key, shape_.head_dim));
    if (architecture_.partial_rope) {
      if (dims < 2 || dims > shape_.head_dim || dims % 2 != 0) {
        return keys_.Wrong(key, dims,
                           absl::StrCat("even, from 2 to the head size, ", shape_.head_dim));
      }
    } else if (dims != shape_.head_dim) {
      return keys_.Wrong(key, dims, absl::StrCat("the head size, ", shape_.head_dim));
    }
    shape_.rope_dims = static_cast<int32_t>(dims);
    return absl::OkStatus();
  }

  // Two sets of frequencies, of which the window chooses one. llama.cpp's converter writes the
  // tensors of phi3 without a type.
  absl::Status ReadLongRope() {
    const bool has_factors =
        file_.FindTensor(kShortFactors) != nullptr || file_.FindTensor(kLongFactors) != nullptr;
    const bool packed = file_.tensors().empty();  // has the frequencies elsewhere
    if (!has_factors && !packed) return RefuseLongRopeWithoutFactors();
    WITHY_ASSIGN_OR_RETURN(const int64_t original, OriginalContext());
    shape_.long_rope_above = static_cast<int32_t>(original);
    if (packed) return absl::OkStatus();
    for (const char* factors : {kShortFactors, kLongFactors}) {
      WITHY_RETURN_IF_ERROR(file_.GetTensor(factors).status());
    }
    if (shape_.rope_frequencies.size() != static_cast<size_t>(shape_.rope_dims / 2)) {
      return absl::UnimplementedError(absl::StrCat(
          file_.path(), ": tensor ", kLongFactors,
          ": LongRoPE beside another RoPE base of layers with a window is not supported"));
    }
    shape_.long_rope_frequencies = shape_.rope_frequencies;
    WITHY_RETURN_IF_ERROR(DivideByFactors(kShortFactors, &shape_.rope_frequencies));
    return DivideByFactors(kLongFactors, &shape_.long_rope_frequencies);
  }

  absl::Status RefuseLongRopeWithoutFactors() const {
    const std::string_view type =
        file_.GetStringOr(keys_.Key("rope.scaling.type"), "").value_or("");
    if (type != kLongRope) return absl::OkStatus();
    return file_.GetTensor(kLongFactors).status();
  }

  // Tokens of a context that the model was trained for before its RoPE was stretched.
  absl::StatusOr<int64_t> OriginalContext() const {
    const std::string key = keys_.Key("rope.scaling.original_context_length");
    WITHY_ASSIGN_OR_RETURN(const int64_t trained, file_.GetInt(keys_.Key("context_length")));
    WITHY_ASSIGN_OR_RETURN(int64_t original, file_.GetIntOr(key, trained));
    if (original == 0) original = trained;  // as in llama.cpp
    if (original < 1 || original > kMaxOriginalContext) {
      return keys_.Wrong(key, original, absl::StrCat("1 to ", kMaxOriginalContext));
    }
    return original;
  }

  absl::StatusOr<double> ReadRopeBase(std::string_view suffix, double fallback) const {
    const std::string key = keys_.Key(suffix);
    WITHY_ASSIGN_OR_RETURN(const double base, file_.GetFloatOr(key, fallback));
    if (base > 1.0 && base < 1e12) return base;
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": ", key, " is ", base, "; it must be between 1 and 1e12"));
  }

  std::vector<float> Frequencies(double base) const {
    std::vector<float> frequencies(static_cast<size_t>(shape_.rope_dims / 2));
    for (size_t i = 0; i < frequencies.size(); ++i) {
      frequencies[i] =
          static_cast<float>(std::pow(base, -2.0 * static_cast<double>(i) / shape_.rope_dims));
    }
    return frequencies;
  }

  absl::Status ReadLayersWithoutRope() {
    bool turns = !architecture_.learned_positions;
    if (architecture_.rope_switch) {
      WITHY_ASSIGN_OR_RETURN(turns, file_.GetBoolOr(keys_.Key("rope.scaling.finetuned"), true));
    }
    const int32_t period = architecture_.rope_period;
    if (turns && period == 0) return absl::OkStatus();
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      const bool without = !turns || (layer + 1) % period == 0;
      shape_.ropes.push_back(without ? ModelShape::kNoRope : int8_t{0});
    }
    return absl::OkStatus();
  }

  // The frequencies of layers with a window, where they differ.
  absl::Status ReadWindowRope(double base) {
    if (shape_.windows.empty() || architecture_.window_rule != WindowRule::kPattern) {
      return absl::OkStatus();
    }
    const double fallback =
        architecture_.window_rope_base > 0.0f ? double{architecture_.window_rope_base} : base;
    WITHY_ASSIGN_OR_RETURN(const double own, ReadRopeBase("rope.freq_base_swa", fallback));
    std::vector<float> plain = Frequencies(own);
    if (architecture_.window_rope_scaled) {
      if (own == base) return absl::OkStatus();
      const std::vector<float> unscaled = Frequencies(base);
      for (size_t i = 0; i < plain.size(); ++i) {
        plain[i] *= shape_.rope_frequencies[i] / unscaled[i];
      }
    }
    if (architecture_.window_rope_scaled) shape_.rope_scales[1] = shape_.rope_scales[0];
    if (plain == shape_.rope_frequencies && shape_.rope_scales[0] == shape_.rope_scales[1]) {
      return absl::OkStatus();
    }
    shape_.rope_frequencies.insert(shape_.rope_frequencies.end(), plain.begin(), plain.end());
    for (const int32_t window : shape_.windows) {
      shape_.ropes.push_back(window > 0 ? int8_t{1} : int8_t{0});
    }
    return absl::OkStatus();
  }

  // Applies the file's own frequency divisors, if it has this tensor: converters write them for
  // Llama 3 and LongRoPE.
  absl::Status DivideByFactors(const char* name, std::vector<float>* frequencies) {
    const TensorInfo* tensor = file_.FindTensor(name);
    if (tensor == nullptr) return absl::OkStatus();
    if (tensor->type != GgmlType::kF32 ||
        tensor->elements() != static_cast<int64_t>(frequencies->size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": tensor ", name, " must be F32 with ", frequencies->size(), " elements"));
    }
    std::vector<float> factors(frequencies->size());
    std::memcpy(factors.data(), file_.Data(*tensor).data(), factors.size() * sizeof(float));
    for (size_t i = 0; i < factors.size(); ++i) {
      if (!(factors[i] > 0.0f && factors[i] < 1e9f)) {
        return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor ", name, " element ",
                                                       i, " is ", factors[i],
                                                       "; it must be above 0 and below 1e9"));
      }
      (*frequencies)[i] /= factors[i];
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
    std::string key = keys_.Key("rope.scaling.factor");
    if (!file_.Has(key)) key = keys_.Key("rope.scale_linear");
    WITHY_ASSIGN_OR_RETURN(const double factor, file_.GetFloatOr(key, 0.0));
    if (factor == 0.0) return 1.0;
    return ReadPositive(key, 1.0);
  }

  // Checks that a key which would change the computation has its neutral value.
  absl::Status RequireNeutral(std::string_view suffix, double neutral) {
    const std::string key = keys_.Key(suffix);
    WITHY_ASSIGN_OR_RETURN(const double value, file_.GetFloatOr(key, neutral));
    if (value == neutral) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat(file_.path(), ": ", key, " is ", value, "; only ", neutral, " is supported"));
  }

  absl::Status ReadRopeScaling(double base) {
    const std::string type_key = keys_.Key("rope.scaling.type");
    // A file with a factor but no type means the oldest type.
    WITHY_ASSIGN_OR_RETURN(std::string_view type, file_.GetStringOr(type_key, "linear"));
    WITHY_RETURN_IF_ERROR(RequireNeutral("rope.scaling.alpha", 0.0));
    WITHY_ASSIGN_OR_RETURN(const double factor, ReadRopeFactor());
    WITHY_ASSIGN_OR_RETURN(const double scale,
                           ReadPositive(keys_.Key("rope.scaling.attn_factor"), 1.0));
    shape_.rope_scales[0] = static_cast<float>(scale);
    if (type == "none") return absl::OkStatus();
    if (type == "linear" || type == kLongRope) {
      for (float& f : shape_.rope_frequencies) f = static_cast<float>(f / factor);
      return absl::OkStatus();
    }
    if (type == "yarn") return ScaleLikeYarn(base, factor);
    if (type == "llama3") {
      const bool in_tensor = file_.FindTensor(kRopeFactors) != nullptr;
      return in_tensor ? absl::OkStatus() : ScaleLikeLlama3(factor);
    }
    return absl::UnimplementedError(absl::StrCat(
        file_.path(), ": ", type_key, " is \"", ValidUtf8(type, kMaxShownBytes),
        "\", which is not supported; supported are none, linear, llama3, yarn, longrope"));
  }

  // Stretches pairs that turn rarely within the original context by `factor`, keeps those that turn
  // often, and blends those between; scales the cosines and sines. Source: YaRN, section 3.2 and
  // equation 22, with the bounds rounded as llama.cpp and most models do.
  absl::Status ScaleLikeYarn(double base, double factor) {
    WITHY_ASSIGN_OR_RETURN(const int64_t original, OriginalContext());
    WITHY_ASSIGN_OR_RETURN(const double fast,
                           ReadPositive(keys_.Key("rope.scaling.yarn_beta_fast"), 32.0));
    WITHY_ASSIGN_OR_RETURN(const double slow,
                           ReadPositive(keys_.Key("rope.scaling.yarn_beta_slow"), 1.0));
    WITHY_ASSIGN_OR_RETURN(double kept, ReadFactorOr("rope.scaling.yarn_ext_factor", 1.0));
    WITHY_ASSIGN_OR_RETURN(const double multiplier,
                           ReadFactorOr("rope.scaling.yarn_log_multiplier", 0.0));
    const double dims = shape_.rope_dims;
    // The dimension that turns so often within the original context.
    const auto dim_of = [&](double turns) {
      return dims * std::log(static_cast<double>(original) / (turns * 2.0 * std::numbers::pi)) /
             (2.0 * std::log(base));
    };
    double low = dim_of(fast);
    double high = dim_of(slow);
    if (architecture_.whole_yarn_bounds) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(0.0, low);
    high = std::min(dims - 1.0, high);
    for (size_t i = 0; i < shape_.rope_frequencies.size(); ++i) {
      const double ramp = (static_cast<double>(i) - low) / std::max(0.001, high - low);
      const double keep = kept * (1.0 - std::clamp(ramp, 0.0, 1.0));
      float& f = shape_.rope_frequencies[i];
      f = static_cast<float>((1.0 - keep) * f / factor + keep * f);
    }
    const auto scale_of = [factor](double by) {
      return factor <= 1.0 ? 1.0 : 0.1 * by * std::log(factor) + 1.0;
    };
    WITHY_ASSIGN_OR_RETURN(double scale,
                           ReadPositive(keys_.Key("rope.scaling.yarn_attn_factor"), 1.0));
    if (kept != 0.0) scale = scale_of(1.0) / (multiplier == 0.0 ? 1.0 : scale_of(multiplier));
    shape_.rope_scales[0] *= static_cast<float>(scale);
    return absl::OkStatus();
  }

  // A number from 0 on; `fallback` if the key is missing or, as in llama.cpp, negative.
  absl::StatusOr<double> ReadFactorOr(std::string_view suffix, double fallback) {
    const std::string key = keys_.Key(suffix);
    WITHY_ASSIGN_OR_RETURN(const double value, file_.GetFloatOr(key, fallback));
    if (value < 1e9) return value < 0.0 ? fallback : value;
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": ", key, " is ", value, "; it must be below 1e9"));
  }

  // The published rule of Llama 3.1: stretches long wavelengths by `factor`, keeps short ones, and
  // blends those between.
  absl::Status ScaleLikeLlama3(double factor) {
    WITHY_ASSIGN_OR_RETURN(double low,
                           ReadPositive(keys_.Key("rope.scaling.low_freq_factor"), 1.0));
    WITHY_ASSIGN_OR_RETURN(double high,
                           ReadPositive(keys_.Key("rope.scaling.high_freq_factor"), 4.0));
    const std::string original_key = keys_.Key("rope.scaling.original_context_length");
    WITHY_ASSIGN_OR_RETURN(int64_t original, file_.GetIntOr(original_key, 8192));
    if (original < 1) return keys_.Wrong(original_key, original, "at least 1");
    if (!(high > low)) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_.path(), ": ", keys_.Key("rope.scaling.high_freq_factor"), " is ", high,
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
  const ShapeKeys& keys_;
  const Architecture& architecture_;
  ModelShape& shape_;
};

}  // namespace

absl::Status ReadRope(const ShapeKeys& keys, const Architecture& architecture, ModelShape* shape) {
  return RopeReader(keys, architecture, shape).Read();
}

}  // namespace withy::engine
