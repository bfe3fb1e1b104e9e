// Records kernels and embeddings of a model's passes as spans. Neighbours: model/kernel_observer.h
// tells of them, telemetry/recorder.h takes the spans.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "engine/model/kernel_observer.h"
#include "engine/model/program.h"
#include "telemetry/recorder.h"

namespace withy::engine {

// A kernel's span is named after its operation (OpName) and has the pass's number as sequence. Its
// value is the layer; the number of layers for operations outside the layers. `queued` is when the
// operation was dispatched, `submitted` when the thread arrived at it. Made before the model, which
// it must outlive.
class KernelSpans final : public KernelObserver {
 public:
  explicit KernelSpans(telemetry::Recorder& recorder);

  // Before the first pass.
  void set_layers(int32_t layers) { layers_.store(layers, std::memory_order_relaxed); }

  void OnKernel(const KernelRun& run) override;
  void OnEmbedded(const PassTag& pass, int64_t started, int64_t ended) override;

 private:
  telemetry::Recorder& recorder_;
  std::array<uint16_t, kOpKinds> names_ = {};
  std::atomic<int32_t> layers_{0};
};

}  // namespace withy::engine
