// The studies of LM-Meter (Wang et al., SEC 2025, section 5) on this board's own models, in this
// process: each opens the models, runs passes with the spans that a worker records, and reports.
// Neighbours: profile_study.cc is the command; profiled_model.h runs passes; report.h presents.
//
// All models are open at once. Samples are taken in rounds over what is compared (models, levels,
// depths, pauses), so that a disturbance is spread over them; the first round warms up and does not
// count.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/study/report.h"
#include "engine/model/model.h"
#include "engine/sampling/sampler.h"

namespace withy::cli {

// Above this load average of the last minute another program is computing.
inline constexpr double kQuietLoad = 0.5;

struct StudyOptions {
  std::vector<std::string> models;  // GGUF or packed files; at least one
  // Of every model; their cache_dir is for packed files.
  engine::ModelOptions model;
  // Directory for what a study makes and removes again: rings, files of other types.
  std::string scratch_dir;
  bool levels = false;  // each level of an elastic model beside the full model
  int32_t rounds = 7;
  int32_t prompt_tokens = 128;
  int32_t answer_tokens = 32;
  engine::SamplingParams sampling;
  // Text that passes compute and quality is judged by; empty: one of the project's own, which is
  // shorter than what quality needs. `text_name` says in reports which it was.
  std::string text;
  std::string text_name;
  int32_t text_tokens = 4096;      // of the text, for quality
  std::vector<std::string> types;  // that study quantization makes of the first model
  std::vector<int32_t> depths;     // of study kv-length; empty: nine up to 2,048 or the window
  std::vector<double> pauses_s = {0, 0.01, 0.1, 1, 3, 10};
  std::vector<std::string> prompts;  // the data set of study sampling
  double share = 0.1;                // of its prompts
  bool whole_set = false;            // measure all of its prompts, to judge subsets by
  int32_t bins = 20;
  uint64_t seed = 1;
  const std::atomic<bool>* stop = nullptr;  // true: CANCELLED as soon as possible
  // Share done and what is measured now; may be null.
  std::function<void(double, std::string_view)> progress;
};

// The names in the order of the paper: phases, kernels, quantization, sampling, kv-length, idle.
std::vector<std::string> StudyNames();

// Runs one. Errors: INVALID_ARGUMENT (an unknown study: names those there are; options that do not
// fit the model or each other: names the flag and the limit), as Model::Open, CANCELLED.
absl::StatusOr<StudyReport> RunStudy(std::string_view study, const StudyOptions& options);

// One each; RunStudy has checked the options that all have.
// Section 4.2, Table 4, Figures 6 to 8: shares of the phases, and prefill and decode by token,
// against the model's size.
absl::StatusOr<StudyReport> StudyPhases(const StudyOptions& options);
// Section 5.2, Figure 10: which operations take the time of a prefill and of a decode pass.
absl::StatusOr<StudyReport> StudyKernels(const StudyOptions& options);
// Eq. 3, Figure 9: quality and speed of quantised files against the first.
absl::StatusOr<StudyReport> StudyQuantization(const StudyOptions& options);
// Section 5.1, Figure 5: a subset of prompts whose lengths are distributed as in all of them, and
// what an estimate from it is worth. Beside it, what ways to cut a distribution cost that depart
// equally far from the model's.
absl::StatusOr<StudyReport> StudySampling(const StudyOptions& options);
// Figure 11, left: the time of attention against the tokens in the KV.
absl::StatusOr<StudyReport> StudyKvLength(const StudyOptions& options);
// Figures 10b and 11, right: the share of the compute threads' time in which they compute nothing,
// by length of the answer; and what the first passes after a pause take.
absl::StatusOr<StudyReport> StudyIdle(const StudyOptions& options);

}  // namespace withy::cli
