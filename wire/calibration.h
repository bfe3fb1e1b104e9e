// The calibration record (calibration.proto): its path, reading, writing, validity on this board
// and evaluation. Neighbours: `withyctl calibrate` writes it, worker_cost.h and the orchestrator's
// TLM read it. Measures and logs nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/board.h"
#include "engine/session/cost_probe.h"
#include "engine/session/kv_errors.h"
#include "engine/session/level_times.h"
#include "withy/v1/calibration.pb.h"

namespace withy::engine {

// Format number of the records that this build reads and writes.
inline constexpr uint32_t kCalibrationFormat = 2;

// Directory of packed models and their calibrations.
std::string PackedDir(const std::string& state_dir);

// Path of the record of the model or TLM at `model_path`, beside its packed file in `packed_dir`.
std::string CalibrationPath(const std::string& model_path, const std::string& packed_dir);

v1::CalibrationKey MakeCalibrationKey(std::string_view model_id, std::string_view kernel_target,
                                      int32_t threads, const BoardInfo& board,
                                      uint64_t weight_budget_bytes = 0);
// Key of a TLM, which has no packed file and is identified by its bytes. An empty `kernel_target`
// means the best one of this processor. Errors: NOT_FOUND and others of the file system, naming the
// file.
absl::StatusOr<v1::CalibrationKey> MakeTlmKey(const std::string& path,
                                              std::string_view kernel_target, int32_t threads,
                                              const BoardInfo& board);

// Reads a record, complete or not. Errors: NOT_FOUND (no such file); FAILED_PRECONDITION (another
// format); DATA_LOSS (not a valid textproto, or an invalid time). All name the file, the last two
// the remedy.
absl::StatusOr<v1::Calibration> ReadCalibration(const std::string& path);
// Replaces the record atomically. Errors: of the file system, naming the file; PERMISSION_DENIED
// also names the remedy.
absl::Status WriteCalibration(const v1::Calibration& record, const std::string& path);

// The differing fields, in words: "another processor (A; here B)", comma separated. Empty: equal.
std::string KeyDifference(const v1::CalibrationKey& recorded, const v1::CalibrationKey& here);

// Returns the record at `path` if it is usable here: readable, made for `here`, complete. Errors:
// as ReadCalibration; FAILED_PRECONDITION naming the file, all differences, and the remedy.
absl::StatusOr<v1::Calibration> UsableCalibration(const std::string& path,
                                                  const v1::CalibrationKey& here);

// Returns `planned`, in its order, with the samples and reasons that `recorded` has for the same
// points. Recorded points that are not planned are dropped.
std::vector<v1::CalibrationPoint> MergeSamples(std::span<const v1::CalibrationPoint> planned,
                                               const v1::Calibration& recorded);

// The median; 0 without samples.
double MedianUs(const v1::CalibrationPoint& point);

// Times of the levels in the record, ascending by level; levels without any decode time are left
// out. Makes prefill times non-decreasing with length and slopes non-negative.
std::vector<LevelTimes> LevelTimesOf(const v1::Calibration& record);
// Cost of the full model, the last of `levels` (not empty), as the probe at start would report it.
StepCost FullStepCost(std::span<const LevelTimes> levels);
// The errors of KV formats; empty: not measured.
std::vector<KvFormatError> KvErrorsOf(const v1::Calibration& record);
void SetKvErrors(std::span<const KvFormatError> errors, v1::Calibration* record);
// Microseconds that a TLM takes per byte of text; 0 without samples.
double ReadUsPerByte(const v1::Calibration& record);

}  // namespace withy::engine
