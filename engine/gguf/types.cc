#include "engine/gguf/types.h"

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace withy::engine {
namespace {

struct NumberedTraits {
  GgmlType type;
  GgmlTypeTraits traits;
};

constexpr NumberedTraits kTraits[] = {
    {GgmlType::kF32, {"F32", 1, 4}},
    {GgmlType::kF16, {"F16", 1, 2}},
    {GgmlType::kQ4_0, {"Q4_0", 32, 18}},
    {GgmlType::kQ4_1, {"Q4_1", 32, 20}},
    {GgmlType::kQ5_0, {"Q5_0", 32, 22}},
    {GgmlType::kQ5_1, {"Q5_1", 32, 24}},
    {GgmlType::kQ8_0, {"Q8_0", 32, 34}},
    {GgmlType::kQ8_1, {"Q8_1", 32, 36}},
    {GgmlType::kQ2_K, {"Q2_K", 256, 84}},
    {GgmlType::kQ3_K, {"Q3_K", 256, 110}},
    {GgmlType::kQ4_K, {"Q4_K", 256, 144}},
    {GgmlType::kQ5_K, {"Q5_K", 256, 176}},
    {GgmlType::kQ6_K, {"Q6_K", 256, 210}},
    {GgmlType::kQ8_K, {"Q8_K", 256, 292}},
    {GgmlType::kIQ2_XXS, {"IQ2_XXS", 256, 66}},
    {GgmlType::kIQ2_XS, {"IQ2_XS", 256, 74}},
    {GgmlType::kIQ3_XXS, {"IQ3_XXS", 256, 98}},
    {GgmlType::kIQ1_S, {"IQ1_S", 256, 50}},
    {GgmlType::kIQ4_NL, {"IQ4_NL", 32, 18}},
    {GgmlType::kIQ3_S, {"IQ3_S", 256, 110}},
    {GgmlType::kIQ2_S, {"IQ2_S", 256, 82}},
    {GgmlType::kIQ4_XS, {"IQ4_XS", 256, 136}},
    {GgmlType::kI8, {"I8", 1, 1}},
    {GgmlType::kI16, {"I16", 1, 2}},
    {GgmlType::kI32, {"I32", 1, 4}},
    {GgmlType::kI64, {"I64", 1, 8}},
    {GgmlType::kF64, {"F64", 1, 8}},
    {GgmlType::kIQ1_M, {"IQ1_M", 256, 56}},
    {GgmlType::kBF16, {"BF16", 1, 2}},
    {GgmlType::kTQ1_0, {"TQ1_0", 256, 54}},
    {GgmlType::kTQ2_0, {"TQ2_0", 256, 66}},
    {GgmlType::kMXFP4, {"MXFP4", 32, 17}},
    {GgmlType::kNVFP4, {"NVFP4", 64, 36}},
    {GgmlType::kQ1_0, {"Q1_0", 128, 18}},
};

// Types whose blocks are not known here: what wrote them, or what became of them.
constexpr std::string_view kGivenUp =
    "no longer written or read by llama.cpp, which repacks Q4_0 and IQ4_NL itself";
constexpr std::string_view kOldFormat = "of 2023, given up since";
constexpr std::string_view kIk = "of ik_llama.cpp";

struct ForeignType {
  uint32_t number;
  std::string_view name;
  std::string_view from;
};

constexpr ForeignType kForeign[] = {
    {4, "Q4_2", kOldFormat},
    {5, "Q4_3", kOldFormat},
    {31, "Q4_0_4_4", kGivenUp},
    {32, "Q4_0_4_8", kGivenUp},
    {33, "Q4_0_8_8", kGivenUp},
    {36, "IQ4_NL_4_4", "given up by llama.cpp; I2_S of bitnet.cpp has the same number"},
    {37, "IQ4_NL_4_8", kGivenUp},
    {38, "IQ4_NL_8_8", kGivenUp},
    {133, "Q6_0", kIk},
    {134, "IQ1_BN", kIk},
    {135, "IQ2_BN", kIk},
    {137, "IQ2_K", kIk},
    {138, "IQ3_K", kIk},
    {139, "IQ4_K", kIk},
    {140, "IQ5_K", kIk},
    {141, "IQ6_K", kIk},
    {144, "IQ4_KS", kIk},
    {145, "IQ2_KS", kIk},
    {146, "IQ4_KSS", kIk},
    {152, "IQ5_KS", kIk},
    {153, "IQ2_KT", kIk},
    {154, "IQ3_KT", kIk},
    {155, "IQ4_KT", kIk},
    {156, "IQ3_KS", kIk},
    {157, "IQ2_KL", kIk},
    {158, "IQ1_KT", kIk},
};
// Numbers that ik_llama.cpp uses, those of its repacked types included.
constexpr uint32_t kFirstIk = 96;
constexpr uint32_t kLastIk = 399;

}  // namespace

const GgmlTypeTraits* FindTypeTraits(GgmlType type) {
  for (const NumberedTraits& entry : kTraits) {
    if (entry.type == type) return &entry.traits;
  }
  return nullptr;
}

std::string_view TypeName(GgmlType type) {
  const GgmlTypeTraits* traits = FindTypeTraits(type);
  return traits == nullptr ? "unknown" : traits->name;
}

std::string TypeLabel(GgmlType type) {
  if (const GgmlTypeTraits* traits = FindTypeTraits(type)) return std::string(traits->name);
  const auto number = static_cast<uint32_t>(type);
  for (const ForeignType& foreign : kForeign) {
    if (foreign.number != number) continue;
    return absl::StrCat(ToAbsl(foreign.name), " (number ", number, ", ", ToAbsl(foreign.from), ")");
  }
  const bool ik = number >= kFirstIk && number <= kLastIk;
  return absl::StrCat("number ", number, " (", ik ? "probably of ik_llama.cpp" : "unknown", ")");
}

std::string_view ValueTypeName(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
      return "uint8";
    case GgufValueType::kInt8:
      return "int8";
    case GgufValueType::kUint16:
      return "uint16";
    case GgufValueType::kInt16:
      return "int16";
    case GgufValueType::kUint32:
      return "uint32";
    case GgufValueType::kInt32:
      return "int32";
    case GgufValueType::kFloat32:
      return "float32";
    case GgufValueType::kBool:
      return "bool";
    case GgufValueType::kString:
      return "string";
    case GgufValueType::kArray:
      return "array";
    case GgufValueType::kUint64:
      return "uint64";
    case GgufValueType::kInt64:
      return "int64";
    case GgufValueType::kFloat64:
      return "float64";
  }
  return "unknown";
}

uint32_t ScalarBytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      break;
  }
  return 0;
}

bool DescribesStorage(std::string_view key) {
  return key == kGgufOwnTensors || key == kGgufSplitIndex || key == kGgufSplitCount ||
         key == kGgufSplitTensors;
}

}  // namespace withy::engine
