// What computes programs: one implementation a device, chosen in open.cc. Neighbours: program.h is
// what it runs, cpu/executor.h is the one for CPUs. An executor binds names of weights and KV
// blocks to addresses when it comes to them; nothing above it holds such an address.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "engine/model/program.h"
#include "engine/model/row_plan.h"

namespace withy::engine {

// One program after another, one at a time; kept for its buffers. Destroyed before its executor.
class ProgramRun {
 public:
  static constexpr int32_t kToTheEnd = INT32_MAX;

  virtual ~ProgramRun() = default;

  // Takes the next program; the one before is over or abandoned. `program`, `plan`, what `batch`
  // spans and `logits` [rows with want_logits of the batch, vocab] stay until this one is over.
  virtual void Start(const Program& program, const RowPlan& plan, const Batch& batch,
                     float* logits) = 0;

  // True: every operation is done. False: `*stop` became true, which is polled between operations,
  // or operation `end` is reached, which is not begun; the next Run goes on from there.
  virtual bool Run(const std::atomic<bool>* stop, int32_t end) = 0;

  // Operations that are done; fractional where an executor takes one in several steps.
  virtual double ops_done() const = 0;

  // Gives up what is left. KV slots of the program's rows are then undefined.
  virtual void Abandon() = 0;
};

// Owns compute threads or a device. Start, Run and Abandon of its runs are for one thread at a
// time.
class Executor {
 public:
  virtual ~Executor() = default;
  // Name of the kernels in use. Results are bit-identical within one target.
  virtual std::string_view target() const = 0;
  virtual int32_t threads() const = 0;
  // As Model::PinThreads.
  virtual bool PinThreads() = 0;
  virtual std::unique_ptr<ProgramRun> NewRun() = 0;
};

}  // namespace withy::engine
