#include "policy/call/slack.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/contract_limits.h"

namespace withy::policy {
namespace {

// Takes a limit that leaves less room than those before.
void Tighten(double ms, double gain, Slack* slack) {
  if (ms >= slack->ms) return;
  slack->ms = ms;
  slack->gain = gain;
}

}  // namespace

double LeftPrefillMs(const CallDemand& demand, const CallProgress& progress, int64_t now_ns) {
  if (progress.first_token_ns != 0) return 0;
  return std::max(0.0, demand.prefill_ms + MillisUntil(progress.granted_ns, now_ns));
}

Slack SlackOf(const CallDemand& demand, const CallProgress& progress, int64_t now_ns) {
  const double prefill_ms = LeftPrefillMs(demand, progress, now_ns) * demand.least_share;
  const double token_ms = demand.token_ms * demand.least_share;
  Slack slack;
  slack.left_tokens = progress.remaining;
  slack.left_ms = prefill_ms + progress.remaining * token_ms;
  const CallTargets& targets = demand.targets;
  if (const int64_t end_by_ns = targets.EndByNs(); end_by_ns != 0)
    Tighten(MillisUntil(end_by_ns, now_ns) - slack.left_ms, 0, &slack);
  if (progress.first_token_ns == 0) {
    if (const int64_t by_ns = targets.FirstTokenByNs(); by_ns != 0)
      Tighten(MillisUntil(by_ns, now_ns) - prefill_ms, 0, &slack);
    return slack;
  }
  if (const double limit_ms = targets.TokenMs(); limit_ms < kNoLimit) {
    const double ahead = std::min(progress.remaining, kHorizonTokens);
    const double intervals = std::max(1u, progress.generated) - 1 + ahead;
    // Tokens that are not told yet are taken to have been made in time.
    const int64_t silent_ns = progress.told_ns != 0 ? now_ns - progress.told_ns : 0;
    const double elapsed_ms = MillisUntil(now_ns, progress.first_token_ns) -
                              Millis(std::min(silent_ns, kDeltaIntervalNs));
    const double gain = token_ms > 0 ? std::max(0.0, limit_ms / token_ms - 1) : 0;
    const double given_ms = limit_ms * intervals + targets.ramp_ms;
    Tighten(given_ms - elapsed_ms - ahead * token_ms, gain, &slack);
  }
  return slack;
}

double HoldMs(const Newcomer& newcomer, const Slack& running, double pending_prefill_ms,
              double piece_ms) {
  if (!std::isfinite(running.ms) || running.ms < 0 || running.left_tokens == 0) return 0;
  const double pieces_ms = running.left_tokens * piece_ms;
  const double delay_ms = std::min(newcomer.prefill_ms + pending_prefill_ms, pieces_ms) +
                          newcomer.row_ms * std::min(running.left_tokens, kHorizonTokens);
  if (delay_ms <= running.ms) return 0;
  if (running.gain <= 0) return running.left_ms;
  return std::min((delay_ms - running.ms) / running.gain, running.left_ms);
}

}  // namespace withy::policy
