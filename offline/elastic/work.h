// Saved progress of an elasticizing run in a directory, so that an interrupted run resumes: results
// of completed stages, and states of unfinished ones, saved about once a minute. Neighbour: job.cc.
// Files are written atomically.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/weights/levels.h"
#include "offline/elastic/importance.h"
#include "offline/elastic/network.h"
#include "offline/elastic/plan.h"
#include "offline/elastic/text/batches.h"

namespace withy::elastic {

// Names of texts.
inline constexpr char kCalibrationText[] = "text-calibration";
inline constexpr char kRecoveryText[] = "text-recovery";

// Inputs that results depend on: names with values, in a fixed order.
using RunInputs = std::vector<std::pair<std::string, std::string>>;

// Load… return false if the result does not exist or has another shape. Thread-safe, except that
// one file must not be saved twice at once.
class RunDirectory {
 public:
  // Locks the directory for this process. States of unfinished stages are saved when `checkpoint_s`
  // have passed since the last time. Errors: of the file system; FAILED_PRECONDITION if the
  // directory holds results of another run (names the difference) or is in use by another process.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> Open(const std::string& directory,
                                                            const RunInputs& inputs,
                                                            double checkpoint_s = 60,
                                                            const Clock& clock = Clock::Real());
  // Opens it for reading only: creates and locks nothing. Null if the directory does not exist.
  static absl::StatusOr<std::unique_ptr<RunDirectory>> Peek(const std::string& directory,
                                                            const RunInputs& inputs);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  // A text, and the seconds that one batch of it took to make.
  bool LoadText(const std::string& name, std::vector<Batch>* batches, double* batch_s) const;
  absl::Status SaveText(const std::string& name, const std::vector<Batch>& batches,
                        double batch_s) const;
  // What was fitted to the time given (FitToHours).
  bool LoadPlan(int64_t* text_batches, int64_t* recovery_steps) const;
  absl::Status SavePlan(int64_t text_batches, int64_t recovery_steps) const;
  // Importance of a level's units.
  bool LoadUnits(const Network& network, const engine::LevelSpec& level,
                 std::vector<UnitImportance>* units) const;
  absl::Status SaveUnits(const engine::LevelSpec& level,
                         const std::vector<UnitImportance>& units) const;
  // Loss of the full model, and the importance of each of `layers` layers.
  bool LoadLayers(int64_t layers, double* whole_loss, std::vector<double>* importance) const;
  absl::Status SaveLayers(double whole_loss, const std::vector<double>& importance) const;
  bool LoadChoice(const Network& network, int32_t percent, LevelChoice* choice) const;
  absl::Status SaveChoice(const LevelChoice& choice) const;
  bool LoadLora(const Network& network, const engine::LevelSpec& level, int64_t rank,
                std::vector<Lora>* lora) const;
  absl::Status SaveLora(const engine::LevelSpec& level, const std::vector<Lora>& lora) const;
  // Losses of a level without and with its LoRA.
  bool LoadLosses(int32_t percent, double* cut, double* recovered) const;
  absl::Status SaveLosses(int32_t percent, double cut, double recovered) const;

  // Names of results and states; each begins with its stage's name.
  static std::string UnitsName(int32_t percent);
  static std::string LayersName() { return "layers"; }
  static std::string CutsName(int32_t percent);
  static std::string ChoiceName(int32_t percent);
  static std::string TrialName(int32_t percent, size_t trial);
  static std::string LoraName(int32_t percent);
  static std::string RecoveryName(int32_t percent, int64_t recovery);
  static std::string LossesName(int32_t percent);
  bool Has(const std::string& name) const;  // whether this result exists

 private:
  friend class StageState;
  RunDirectory(std::string directory, double checkpoint_s, const Clock& clock)
      : directory_(std::move(directory)), checkpoint_s_(checkpoint_s), clock_(clock) {}
  std::string PathOf(const std::string& name, const char* ending) const;
  bool Load(const std::string& path, std::vector<torch::Tensor>* tensors) const;
  absl::Status Save(const std::string& name, const std::vector<torch::Tensor>& tensors) const;
  absl::Status Lock();

  const std::string directory_;
  const double checkpoint_s_;
  const Clock& clock_;
  int lock_fd_ = -1;
};

// Saved state of one unfinished stage. Not thread-safe.
class StageState {
 public:
  StageState() = default;  // saves nothing
  StageState(const RunDirectory* work, std::string name);

  // The last saved state; nullopt if there is none or it cannot be read.
  std::optional<std::vector<torch::Tensor>> Load() const;
  // Saves the result of `state` if it is time. Errors: those of SaveTensors.
  absl::Status SaveIfDue(const std::function<std::vector<torch::Tensor>()>& state);
  absl::Status Save(const std::vector<torch::Tensor>& state);
  // Deletes the state after the stage's result was saved.
  void Remove() const;

 private:
  const RunDirectory* work_ = nullptr;
  std::string name_;
  int64_t saved_ns_ = 0;
};

// Saves a stage's state and reports its progress in estimated seconds.
struct Checkpointer {
  StageState stage_state = {};
  std::function<void(double cost_s)> resumed = nullptr;  // done by an earlier run; may be null
  std::function<void(double cost_s)> advance = nullptr;  // done now; may be null; thread-safe
};

}  // namespace withy::elastic
