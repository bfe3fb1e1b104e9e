// The record of a calibration: where it lies, reading, writing, whether it holds here, what it
// says. Neighbours: `withyctl calibrate` makes it, worker_cost.h and the orchestrator's TLM use it.
// Measures nothing, logs nothing.
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
#include "engine/session/level_times.h"
#include "withy/v1/calibration.pb.h"

namespace withy::engine {

// Of records that this build reads and writes.
inline constexpr uint32_t kCalibrationFormat = 2;

// Where packed models and their calibrations are kept.
std::string PackedDir(const std::string& state_dir);

// The record of the model (or TLM) in the file `model_path`, beside its packed file in
// `packed_dir`.
std::string CalibrationPath(const std::string& model_path, const std::string& packed_dir);

v1::CalibrationKey MakeCalibrationKey(std::string_view model_id, std::string_view kernel_target,
                                      int32_t threads, const BoardInfo& board);
// Of a TLM, which has no packed file and is known by its bytes. An empty `kernel_target` is the
// best of this processor. Errors: NOT_FOUND and others of the file system, naming the file.
absl::StatusOr<v1::CalibrationKey> MakeTlmKey(const std::string& path,
                                              std::string_view kernel_target, int32_t threads,
                                              const BoardInfo& board);

// Reads a record as it stands, whole or not. Errors: NOT_FOUND (there is none); FAILED_PRECONDITION
// (another format); DATA_LOSS (damaged: no text of this form, a time that is no time); all name the
// file, the last two the remedy.
absl::StatusOr<v1::Calibration> ReadCalibration(const std::string& path);
// Whole or not at all. Errors: of the disk, naming the file; PERMISSION_DENIED names the remedy.
absl::Status WriteCalibration(const v1::Calibration& record, const std::string& path);

// What differs, in words: "another processor (A; here B)", one after the other. Empty: nothing.
std::string KeyDifference(const v1::CalibrationKey& recorded, const v1::CalibrationKey& here);

// The record at `path`, if it may be used here: readable, made of `here`, complete. Errors: as
// ReadCalibration; FAILED_PRECONDITION naming the file, everything that differs, and the remedy.
absl::StatusOr<v1::Calibration> UsableCalibration(const std::string& path,
                                                  const v1::CalibrationKey& here);

// `planned` with the samples (and reasons) that `recorded` has for the same points, in the order of
// `planned`. Points that are not planned are left out.
std::vector<v1::CalibrationPoint> TakeOver(std::span<const v1::CalibrationPoint> planned,
                                           const v1::Calibration& recorded);

// The median; 0 without samples.
double MedianUs(const v1::CalibrationPoint& point);

// What the record says of its levels, ascending; levels without a single decode time are left out.
// Times of longer prefills are never below those of shorter ones, slopes never below 0.
std::vector<LevelTimes> LevelTimesOf(const v1::Calibration& record);
// Of the full model (the last of `levels`, which is not empty), as a start-up probe would say it.
StepCost FullStepCost(std::span<const LevelTimes> levels);
// Microseconds for each byte that a TLM reads; 0 without samples.
double ReadUsPerByte(const v1::Calibration& record);

}  // namespace withy::engine
