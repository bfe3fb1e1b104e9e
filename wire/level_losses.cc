#include "wire/level_losses.h"

#include <algorithm>
#include <cmath>

namespace withy::wire {
namespace {

// The losses of all levels but the full one.
std::vector<float> Losses(const engine::GgufFile& metadata, size_t count) {
  for (const char* key : {"withy.level.lora_loss", "withy.level.loss"}) {
    auto losses = metadata.GetFloatArray(key);
    if (losses.ok() && losses->size() == count) return *std::move(losses);
  }
  return {};
}

}  // namespace

std::vector<float> LossAboveFull(const engine::GgufFile& metadata, const engine::ModelInfo& info) {
  const auto whole = metadata.GetFloat("withy.level.whole_loss");
  if (!whole.ok() || info.levels.size() < 2) return {};
  std::vector<float> above = Losses(metadata, info.levels.size() - 1);
  if (above.empty()) return {};
  for (float& loss : above) {
    loss = static_cast<float>(double{loss} - *whole);
    if (!std::isfinite(loss)) return {};
    loss = std::max(loss, 0.0f);  // a level that was trained on the text may be below
  }
  above.push_back(0);
  return above;
}

}  // namespace withy::wire
