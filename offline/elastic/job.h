// A complete run of withy-elasticize: text, estimate, importance, levels, file. Neighbours: main.cc
// sets the options; schedule.h lists the stages. Every stage saves its progress in the run's
// directory (work.h), so that a killed run resumes and gives bit-identical results.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "offline/elastic/matrix_types.h"
#include "offline/elastic/plan.h"

namespace withy::elastic {

struct JobOptions {
  std::string model;         // plain GGUF
  std::string out;           // elastic GGUF to write
  std::string text = "own";  // what the model writes, "corpus" (the project's), or a file
  bool taught = true;   // levels learn the whole model's probabilities, not the next token alone
  double hours = 0;     // text_batches and recovery_steps are fitted to it; 0: they are as given
  std::string overlay;  // to write: what makes the model elastic
  std::string work;     // directory for saved progress
  MatrixType type;
  std::vector<int32_t> percents = {30, 50, 70, 90};
  int64_t calibration_batches = 16;
  int64_t recovery_batches = 6400;
  int64_t recovery_steps = 400;
  int64_t recoveries = 1;
  int64_t trial_steps = 60;
  int64_t batch_tokens = 1024;
  double rate = 1e-2;
  int64_t rank = 8;
  std::string order = "importance";
  bool anchors = true;
  Cuts cuts = Cuts::kEstimated;
  uint64_t seed = 1;
  int threads = 1;
  double checkpoint_s = 60;
  bool estimate_only = false;  // only estimate the run time

  std::function<void(const std::string& line)> say;
  const Clock* clock = &Clock::Real();
};

// Results do not depend on options.threads. Errors: of the files; INVALID_ARGUMENT for options that
// do not fit the model; FAILED_PRECONDITION if the directory holds another run's work.
absl::Status RunJob(const JobOptions& options);

}  // namespace withy::elastic
