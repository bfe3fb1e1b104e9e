// What an elasticizing run has done so far, kept in a directory, so that an interrupted run goes
// on. Neighbours: main.cc. Each file is written beside and renamed over.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "elasticizer/elastic/importance.h"
#include "elasticizer/elastic/network.h"
#include "elasticizer/elastic/plan.h"
#include "engine/weights/levels.h"

namespace withy::elastic {

// Load… return false when the result is not there, or of another shape.
class Work {
 public:
  // `fingerprint` says what the results depend on. Errors: from the disk; FAILED_PRECONDITION when
  // the directory holds results of another fingerprint, naming both.
  static absl::StatusOr<std::unique_ptr<Work>> Open(const std::string& directory,
                                                    const std::string& fingerprint);

  // Importance of a level's units.
  bool LoadUnits(const Network& network, const engine::LevelSpec& level,
                 std::vector<UnitImportance>* units) const;
  absl::Status SaveUnits(const engine::LevelSpec& level,
                         const std::vector<UnitImportance>& units) const;
  bool LoadLayers(const Network& network, std::vector<double>* importance) const;
  absl::Status SaveLayers(const std::vector<double>& importance) const;
  bool LoadChoice(const Network& network, int32_t percent, LevelChoice* choice) const;
  absl::Status SaveChoice(const LevelChoice& choice) const;
  bool LoadLora(const Network& network, const engine::LevelSpec& level, int64_t rank,
                std::vector<Lora>* lora) const;
  absl::Status SaveLora(const engine::LevelSpec& level, const std::vector<Lora>& lora) const;

 private:
  explicit Work(std::string directory) : directory_(std::move(directory)) {}
  bool Load(const std::string& name, std::vector<torch::Tensor>* tensors) const;
  absl::Status Save(const std::string& name, const std::vector<torch::Tensor>& tensors) const;

  std::string directory_;
};

}  // namespace withy::elastic
