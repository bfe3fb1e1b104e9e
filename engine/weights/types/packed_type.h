// Says what the types of a GGUF become in a packed file, and how exactly. Neighbours: row_decoder.h
// converts the rows; layout.h plans the file; `withyctl models inspect` shows it.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/cpu/types.h"
#include "engine/gguf/types.h"

namespace withy::engine {

inline constexpr char kSupportedTypes[] =
    "supported are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, "
    "Q8_K, IQ4_NL, IQ4_XS, MXFP4, TQ1_0, TQ2_0: take a file of the model in one of them, such as "
    "Q4_K_M or Q8_0";

// How far packed weights are from the file's.
enum class PackedAccuracy {
  kExact,         // the same values (MXFP4: if its scale is one of half precision)
  kRoundedScale,  // scale and minimum rounded to half precision: 2^-11 of each
  kRequantised,   // 8 bits anew: at most 1/220 of the largest magnitude of 32 consecutive weights
};

struct PackedChoice {
  WeightType type = WeightType::kF32;
  PackedAccuracy accuracy = PackedAccuracy::kExact;
};

// Kernel type for a file's tensor type. Q8 has 8.5 bits a weight, Q4, Fp4 and Nl4 4.5, Q4M 5.
// Errors: UNIMPLEMENTED listing the supported types.
absl::StatusOr<PackedChoice> PackedChoiceFor(GgmlType type);
// The same, its type alone.
absl::StatusOr<WeightType> PackedTypeFor(GgmlType type);

// For people: "exactly", "scales rounded to half precision", ...
std::string_view AccuracyText(PackedAccuracy accuracy);

}  // namespace withy::engine
