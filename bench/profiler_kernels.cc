#include "bench/profiler_kernels.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "base/status.h"
#include "bench/profiler_figures.h"
#include "bench/raw_clock.h"
#include "engine/model/devices.h"
#include "engine/model/emit.h"
#include "engine/weights/packer.h"

namespace withy::bench {
namespace {

using engine::Op;
using engine::OpKind;

constexpr double kFastRuns = 0.1;

// From the first thread's begin of an operation to the last one's end, by layer.
using KernelWalls = std::map<uint64_t, std::pair<int64_t, int64_t>>;

// Nanoseconds that kernels `name` of one pass took together.
int64_t WallOf(telemetry::Reader& reader, std::string_view name) {
  KernelWalls walls;
  reader.Drain([&](const telemetry::SpanEvent& event) {
    if (event.span.kind != telemetry::SpanKind::kKernel || event.name != name) return;
    const auto [wall, made] =
        walls.try_emplace(event.span.value, event.span.queued_ns, event.span.ended_ns);
    wall->second.first = std::min(wall->second.first, event.span.queued_ns);
    wall->second.second = std::max(wall->second.second, event.span.ended_ns);
  });
  int64_t sum = 0;
  for (const auto& [layer, wall] : walls) sum += wall.second - wall.first;
  return sum;
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
  WITHY_ASSIGN_OR_RETURN(
      bench->executor_,
      engine::ChooseExecutor(*bench->file_, bench->facts_, options, bench->no_tap_, nullptr));
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
  kv_ = std::make_unique<engine::ScratchKv>(info_, spec.depth + spec.rows + 1);
  view_ = kv_->View();
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
  int32_t count = 0;
  for (size_t i = 0; i < program_.ops.size(); ++i) {
    const Op& op = program_.ops[i];
    const bool copy =
        i > 0 && program_.ops[i - 1].kind == kind && program_.ops[i - 1].layer == op.layer;
    if (op.kind == kind && !copy) ++count;
  }
  return count;
}

int64_t ProgramBench::Run() {
  const int64_t started = RawNanos();
  run_->Start(program_, plan_, batch_, logits_.data());
  run_->Run(nullptr, engine::ProgramRun::kToTheEnd);
  return RawNanos() - started;
}

int64_t ProgramBench::RunSynchronously() {
  log_.clear();
  const int64_t started = RawNanos();
  run_->Start(program_, plan_, batch_, logits_.data());
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

std::vector<KernelAccuracy> MeasureKernels(ProgramBench& bench, telemetry::Reader& reader,
                                           const PassSpec& spec, int copies, int rounds) {
  std::vector<KernelAccuracy> kernels;
  for (const OpKind kind :
       {OpKind::kEmbed, OpKind::kNorm, OpKind::kQkv, OpKind::kStoreKv, OpKind::kAttend,
        OpKind::kAttentionOut, OpKind::kGateUp, OpKind::kDown, OpKind::kHead}) {
    std::vector<double> took[2], walls[2];  // nanoseconds, without and with copies
    int32_t operations = 0;
    for (int round = 0; round < rounds; ++round) {
      for (const int with : {0, 1}) {
        bench.Prepare(spec, kind, with * copies);
        bench.Run();  // warms KV and caches
        WallOf(reader, "");
        took[with].push_back(static_cast<double>(bench.Run()));
        walls[with].push_back(static_cast<double>(WallOf(reader, engine::OpName(kind))));
        operations = bench.Count(kind);
      }
    }
    if (operations == 0) continue;
    // Whatever disturbs a pass makes it longer: the fast runs tell.
    const auto each_us = [&](const std::vector<double>(&samples)[2]) {
      return (Quantile(samples[1], kFastRuns) - Quantile(samples[0], kFastRuns)) /
             (1e3 * operations * copies);
    };
    KernelAccuracy kernel{.name = std::string(engine::OpName(kind)),
                          .truth_us = each_us(took),
                          .measured_us = each_us(walls)};
    kernel.accuracy = Accuracy(kernel.measured_us, kernel.truth_us);
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

}  // namespace withy::bench
