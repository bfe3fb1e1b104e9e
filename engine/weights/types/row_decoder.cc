#include "engine/weights/types/row_decoder.h"

#include <array>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/gguf/quants.h"
#include "engine/weights/types/packed_type.h"

namespace withy::engine {
namespace {

bool IsTernary(GgmlType type) { return type == GgmlType::kTQ1_0 || type == GgmlType::kTQ2_0; }

}  // namespace

RowDecoder::RowDecoder(GgmlType type, WeightType packed_type, int64_t cols,
                       std::span<const int32_t> block_order)
    : type_(type),
      packed_type_(packed_type),
      cols_(static_cast<size_t>(cols)),
      block_order_(block_order) {
  const size_t blocks = cols_ / kQuantBlock;
  if (packed_type == WeightType::kF32 || packed_type == WeightType::kQ8) floats_.resize(cols_);
  if (packed_type == WeightType::kF16 || packed_type == WeightType::kBf16) halves_.resize(cols_);
  if (packed_type == WeightType::kQ8) q8_.resize(cols_);
  if (IsQuantized(packed_type) && packed_type != WeightType::kQ8) q4_.resize(cols_);
  if (IsQuantized(packed_type)) scales_.resize(blocks);
  const auto choice = PackedChoiceFor(type);
  if (choice.ok()) requantises_ = choice->accuracy == PackedAccuracy::kRequantised;
  if (IsTernary(type) || HasTable(packed_type)) q8_.resize(cols_);
  if (MultipliesAsQ8(packed_type) || IsTernary(type)) whole_scales_.resize(blocks);
  if (packed_type == WeightType::kQ4M) {
    floats_.resize(blocks);
    mins_f32_.resize(blocks);
    nibbles_.resize(cols_ / 2);
    mins_.resize(blocks);
  }
}

template <typename T>
void RowDecoder::Reorder(std::vector<T>* values, size_t width) {
  if (block_order_.empty()) return;
  std::vector<T> ordered(values->size());
  for (size_t b = 0; b < block_order_.size(); ++b) {
    std::memcpy(ordered.data() + b * width,
                values->data() + static_cast<size_t>(block_order_[b]) * width, width * sizeof(T));
  }
  values->swap(ordered);
}

void RowDecoder::DecodeQ8(std::span<const uint8_t> src) {
  for (size_t b = 0; b < cols_ / 32; ++b) {
    const uint8_t* block = src.data() + b * 34;
    std::memcpy(&scales_[b], block, 2);
    std::memcpy(&q8_[b * 32], block + 2, 32);
  }
}

void RowDecoder::DecodeQ4(std::span<const uint8_t> src) {
  for (size_t b = 0; b < cols_ / 32; ++b) {
    const uint8_t* block = src.data() + b * 18;
    std::memcpy(&scales_[b], block, 2);
    for (size_t j = 0; j < 16; ++j) {
      q4_[b * 32 + j] = block[2 + j] & 15;
      q4_[b * 32 + 16 + j] = block[2 + j] >> 4;
    }
  }
}

absl::Status RowDecoder::DecodeQ4Min(std::span<const uint8_t> src) {
  WITHY_RETURN_IF_ERROR(
      ToQ4Min(type_, src, {.scales = floats_, .mins = mins_f32_, .quants = nibbles_}));
  for (size_t b = 0; b < cols_ / 32; ++b) {
    scales_[b] = FloatToHalf(floats_[b]);
    mins_[b] = FloatToHalf(-mins_f32_[b]);
    for (size_t j = 0; j < 16; ++j) {
      q4_[b * 32 + j] = nibbles_[b * 16 + j] & 15;
      q4_[b * 32 + 16 + j] = nibbles_[b * 16 + j] >> 4;
    }
  }
  return absl::OkStatus();
}

absl::Status RowDecoder::Split(std::span<const uint8_t> src) {
  WITHY_RETURN_IF_ERROR(ToQ8(type_, src, {.scales = whole_scales_, .quants = q8_}));
  for (size_t b = 0; b < whole_scales_.size(); ++b) {
    scales_[b] = FloatToHalf(whole_scales_[b]);
    if (std::isfinite(whole_scales_[b]) && !std::isfinite(HalfToFloat(scales_[b]))) {
      return absl::InvalidArgumentError(
          absl::StrCat("has a scale of ", whole_scales_[b],
                       ", at most 65504 can be packed: take the model in F16, BF16 or Q8_0"));
    }
  }
  return absl::OkStatus();
}

absl::Status RowDecoder::SplitTernary(std::span<const uint8_t> src) {
  WITHY_RETURN_IF_ERROR(Split(src));
  for (size_t i = 0; i < cols_; ++i) q4_[i] = static_cast<uint8_t>(q8_[i] + 8);
  return absl::OkStatus();
}

absl::Status RowDecoder::SplitTable(std::span<const uint8_t> src) {
  WITHY_RETURN_IF_ERROR(Split(src));
  const std::span<const int8_t, 16> table(TableOf(packed_type_), 16);
  std::array<uint8_t, 256> index{};  // by value
  for (size_t i = table.size(); i-- > 0;) {
    index[static_cast<uint8_t>(table[i])] = static_cast<uint8_t>(i);
  }
  for (size_t i = 0; i < cols_; ++i) q4_[i] = index[static_cast<uint8_t>(q8_[i])];
  return absl::OkStatus();
}

absl::Status RowDecoder::Requantize(std::span<const uint8_t> src) {
  WITHY_RETURN_IF_ERROR(Dequantize(type_, src, floats_));
  QuantizeQ8(floats_.data(), static_cast<int>(cols_), q8_.data(), scales_.data());
  return absl::OkStatus();
}

absl::StatusOr<WeightRow> RowDecoder::Decode(std::span<const uint8_t> src) {
  switch (packed_type_) {
    case WeightType::kF32:
      std::memcpy(floats_.data(), src.data(), cols_ * sizeof(float));
      Reorder(&floats_, kQuantBlock);
      return WeightRow{.f32 = floats_.data()};
    case WeightType::kF16:
    case WeightType::kBf16:
      std::memcpy(halves_.data(), src.data(), cols_ * sizeof(uint16_t));
      Reorder(&halves_, kQuantBlock);
      return WeightRow{.half = halves_.data()};
    case WeightType::kQ8:
      if (type_ == GgmlType::kQ8_0) {
        DecodeQ8(src);
      } else if (!requantises_) {
        WITHY_RETURN_IF_ERROR(Split(src));
      } else {
        WITHY_RETURN_IF_ERROR(Requantize(src));
      }
      Reorder(&q8_, kQuantBlock);
      Reorder(&scales_, 1);
      return WeightRow{.q8 = q8_.data(), .scales = scales_.data()};
    case WeightType::kQ4:
      if (IsTernary(type_)) {
        WITHY_RETURN_IF_ERROR(SplitTernary(src));
      } else {
        DecodeQ4(src);
      }
      Reorder(&q4_, kQuantBlock);
      Reorder(&scales_, 1);
      return WeightRow{.q4 = q4_.data(), .scales = scales_.data()};
    case WeightType::kFp4:
    case WeightType::kNl4:
      WITHY_RETURN_IF_ERROR(SplitTable(src));
      Reorder(&q4_, kQuantBlock);
      Reorder(&scales_, 1);
      return WeightRow{.q4 = q4_.data(), .scales = scales_.data()};
    case WeightType::kQ4M:
      WITHY_RETURN_IF_ERROR(DecodeQ4Min(src));
      Reorder(&q4_, kQuantBlock);
      Reorder(&scales_, 1);
      Reorder(&mins_, 1);
      return WeightRow{.q4 = q4_.data(), .scales = scales_.data(), .mins = mins_.data()};
  }
  return absl::InternalError("unknown packed type");
}

}  // namespace withy::engine
