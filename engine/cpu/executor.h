// Computes programs on the CPU: turns operations into steps, as many as a step list has room for,
// and runs them on the thread pool. Neighbours: lower.h resolves names, thread_pool.h runs steps,
// model/executor.h is the interface.
#pragma once

#include <memory>

#include "engine/cpu/bound_weights.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/key_bias.h"
#include "engine/cpu/lowering/lower.h"
#include "engine/cpu/thread_pool.h"
#include "engine/model/executor.h"
#include "engine/model/kernel_observer.h"
#include "engine/weights/weight_stream.h"

namespace withy::engine {

// Owns the compute threads. `file`, `facts`, `tap`, `stream` and `observer` must outlive it.
class CpuExecutor final : public Executor {
 public:
  // `threads`: at least 1; counts the caller's thread. `stream`: null if all weights stay in
  // memory. `observer`: null if nobody watches kernels.
  CpuExecutor(const PackedFile& file, const ModelFacts& facts, const Kernels& kernels, int threads,
              const LayerTap& tap, WeightStream* stream = nullptr,
              KernelObserver* observer = nullptr);
  ~CpuExecutor() override;

  std::string_view target() const override { return kernels_.name; }
  int32_t threads() const override { return pool_.threads(); }
  int32_t piece_rows() const override { return 128; }
  bool PinThreads() override { return pool_.PinThreads(); }
  std::unique_ptr<ProgramRun> NewRun() override;

 private:
  class PoolRun;

  const ModelFacts& facts_;
  const BoundWeights weights_;
  const KeyBias key_bias_;
  const Kernels& kernels_;
  const LayerTap& tap_;
  WeightStream* const stream_;
  KernelObserver* const observer_;
  ThreadPool pool_;
};

}  // namespace withy::engine
