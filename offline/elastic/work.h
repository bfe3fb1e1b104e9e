// What an elasticizing run has done so far, kept in a directory, so that an interrupted run goes
// on: results of stages that are over, and the state of those that are not, saved every minute or
// so. Neighbours: job.cc. Each file is written beside, synced and renamed over.
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

namespace withy::elastic {

// What results depend on: names with values, in a fixed order.
using MadeOf = std::vector<std::pair<std::string, std::string>>;

// Load… return false when the result is not there, or of another shape. Thread-safe but for saving
// one file twice at once.
class Work {
 public:
  // Takes the directory for this process alone, until it ends. State of unfinished stages is saved
  // when `checkpoint_s` have passed since the last time. Errors: from the disk; FAILED_PRECONDITION
  // when the directory holds results of another run, naming what differs, or another process has
  // it.
  static absl::StatusOr<std::unique_ptr<Work>> Open(const std::string& directory,
                                                    const MadeOf& made_of, double checkpoint_s = 60,
                                                    const Clock& clock = Clock::Real());
  // The same to look only: makes and takes nothing. Null when there is no such directory.
  static absl::StatusOr<std::unique_ptr<Work>> Peek(const std::string& directory,
                                                    const MadeOf& made_of);
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Importance of a level's units.
  bool LoadUnits(const Network& network, const engine::LevelSpec& level,
                 std::vector<UnitImportance>* units) const;
  absl::Status SaveUnits(const engine::LevelSpec& level,
                         const std::vector<UnitImportance>& units) const;
  // Loss of the whole model, and what each layer is worth.
  bool LoadLayers(const Network& network, double* whole_loss,
                  std::vector<double>* importance) const;
  absl::Status SaveLayers(double whole_loss, const std::vector<double>& importance) const;
  bool LoadChoice(const Network& network, int32_t percent, LevelChoice* choice) const;
  absl::Status SaveChoice(const LevelChoice& choice) const;
  bool LoadLora(const Network& network, const engine::LevelSpec& level, int64_t rank,
                std::vector<Lora>* lora) const;
  absl::Status SaveLora(const engine::LevelSpec& level, const std::vector<Lora>& lora) const;
  // Losses of a level without and with its LoRA.
  bool LoadLosses(int32_t percent, double* cut, double* recovered) const;
  absl::Status SaveLosses(int32_t percent, double cut, double recovered) const;

  // The names of results and of states begin with the stage's: UnitsName and so on.
  static std::string UnitsName(int32_t percent);
  static std::string LayersName() { return "layers"; }
  static std::string CutsName(int32_t percent);
  static std::string ChoiceName(int32_t percent);
  static std::string TrialName(int32_t percent, size_t trial);
  static std::string LoraName(int32_t percent);
  static std::string RecoveryName(int32_t percent, int64_t recovery);
  static std::string LossesName(int32_t percent);
  bool Has(const std::string& name) const;  // a result

 private:
  friend class Part;
  Work(std::string directory, double checkpoint_s, const Clock& clock)
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

// The state of one stage that is not over. Not thread-safe.
class Part {
 public:
  Part() = default;  // keeps nothing
  Part(const Work* work, std::string name);

  // The last state saved; nothing when there is none, or it cannot be read.
  std::optional<std::vector<torch::Tensor>> Load() const;
  // Saves what `state` gives, if it is time. Errors: those of SaveTensors.
  absl::Status SaveIfDue(const std::function<std::vector<torch::Tensor>()>& state);
  absl::Status Save(const std::vector<torch::Tensor>& state);
  // The stage is over: its result is saved.
  void Remove() const;

 private:
  const Work* work_ = nullptr;
  std::string name_;
  int64_t saved_ns_ = 0;
};

// What a stage keeps, and whom it tells how far it is, in seconds as estimated.
struct Keeper {
  Part part = {};
  std::function<void(double cost_s)> found = nullptr;    // done by an earlier run; may be null
  std::function<void(double cost_s)> advance = nullptr;  // done now; may be null; thread-safe
};

}  // namespace withy::elastic
