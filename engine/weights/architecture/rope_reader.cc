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

class RopeReader {
 public:
  RopeReader(const ShapeKeys& keys, const Architecture& architecture, ModelShape* shape)
      : file_(keys.file()), keys_(keys), architecture_(architecture), shape_(*shape) {}

  absl::Status Read() {
    WITHY_RETURN_IF_ERROR(ReadRopeDims());
    WITHY_RETURN_IF_ERROR(RefuseLongRope());
    WITHY_ASSIGN_OR_RETURN(const double base, ReadRopeBase("rope.freq_base", 10000.0));
    shape_.rope_frequencies = Frequencies(base);
    WITHY_RETURN_IF_ERROR(ReadRopeScaling());
    WITHY_RETURN_IF_ERROR(DivideByRopeFactors());
    WITHY_RETURN_IF_ERROR(ReadLayersWithoutRope());
    return ReadWindowRope(base);
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

  // Two sets of frequencies, of which the length of the context chooses one.
  absl::Status RefuseLongRope() const {
    for (const char* tensor : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
      if (file_.FindTensor(tensor) == nullptr) continue;
      return absl::UnimplementedError(
          absl::StrCat(file_.path(), ": tensor ", tensor,
                       ": LongRoPE is not supported: take the model's variant with the shorter "
                       "context, such as 4k instead of 128k"));
    }
    return absl::OkStatus();
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
    bool turns = true;
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
    if (plain == shape_.rope_frequencies) return absl::OkStatus();
    shape_.rope_frequencies.insert(shape_.rope_frequencies.end(), plain.begin(), plain.end());
    for (const int32_t window : shape_.windows) {
      shape_.ropes.push_back(window > 0 ? int8_t{1} : int8_t{0});
    }
    return absl::OkStatus();
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

  absl::Status ReadRopeScaling() {
    const std::string type_key = keys_.Key("rope.scaling.type");
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
