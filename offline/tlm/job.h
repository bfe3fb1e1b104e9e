// A complete run of withy-train-tlm: vocabulary, answers (where prompts are a user's own), score
// labels, score head, decision table, decision head, file. Neighbour: main.cc sets the options.
// Each stage saves its progress in the run's directory, so that an interrupted run resumes and
// completed stages are skipped.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "engine/encoder/checkpoint.h"
#include "engine/gguf/types.h"
#include "engine/model/model.h"
#include "offline/tlm/decision_table.h"
#include "offline/tlm/wordpiece_learner.h"

namespace withy::tlm {

struct JobOptions {
  std::string model;    // GGUF of the model to decide for
  std::string out;      // TLM to write
  std::string run;      // directory for saved progress
  std::string prompts;  // file of a user's own prompts (prompt_file.h); empty: the corpus
  std::string labels;   // file of word labels; empty: labels from the model's own loss
  std::string from;   // TLM to start from (OpenTlmToStartFrom), its bottom frozen; empty: a new one
  TlmSize size;       // of a new one
  bool score = true;  // stages to run
  bool decision = true;
  int64_t records = 3000;        // prompts at most; the last tenth is for evaluation only
  int64_t vocab_records = 5000;  // for learning the word pieces
  int64_t score_steps = 2000;
  int64_t decision_steps = 300;
  int64_t batch = 16;
  double rate = 1e-3;
  int32_t max_variants = 32;  // per record when its words are dropped
  uint64_t seed = 1;
  int threads = 1;
  engine::GgmlType type = engine::GgmlType::kQ8_0;
  engine::ModelOptions model_options;  // except threads: every thread runs its own model

  std::function<void(const std::string& what, int64_t done, int64_t all)> progress;
  std::function<void(const std::string& line)> say;
};

// Errors: of the stages; FAILED_PRECONDITION if the directory holds another run's work;
// INVALID_ARGUMENT if options.from has other levels than the model, or fewer than kFewestPrompts of
// a user's own prompts have an answer.
inline constexpr size_t kFewestPrompts = 10;
absl::Status RunJob(const JobOptions& options);

// A TLM's file, or a directory of Hugging Face's MobileBERT, which gets heads for the levels of
// `space`. Errors: as ReadTlm() and ImportMobileBert(); INVALID_ARGUMENT if a file's TLM has other
// levels.
absl::StatusOr<engine::TlmCheckpoint> OpenTlmToStartFrom(const std::string& path,
                                                         const DecisionSpace& space, uint64_t seed);

}  // namespace withy::tlm
