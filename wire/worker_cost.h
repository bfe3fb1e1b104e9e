// The cost model that a worker reports: from its model's calibration if that is valid here, else
// from a short measurement. Neighbours: calibration.h (the record), engine/session/cost_probe.h
// (the measurement), wire.h (CostModel). Logs nothing: the worker does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/board.h"
#include "base/clock.h"
#include "engine/model/model.h"
#include "engine/session/cost_probe.h"
#include "engine/session/kv_errors.h"
#include "engine/session/level_times.h"
#include "policy/board/cost_parameters.h"
#include "policy/draft/tree_budget.h"
#include "withy/v1/context_store.pb.h"
#include "withy/v1/model_worker.pb.h"

namespace withy::engine {

struct WorkerCost {
  StepCost step;                         // of the full model
  std::vector<LevelTimes> levels;        // of every level, ascending; empty: not calibrated
  std::vector<KvFormatError> kv_errors;  // empty: not calibrated
  int64_t measured_unix_s = 0;           // when it was calibrated; 0: it is not
  // Why an existing calibration was not used. OK: it was used; NOT_FOUND: there is none.
  absl::Status calibration;

  bool calibrated() const { return !levels.empty(); }
};

// `model` was opened from `model_path`; `packed_dir` is the directory of its packed file. Takes
// half a second without a calibration. Errors: of the measurement.
absl::StatusOr<WorkerCost> FindWorkerCost(Model& model, const std::string& model_path,
                                          const std::string& packed_dir, const BoardInfo& board,
                                          Clock& clock);

// One line for people: "calibrated", or why not.
std::string Describe(const WorkerCost& cost);

// A level's times as the policies take them.
policy::CostParameters CostOf(const LevelTimes& times);

// What decode steps of one call with several rows take on an idle board, for policy::RowCosts.
std::vector<policy::RowCost> RowCostsOf(const WorkerCost& cost);

v1::CostModel ToWire(const WorkerCost& cost, const ModelInfo& info);

// What context_store is told: the time to recompute a chunk, fitted to the full model's prefill
// times, and the errors of KV formats. Source: LLMS section 3.3, T_re.
v1::KvCosts KvCostsOf(const WorkerCost& cost);

}  // namespace withy::engine
