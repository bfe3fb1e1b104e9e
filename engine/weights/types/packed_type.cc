#include "engine/weights/types/packed_type.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::engine {

absl::StatusOr<PackedChoice> PackedChoiceFor(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return PackedChoice{.type = WeightType::kF32, .accuracy = PackedAccuracy::kExact};
    case GgmlType::kF16:
      return PackedChoice{.type = WeightType::kF16, .accuracy = PackedAccuracy::kExact};
    case GgmlType::kBF16:
      return PackedChoice{.type = WeightType::kBf16, .accuracy = PackedAccuracy::kExact};
    case GgmlType::kQ8_0:
    case GgmlType::kQ5_0:
    case GgmlType::kQ3_K:
      return PackedChoice{.type = WeightType::kQ8, .accuracy = PackedAccuracy::kExact};
    case GgmlType::kMXFP4:
      return PackedChoice{.type = WeightType::kFp4, .accuracy = PackedAccuracy::kExact};
    case GgmlType::kIQ4_NL:
      return PackedChoice{.type = WeightType::kNl4, .accuracy = PackedAccuracy::kExact};
    case GgmlType::kIQ4_XS:
      return PackedChoice{.type = WeightType::kNl4, .accuracy = PackedAccuracy::kRoundedScale};
    case GgmlType::kQ8_K:
      return PackedChoice{.type = WeightType::kQ8, .accuracy = PackedAccuracy::kRoundedScale};
    case GgmlType::kQ5_1:
    case GgmlType::kQ2_K:
    case GgmlType::kQ5_K:
    case GgmlType::kQ6_K:
      return PackedChoice{.type = WeightType::kQ8, .accuracy = PackedAccuracy::kRequantised};
    case GgmlType::kQ4_0:
    case GgmlType::kTQ1_0:
    case GgmlType::kTQ2_0:
      return PackedChoice{.type = WeightType::kQ4, .accuracy = PackedAccuracy::kExact};
    case GgmlType::kQ4_1:
      return PackedChoice{.type = WeightType::kQ4M, .accuracy = PackedAccuracy::kExact};
    case GgmlType::kQ4_K:
      return PackedChoice{.type = WeightType::kQ4M, .accuracy = PackedAccuracy::kRoundedScale};
    default:
      return absl::UnimplementedError(
          absl::StrCat("type ", TypeLabel(type), " is not supported; ", kSupportedTypes));
  }
}

absl::StatusOr<WeightType> PackedTypeFor(GgmlType type) {
  WITHY_ASSIGN_OR_RETURN(const PackedChoice choice, PackedChoiceFor(type));
  return choice.type;
}

std::string_view AccuracyText(PackedAccuracy accuracy) {
  switch (accuracy) {
    case PackedAccuracy::kExact:
      return "exactly";
    case PackedAccuracy::kRoundedScale:
      return "with scales rounded to half precision";
    case PackedAccuracy::kRequantised:
      return "requantised, off by at most 0.5 % of the largest of 32";
  }
  return "?";
}

}  // namespace withy::engine
