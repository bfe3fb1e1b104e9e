#include "policy/board/live_correction.h"

#include <algorithm>

namespace withy::policy {
namespace {

auto FindApp(const std::vector<AppHistory>& apps, std::string_view name) {
  return std::find_if(apps.begin(), apps.end(),
                      [&](const AppHistory& known) { return known.app == name; });
}

}  // namespace

void LiveCorrection::TellSlowdown(double told) {
  slowdown = std::clamp(told, 1 / kMaxRatio, kMaxRatio);
  slowest.front() = std::max(slowest.front(), slowdown);
}

void LiveCorrection::EndCall() {
  std::shift_right(slowest.begin(), slowest.end(), 1);
  slowest.front() = 0;
}

double LiveCorrection::SlowdownToExpect() const {
  return std::max(slowdown, *std::max_element(slowest.begin(), slowest.end()));
}

LevelBias LiveCorrection::Bias(uint32_t percent) const {
  const auto found = std::find_if(biases.begin(), biases.end(),
                                  [&](const LevelBias& bias) { return bias.percent == percent; });
  return found != biases.end() ? *found : LevelBias{};
}

const Reliability& LiveCorrection::ReliabilityOf(std::string_view app) const {
  const auto found = FindApp(apps, app);
  return found != apps.end() ? found->reliability : reliability;
}

double LiveCorrection::AnswerTokensOf(std::string_view app) const {
  const auto found = FindApp(apps, app);
  const bool known = found != apps.end() && found->answer_tokens > 0;
  return known ? found->answer_tokens : mean_completion_tokens;
}

double LiveCorrection::SpeedupOf(std::string_view app) const {
  const auto found = FindApp(apps, app);
  return found != apps.end() ? found->speculation.Expected() : 1;
}

}  // namespace withy::policy
