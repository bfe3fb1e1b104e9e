// Programs of one pass, run by hand: with operations duplicated, which tells what each takes
// without a profiler (LM-Meter section 4.3), or one operation at a time with the clock read
// between, as a synchronous profiler does (MELT). Neighbour: profiler.cc reports.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cpu/thread_pool.h"
#include "engine/model/executor.h"
#include "engine/model/facts.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"
#include "engine/weights/packed_file.h"
#include "telemetry/reader.h"

namespace withy::bench {

// A pass of `rows` rows behind `depth` tokens; the last one wants logits.
struct PassSpec {
  int32_t rows = 1;
  int32_t depth = 0;
  bool operator==(const PassSpec&) const = default;
};

// What a kernel takes: by its spans, and by duplication. Duplicates find their weights in the
// caches; so do those whose spans are compared.
struct KernelAccuracy {
  std::string name;
  double truth_us = 0;     // wall time that each duplicate adds to a pass that nobody watches
  double measured_us = 0;  // a duplicate's spans: from its dispatch to the last thread's end
  double accuracy = 0;     // eq. 1
};

// How the kernels of a pass compare with duplication.
struct KernelsAccuracy {
  std::vector<KernelAccuracy> kernels;
  // The part of the time of a pass that nobody watches which the spans of its kernels, without
  // duplicates, account for. What is left is the way into the pass and out of it.
  double coverage = 0;
};

// Not thread-safe.
class ProgramBench {
 public:
  // `observer` may be null and is borrowed. Errors: as Model::Open.
  static absl::StatusOr<std::unique_ptr<ProgramBench>> Open(const std::string& model,
                                                            const std::string& cache_dir,
                                                            int threads,
                                                            engine::KernelObserver* observer);

  // Plans a pass, each operation of `kind` followed by `copies` copies of itself. Passes of one
  // spec in a row use the same KV.
  void Prepare(const PassSpec& spec, engine::OpKind kind = engine::OpKind::kEmbed, int copies = 0);
  // Runs the prepared pass; nanoseconds of CLOCK_MONOTONIC_RAW. Turning operations into steps is
  // not in it, as far as the executor's list has room for them.
  int64_t Run();
  // The same one operation at a time: all threads wait for each other, the clock is read, and the
  // time is written to a log, as profilers do that know no ring.
  int64_t RunSynchronously();

  const engine::ModelInfo& info() const { return info_; }
  // Operations of `kind` in the prepared pass.
  int32_t Count(engine::OpKind kind) const;
  int32_t ops() const { return static_cast<int32_t>(program_.ops.size()); }

 private:
  ProgramBench(std::unique_ptr<engine::PackedFile> file, engine::ModelFacts facts);
  void Start();

  const std::unique_ptr<engine::PackedFile> file_;
  const engine::ModelFacts facts_;
  const engine::ModelInfo info_;
  const std::function<void(int32_t, std::span<const float>)> no_tap_;
  std::unique_ptr<engine::Executor> executor_;
  std::unique_ptr<engine::ProgramRun> run_;
  std::unique_ptr<engine::ScratchKv> kv_;
  PassSpec spec_ = {.rows = 0};  // that kv_ is for
  std::vector<engine::Row> rows_;
  engine::ContextView view_;
  engine::Batch batch_;
  engine::RowPlan plan_;
  engine::Program program_;
  std::vector<float> logits_;
  std::string log_;
};

// Accuracy of each kernel in passes of `spec`, from `rounds` rounds of four runs: with and without
// copies, each watched by `observer` and not. `reader` reads what the observer records.
KernelsAccuracy MeasureKernels(ProgramBench& bench, engine::KernelObserver& observer,
                               telemetry::Reader& reader, const PassSpec& spec, int rounds);

}  // namespace withy::bench
