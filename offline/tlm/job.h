// A whole run of withy-train-tlm: vocabulary, score labels, score head, decision table, decision
// head, file. Neighbours: main.cc gives the options. Each stage keeps what it has done in the run's
// directory, so that an interrupted run goes on and a finished stage is not done again.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "engine/gguf/types.h"
#include "engine/model/model.h"
#include "offline/tlm/decision_table.h"
#include "offline/tlm/wordpiece_learner.h"

namespace withy::tlm {

struct JobOptions {
  std::string model;   // the GGUF that is decided for
  std::string out;     // TLM to write
  std::string run;     // directory of what is done
  std::string labels;  // words' labels from this file; empty: from the model's own loss
  std::string from;    // TLM to begin with, its bottom frozen; empty: a fresh pocket TLM
  TlmSize size;        // of a fresh one
  bool score = true;   // stages to do
  bool decision = true;
  int64_t records = 3000;        // of the corpus; the last tenth judges and is not trained on
  int64_t vocab_records = 5000;  // that the word pieces are learnt from
  int64_t score_steps = 2000;
  int64_t decision_steps = 300;
  int64_t batch = 16;
  double rate = 1e-3;
  int32_t max_variants = 32;  // of a record when its words are dropped
  uint64_t seed = 1;
  int threads = 1;
  engine::GgmlType type = engine::GgmlType::kQ8_0;
  engine::ModelOptions model_options;  // threads aside: every thread runs a model of its own

  std::function<void(const std::string& what, int64_t done, int64_t all)> progress;
  std::function<void(const std::string& line)> say;
};

// Errors: as the stages'; FAILED_PRECONDITION when the directory holds another run's work;
// INVALID_ARGUMENT when options.from decides among other levels than the model has.
absl::Status RunJob(const JobOptions& options);

}  // namespace withy::tlm
