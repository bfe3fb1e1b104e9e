#include "bench/profiler/profiler_kernels.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "base/status.h"
#include "bench/profiler/profiler_figures.h"
#include "bench/profiler/raw_clock.h"
#include "bench/samples.h"
#include "engine/model/devices.h"
#include "engine/model/emit.h"
#include "engine/weights/packer.h"

namespace withy::bench {
namespace {

using engine::Op;
using engine::OpKind;

// Operations of a pass with copies. They are run from one list, which has room for their steps.
constexpr int32_t kMostOps = 320;
// Copies of an operation that a pass has once, at most.
constexpr int32_t kMostCopies = 200;

// Nanoseconds that the kernels of one pass took together, each from its dispatch to the last
// thread's end: of those called `name`, or of all.
int64_t WallOf(telemetry::Reader& reader, std::string_view name) {
  std::map<int64_t, int64_t> ends;  // by dispatch, which is the same for all threads
  reader.Drain([&](const telemetry::SpanEvent& event) {
    if (event.span.kind != telemetry::SpanKind::kKernel) return;
    if (!name.empty() && event.name != name) return;
    int64_t& end = ends[event.span.queued_ns];
    end = std::max(end, event.span.ended_ns);
  });
  int64_t sum = 0;
  for (const auto& [dispatched, ended] : ends) sum += ended - dispatched;
  return sum;
}

// What runs of the prepared pass took, in nanoseconds.
struct Runs {
  double plain = 0;    // nobody watched
  double kernels = 0;  // watched: kernels of one name, or all of them, by their spans
};

// Runs the prepared pass with and without the observer. A thread tells of its last operation when
// the next pass begins, or a little later when it rests: a pass behind each makes sure of it.
Runs RunBoth(ProgramBench& bench, engine::KernelObserver& observer, telemetry::Reader& reader,
             std::string_view name) {
  Runs runs;
  observer.Watch(false);
  bench.Run();  // warms KV and caches
  runs.plain = static_cast<double>(bench.Run());
  WallOf(reader, "");
  observer.Watch(true);
  bench.Run();
  observer.Watch(false);
  bench.Run();
  runs.kernels = static_cast<double>(WallOf(reader, name));
  return runs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProgramBench>> ProgramBench::Open(const std::string& model,
                                                                 const std::string& cache_dir,
                                                                 int threads,
                                                                 engine::KernelObserver* observer) {
  std::string packed = model;
  if (!engine::PackedFile::LooksPacked(model)) {
    engine::ThreadPool pool(threads);
    WITHY_ASSIGN_OR_RETURN(packed, engine::EnsurePacked(model, cache_dir, pool));
  }
  WITHY_ASSIGN_OR_RETURN(auto file, engine::PackedFile::Open(packed));
  WITHY_ASSIGN_OR_RETURN(auto facts, engine::ReadFacts(*file, {}));
  std::unique_ptr<ProgramBench> bench(new ProgramBench(std::move(file), std::move(facts)));
  engine::ModelOptions options;
  options.threads = threads;
  options.kernel_observer = observer;
  bool on_gpu = false;
  WITHY_ASSIGN_OR_RETURN(bench->executor_,
                         engine::ChooseExecutor({}, *bench->file_, bench->facts_, options,
                                                bench->no_tap_, nullptr, &on_gpu));
  bench->executor_->PinThreads();
  bench->run_ = bench->executor_->NewRun();
  return bench;
}

ProgramBench::ProgramBench(std::unique_ptr<engine::PackedFile> file, engine::ModelFacts facts)
    : file_(std::move(file)),
      facts_(std::move(facts)),
      info_(engine::DescribeModel(*file_, facts_)),
      logits_(static_cast<size_t>(info_.vocab_size)) {}

void ProgramBench::Prepare(const PassSpec& spec, OpKind kind, int copies) {
  if (spec != spec_) {
    kv_ = std::make_unique<engine::ScratchKv>(info_, spec.depth + spec.rows + 1);
    view_ = kv_->View();
    spec_ = spec;
  }
  rows_.clear();
  for (int32_t i = 0; i < spec.rows; ++i) {
    rows_.push_back({.token = (i * 7 + 3) % info_.vocab_size,
                     .position = spec.depth + i,
                     .slot = spec.depth + i,
                     .want_logits = i + 1 == spec.rows});
  }
  batch_ = {.rows = rows_, .contexts = {&view_, 1}};
  plan_.Plan(batch_, facts_, 0, spec.rows, 0);
  engine::Emit(plan_, facts_, /*tap=*/false, &program_);
  std::vector<Op> ops;
  for (const Op& op : program_.ops) {
    ops.insert(ops.end(), 1 + static_cast<size_t>(op.kind == kind ? copies : 0), op);
  }
  program_.ops = std::move(ops);
}

int32_t ProgramBench::Count(OpKind kind) const {
  return static_cast<int32_t>(std::count_if(program_.ops.begin(), program_.ops.end(),
                                            [kind](const Op& op) { return op.kind == kind; }));
}

int64_t ProgramBench::Run() {
  run_->Start(program_, plan_, batch_, logits_.data());
  run_->Run(nullptr, 0);  // makes steps of operations, and runs none
  const int64_t started = RawNanos();
  run_->Run(nullptr, engine::ProgramRun::kToTheEnd);
  return RawNanos() - started;
}

int64_t ProgramBench::RunSynchronously() {
  log_.clear();
  run_->Start(program_, plan_, batch_, logits_.data());
  run_->Run(nullptr, 0);
  const int64_t started = RawNanos();
  int64_t before = started;
  for (int32_t op = 0; op < static_cast<int32_t>(program_.ops.size()); ++op) {
    run_->Run(nullptr, op + 1);
    const int64_t now = RawNanos();
    char line[96];
    const int length =
        std::snprintf(line, sizeof line, "%s %lld\n",
                      engine::OpName(program_.ops[static_cast<size_t>(op)].kind).data(),
                      static_cast<long long>(now - before));
    log_.append(line, static_cast<size_t>(std::max(length, 0)));
    before = now;
  }
  return RawNanos() - started;
}

KernelsAccuracy MeasureKernels(ProgramBench& bench, engine::KernelObserver& observer,
                               telemetry::Reader& reader, const PassSpec& spec, int rounds) {
  KernelsAccuracy result;
  bench.Prepare(spec);
  std::vector<double> covered;
  for (int round = 0; round < rounds; ++round) {
    const Runs whole = RunBoth(bench, observer, reader, "");
    covered.push_back(whole.kernels / std::max(whole.plain, 1.0));
  }
  result.coverage = Summarize(std::move(covered)).median;
  for (const OpKind kind :
       {OpKind::kEmbed, OpKind::kNorm, OpKind::kQkv, OpKind::kStoreKv, OpKind::kAttend,
        OpKind::kAttentionOut, OpKind::kGateUp, OpKind::kDown, OpKind::kHead}) {
    bench.Prepare(spec);
    const int32_t operations = bench.Count(kind);
    if (operations == 0) continue;
    const int32_t copies = std::clamp((kMostOps - bench.ops()) / operations, 1, kMostCopies);
    // What a copy adds, from runs that follow each other: the board's speed changes meanwhile.
    std::vector<double> truth_us, measured_us;
    for (int round = 0; round < rounds; ++round) {
      bench.Prepare(spec);
      const Runs without = RunBoth(bench, observer, reader, engine::OpName(kind));
      bench.Prepare(spec, kind, copies);
      const Runs with = RunBoth(bench, observer, reader, engine::OpName(kind));
      const double copies_in_all = 1e3 * operations * copies;
      truth_us.push_back((with.plain - without.plain) / copies_in_all);
      measured_us.push_back((with.kernels - without.kernels) / copies_in_all);
    }
    KernelAccuracy kernel{.name = std::string(engine::OpName(kind)),
                          .truth_us = Summarize(std::move(truth_us)).median,
                          .measured_us = Summarize(std::move(measured_us)).median};
    kernel.accuracy = Accuracy(kernel.measured_us, kernel.truth_us);
    result.kernels.push_back(std::move(kernel));
  }
  return result;
}

}  // namespace withy::bench
