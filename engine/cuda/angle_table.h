// RoPE's angles by position, computed once: sines and cosines of a long prompt take the host
// milliseconds. Neighbours: pass_inputs.cc copies them for a pass; cpu/kernels.h computes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace withy::engine::cuda {

// For one thread at a time. `frequencies` must outlive it.
class AngleTable {
 public:
  // `angles`: floats of a position.
  AngleTable(const std::vector<float>& frequencies, float scale, bool interleaved, int angles)
      : frequencies_(frequencies),
        scale_(scale),
        interleaved_(interleaved),
        angles_(static_cast<size_t>(angles)) {}

  // As RopeAngles writes them; valid until the next call.
  const float* At(int32_t position);

 private:
  static constexpr int32_t kPositions = 64;  // computed together

  const std::vector<float>& frequencies_;
  const float scale_;
  const bool interleaved_;
  const size_t angles_;
  std::vector<std::vector<float>> parts_;  // of kPositions each; empty: not computed
};

}  // namespace withy::engine::cuda
