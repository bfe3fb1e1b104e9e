#include "policy/kv/load_learning.h"

#include <algorithm>

#include "policy/constants.h"

namespace withy::policy {

void LoadLearning::Calibrate(const LoadCosts& worker) {
  const LoadCosts before = costs_;
  costs_ = calibrated_ = worker;
  SetReading(before.read_fixed_ms, before.read_mib_ms);
}

void LoadLearning::SetReading(double fixed_ms, double mib_ms) {
  costs_.read_fixed_ms = fixed_ms;
  costs_.read_mib_ms = mib_ms;
}

void LoadLearning::OnLoadEnded(const EndedLoad& load) {
  const double factor = costs_.recompute_chunk_ms / calibrated_.recompute_chunk_ms;
  const double planned = load.planned.recompute_chunk_ms / calibrated_.recompute_chunk_ms;
  const double shown =
      load.recomputed < kLeastRecomputedThatTeach
          ? factor + kRecomputeForget * (1 - factor)
          : factor + kLoadLearningShare * (load.recompute_slowdown * planned - factor);
  costs_.ScaleRecompute(std::clamp(shown, 1 / kMostRecomputeSpeedUp, kMostRecomputeSlowdown) /
                        factor);
  if (load.read_bytes < kLeastReadBytesThatTeach) return;
  costs_.read_mib_ms +=
      kLoadLearningShare * (load.read_slowdown * load.planned.read_mib_ms - costs_.read_mib_ms);
}

}  // namespace withy::policy
