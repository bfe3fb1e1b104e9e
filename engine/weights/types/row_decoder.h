// Converts one row of a GGUF tensor to the form PackRow takes, requantising if the packed type
// differs. Neighbours: packed_type.h says which type that is, packer.cc calls it. Holds scratch
// memory: one per thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/gguf/types.h"

namespace withy::engine {

class RowDecoder {
 public:
  // `block_order`: source block (32 columns) of each packed block, empty for unchanged order; must
  // outlive the decoder.
  RowDecoder(GgmlType type, WeightType packed_type, int64_t cols,
             std::span<const int32_t> block_order);

  // Decodes the row with bytes `src`; valid until the next call. Errors: as Dequantize();
  // InvalidArgument for a scale that half precision cannot hold.
  absl::StatusOr<WeightRow> Decode(std::span<const uint8_t> src);

 private:
  void DecodeQ8(std::span<const uint8_t> src);
  void DecodeQ4(std::span<const uint8_t> src);
  absl::Status DecodeQ4Min(std::span<const uint8_t> src);
  // Quants and scales of blocks that are 8 bits or fewer with one scale.
  absl::Status Split(std::span<const uint8_t> src);
  absl::Status SplitTernary(std::span<const uint8_t> src);
  // Quants that are values of the packed type's table.
  absl::Status SplitTable(std::span<const uint8_t> src);
  absl::Status Requantize(std::span<const uint8_t> src);
  // Reorders blocks of `width` elements each.
  template <typename T>
  void Reorder(std::vector<T>* values, size_t width);

  GgmlType type_;
  WeightType packed_type_;
  size_t cols_;
  std::span<const int32_t> block_order_;
  bool requantises_ = true;
  std::vector<float> floats_;
  std::vector<float> whole_scales_;
  std::vector<float> mins_f32_;
  std::vector<uint16_t> halves_;
  std::vector<int8_t> q8_;
  std::vector<uint8_t> q4_;
  std::vector<uint8_t> nibbles_;
  std::vector<uint16_t> scales_;
  std::vector<uint16_t> mins_;
};

}  // namespace withy::engine
