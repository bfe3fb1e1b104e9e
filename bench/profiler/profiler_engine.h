// What the profiler costs and how exact phases are, on the engine alone. Neighbours: profiler.cc
// reports, profiler_kernels.h measures kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/profiler/profiler_figures.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"
#include "engine/session/kernel_spans.h"
#include "telemetry/reader.h"
#include "telemetry/recorder.h"

namespace withy::bench {

// A model with everything that a worker records, and a reader that empties the rings outside what
// is timed. Not thread-safe.
class ProfiledEngine {
 public:
  // `directory`: for ring files and packed models. Errors: as Model::Open, Recorder::Open.
  static absl::StatusOr<std::unique_ptr<ProfiledEngine>> Open(const std::string& model,
                                                              const std::string& directory,
                                                              const std::string& cache_dir,
                                                              int threads);

  // Overheads as a share of the time without the profiler, from interleaved pairs of prefills of
  // `rows` rows or of `rows` decode steps at a depth, the order of a pair alternating.
  absl::StatusOr<MeanBound> PrefillOverhead(int32_t rows, int pairs);
  absl::StatusOr<MeanBound> DecodeOverhead(int32_t steps, int32_t depth, int pairs);

  // A phase `count` times: the mean of its spans, and the time of all by CLOCK_MONOTONIC_RAW,
  // divided by their number.
  struct PhaseAccuracy {
    std::string name;
    double truth_us = 0;
    double measured_us = 0;
  };
  absl::StatusOr<std::vector<PhaseAccuracy>> Phases(int count);

  engine::Model& model() { return *model_; }
  engine::KernelSpans& kernels() { return *kernels_; }
  telemetry::Recorder& recorder() { return *recorder_; }
  telemetry::Reader& reader() { return *reader_; }
  uint64_t dropped() const { return recorder_->dropped(); }

 private:
  ProfiledEngine() = default;
  absl::StatusOr<int64_t> Prefill(int32_t rows, bool profiled);
  absl::StatusOr<int64_t> Decode(int32_t steps, int32_t depth, bool profiled);
  absl::Status Pass(const std::vector<engine::Row>& rows, telemetry::Phase phase, bool profiled);
  void Drain();
  absl::StatusOr<PhaseAccuracy> PassAccuracy(telemetry::Phase phase, int32_t rows, int count);
  std::vector<PhaseAccuracy> SamplingAccuracy(int count);

  std::unique_ptr<telemetry::Recorder> recorder_;
  std::unique_ptr<telemetry::Reader> reader_;
  std::unique_ptr<engine::KernelSpans> kernels_;
  std::unique_ptr<engine::Model> model_;
  std::unique_ptr<engine::ScratchKv> kv_;
  std::vector<float> logits_;
  uint32_t passes_ = 0;
  uint32_t tokens_ = 0;
};

}  // namespace withy::bench
