#include "engine/session/recommended_sampling.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "base/strings.h"
#include "engine/sampling/sampler.h"

namespace withy::engine {
namespace {

constexpr double kMaxTopK = 1 << 30;

class Reader {
 public:
  Reader(const GgufFile& file, RecommendedSampling* out) : file_(file), out_(*out) {}

  // nullopt if the key is missing or has no finite number; notes the latter.
  std::optional<double> Number(std::string_view name) {
    key_ = absl::StrCat("general.sampling.", ToAbsl(name));
    if (!file_.Has(key_)) return std::nullopt;
    if (const auto value = file_.GetFloat(key_); value.ok()) return Finite(*value);
    if (const auto value = file_.GetInt(key_); value.ok()) return static_cast<double>(*value);
    double value = 0;
    const auto text = file_.GetString(key_);
    if (text.ok() && absl::SimpleAtod(ToAbsl(*text), &value)) return Finite(value);
    out_.ignored.push_back(absl::StrCat(key_, ", which is not a number"));
    return std::nullopt;
  }

  // Notes that the key read last has an unusable value.
  void Ignore(double value, std::string_view range) {
    out_.ignored.push_back(absl::StrCat(key_, " = ", value, ", which is not ", ToAbsl(range)));
  }

 private:
  std::optional<double> Finite(double value) {
    if (std::isfinite(value)) return value;
    Ignore(value, "finite");
    return std::nullopt;
  }

  const GgufFile& file_;
  RecommendedSampling& out_;
  std::string key_;
};

}  // namespace

RecommendedSampling ReadRecommendedSampling(const GgufFile& file) {
  RecommendedSampling out;
  Reader reader(file, &out);
  if (const auto temperature = reader.Number("temp")) {
    if (*temperature <= kMaxTemperature) {
      out.temperature = static_cast<float>(std::max(0.0, *temperature));
    } else {
      reader.Ignore(*temperature, absl::StrCat("at most ", kMaxTemperature));
    }
  }
  if (const auto top_k = reader.Number("top_k"))
    out.top_k = static_cast<uint32_t>(std::clamp(*top_k, 0.0, kMaxTopK));
  if (const auto top_p = reader.Number("top_p")) {
    if (*top_p > 0) {
      out.top_p = static_cast<float>(std::min(1.0, *top_p));
    } else {
      reader.Ignore(*top_p, "above 0");
    }
  }
  if (const auto min_p = reader.Number("min_p")) {
    if (*min_p < 1) {
      out.min_p = static_cast<float>(std::max(0.0, *min_p));
    } else {
      reader.Ignore(*min_p, "below 1");
    }
  }
  if (const auto penalty = reader.Number("penalty_repeat")) {
    if (*penalty > 0 && *penalty <= kMaxRepetitionPenalty) {
      out.repetition_penalty = static_cast<float>(*penalty);
    } else {
      reader.Ignore(*penalty, absl::StrCat("above 0 and at most ", kMaxRepetitionPenalty));
    }
  }
  if (const auto window = reader.Number("penalty_last_n")) {
    const double most = kMaxRepetitionWindow;
    out.repetition_window = static_cast<uint32_t>(*window < 0 ? most : std::min(most, *window));
  }
  return out;
}

}  // namespace withy::engine
