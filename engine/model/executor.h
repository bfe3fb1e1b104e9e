// Computes programs: one implementation per device, chosen in devices.cc. Neighbours: program.h is
// what it runs, cpu/executor.h is the one for CPUs. Only an executor turns names of weights and KV
// blocks into addresses; code above it holds names.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "engine/model/program.h"
#include "engine/model/row_plan.h"

namespace withy::engine {

// Runs one program at a time. Where weights are streamed, the stage of an operation must have
// arrived before Run reaches the operation; the run releases the stage behind it. Reused for
// further programs, which keeps its buffers. Destroyed before its executor.
class ProgramRun {
 public:
  static constexpr int32_t kToTheEnd = INT32_MAX;

  virtual ~ProgramRun() = default;

  // Takes the next program. The previous one must be finished or abandoned. `program`, `plan`, the
  // memory behind `batch`, and `logits` [rows of the batch with want_logits, vocab; d_model if
  // Batch::hidden] must stay valid until this program is finished or abandoned.
  virtual void Start(const Program& program, const RowPlan& plan, const Batch& batch,
                     float* logits) = 0;

  // Starts or resumes the program. Returns true once every operation is done. Returns false if it
  // paused first: because `*stop` became true (polled at least between operations) or before the
  // operation with index `end`. The next Run continues where this one paused.
  virtual bool Run(const std::atomic<bool>* stop, int32_t end) = 0;

  // Number of operations done; fractional where an executor takes one in several steps.
  virtual double ops_done() const = 0;

  // Not OK after a Run that failed, as a device can; the next Run fails again, or tries again.
  virtual absl::Status status() const { return absl::OkStatus(); }

  // Drops the remaining operations. The KV slots of the program's rows are then undefined.
  virtual void Abandon() = 0;
};

// Owns compute threads or a device. One thread at a time may call Start, Run and Abandon of its
// runs.
class Executor {
 public:
  virtual ~Executor() = default;
  // Name of the kernels in use. Results are bit-identical within one target.
  virtual std::string_view target() const = 0;
  virtual int32_t threads() const = 0;
  // Rows of a prompt from which on more at once do not make a row cheaper.
  virtual int32_t piece_rows() const = 0;
  // As Model::PinThreads.
  virtual bool PinThreads() = 0;
  virtual std::unique_ptr<ProgramRun> NewRun() = 0;
};

}  // namespace withy::engine
