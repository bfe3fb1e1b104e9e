#include "engine/cuda/angle_table.h"

#include "engine/cpu/kernels.h"

namespace withy::engine::cuda {

const float* AngleTable::At(int32_t position) {
  const auto number = static_cast<size_t>(position / kPositions);
  if (number >= parts_.size()) parts_.resize(number + 1);
  std::vector<float>& part = parts_[number];
  if (part.empty()) {
    part.resize(kPositions * angles_);
    for (int32_t i = 0; i < kPositions; ++i) {
      RopeAngles(frequencies_, scale_, static_cast<int32_t>(number) * kPositions + i, interleaved_,
                 part.data() + static_cast<size_t>(i) * angles_);
    }
  }
  return part.data() + static_cast<size_t>(position % kPositions) * angles_;
}

}  // namespace withy::engine::cuda
