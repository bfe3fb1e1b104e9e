// Records kernels and embeddings of a model's passes as spans. Neighbours: model/kernel_observer.h
// tells of them, telemetry/recorder.h takes the spans.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/model/kernel_observer.h"
#include "engine/model/program.h"
#include "engine/session/pass_sampler.h"
#include "telemetry/recorder.h"

namespace withy::engine {

// A kernel's span is named after its operation (OpName) and has the pass's number as sequence. Its
// value is the layer; the number of layers for operations outside the layers. `queued` is when the
// operation was dispatched, `submitted` when the thread arrived at it. Its weight is the number of
// passes that its pass stands for (pass_sampler.h). Made before the model, which it must outlive.
class KernelSpans final : public KernelObserver {
 public:
  // Measures what recording takes here, for less than a millisecond.
  explicit KernelSpans(telemetry::Recorder& recorder);

  // Both before the first pass. `share` of the time of passes that recording kernels may take: 0:
  // none is recorded; 1, the default: those of every pass are.
  void set_layers(int32_t layers) { layers_.store(layers, std::memory_order_relaxed); }
  void set_share(double share) { sampler_.set_share(share); }

  uint16_t OnPassBegins(int32_t rows) override { return sampler_.Next(rows); }
  void OnPassDone(int32_t rows, size_t ops, int64_t ticks, int64_t stamping) override {
    sampler_.Took(rows, ops, ticks, stamping);
  }
  void OnKernel(const KernelRun& run) override;
  void OnEmbedded(const PassTag& pass, int64_t started, int64_t ended) override;

 private:
  telemetry::Recorder& recorder_;
  PassSampler sampler_;
  std::array<uint16_t, kOpKinds> names_ = {};
  std::atomic<int32_t> layers_{0};
};

}  // namespace withy::engine
