#include "orchestrator/board/workers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "policy/constants.h"

namespace withy::orchestrator {
namespace {

using policy::Lane;

constexpr int64_t kInfoTtlNs = 2 * kNanosPerSecond;

}  // namespace

Workers::Workers(Backends& backends, const Clock& clock) : backends_(backends), clock_(clock) {}

void Workers::SetTlmSpeed(double us_per_byte) {
  absl::MutexLock lock(&mutex_);
  policy::LiveCorrection& target = Of(Lane::kTarget).live;
  target.tlm_us_per_byte = target.tlm_start_us_per_byte = us_per_byte;
}

absl::StatusOr<WorkerInfo> Workers::Get(Lane lane, absl::Time deadline, bool wait) {
  {
    absl::MutexLock lock(&mutex_);
    const Known& known = Of(lane);
    if (known.info != nullptr && clock_.SteadyNanos() < known.expires_ns) return known.info;
  }
  WITHY_ASSIGN_OR_RETURN(v1::GetWorkerInfoResponse info,
                         backends_.WorkerInfo(lane, deadline, wait));
  if (!info.without_model().empty()) return absl::NotFoundError(info.without_model());
  WorkerInfo fresh = std::make_shared<const v1::GetWorkerInfoResponse>(std::move(info));
  std::string cost = fresh->cost().SerializeAsString();
  absl::MutexLock lock(&mutex_);
  Known& known = Of(lane);
  if (cost != known.cost) {
    if (!known.cost.empty()) known.live = policy::ForNewCost(known.live);
    known.cost = std::move(cost);
  }
  if (fresh->board_slowdown() > 0) known.live.TellSlowdown(fresh->board_slowdown());
  known.info = fresh;
  known.expires_ns = clock_.SteadyNanos() + kInfoTtlNs;
  return fresh;
}

WorkerInfo Workers::Last(Lane lane) const {
  absl::MutexLock lock(&mutex_);
  return known_[static_cast<size_t>(lane)].info;
}

void Workers::Forget(Lane lane) {
  absl::MutexLock lock(&mutex_);
  Of(lane).info = nullptr;
}

absl::StatusOr<Lane> Workers::FindLane(const std::string& model, absl::Time deadline) {
  if (model.empty() || model == "target") return Lane::kTarget;
  if (model == "draft") return Lane::kDraft;
  std::string names = "\"target\", \"draft\"";
  for (const Lane lane : {Lane::kTarget, Lane::kDraft}) {
    const absl::StatusOr<WorkerInfo> worker = Get(lane, deadline, /*wait=*/false);
    if (!worker.ok()) continue;
    if ((*worker)->model().name() == model) return lane;
    absl::StrAppend(&names, ", \"", (*worker)->model().name(), "\"");
  }
  return absl::NotFoundError(absl::StrCat("model is \"", model, "\": this server has ", names));
}

policy::LiveCorrection Workers::Live(Lane lane) const {
  absl::MutexLock lock(&mutex_);
  return known_[static_cast<size_t>(lane)].live;
}

void Workers::TellSlowdown(Lane lane, double slowdown) {
  if (!(slowdown > 0)) return;  // an older worker, or one that has not computed yet
  absl::MutexLock lock(&mutex_);
  Of(lane).live.TellSlowdown(slowdown);
}

void Workers::Learn(Lane lane, const policy::CostParameters& cost,
                    const policy::Observation& seen) {
  absl::MutexLock lock(&mutex_);
  policy::LiveCorrection& live = Of(lane).live;
  live = policy::Learn(cost, live, seen);
}

}  // namespace withy::orchestrator
