// withy-bench-profiler: what the profiler costs, how exact it is, and how well it predicts. Prints
// a table and one JSON line last on stdout; progress on stderr. Neighbours: profiler_engine.h,
// profiler_kernels.h, profiler_prediction.h and profiler_service.h measure.
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/config.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/profiler/governors.h"
#include "bench/profiler/profiler_engine.h"
#include "bench/profiler/profiler_figures.h"
#include "bench/profiler/profiler_kernels.h"
#include "bench/profiler/profiler_prediction.h"
#include "bench/profiler/profiler_recovery.h"
#include "bench/profiler/profiler_service.h"
#include "bench/samples.h"
#include "bench/service/processes.h"
#include "bench/speculation/speculation_models.h"

ABSL_FLAG(std::string, model, "",
          "GGUF or packed file for what is measured on the engine; default: the pocket model");
ABSL_FLAG(std::string, cache_dir, "", "directory of packed models; empty: the usual one");
ABSL_FLAG(int, threads, 2, "compute threads");
ABSL_FLAG(int, pairs, 60, "interleaved pairs with and without the profiler");
ABSL_FLAG(int, repeats, 1000, "times that a short phase is repeated");
ABSL_FLAG(int, kernel_rounds, 40, "runs of each kernel with and without copies");
ABSL_FLAG(int, prompts, 200, "prompts for predictions; the second half is held out");
ABSL_FLAG(int, recovery_calls, 25, "calls before and behind the board's change of speed");
ABSL_FLAG(int, recovery_runs, 10, "times that this is done, each with services of its own");
ABSL_FLAG(std::string, recovery_shape, "smollm2-135m",
          "published shape that the pocket model is inflated to for recovery: passes that last as "
          "long as the scheduler's time slices; empty: the pocket model as it is");
ABSL_FLAG(int, seconds, 10, "time for each load of profiler_agent");
ABSL_FLAG(bool, service, true, "whether the service is measured, too");
ABSL_FLAG(bool, engine, true, "whether the engine is measured");
ABSL_FLAG(int, kernel_spans_per_mille, 3, "as profiler.kernel_spans_per_mille; of overheads");
ABSL_FLAG(uint32_t, seed, 1, "of predictions");
ABSL_FLAG(std::string, prediction_passes, "",
          "file for the passes that were predicted, as comma-separated values; empty: none");
ABSL_FLAG(std::string, inflate, "",
          "published shape that the model is inflated to for what is measured on the engine, e.g. "
          "tinyllama-1.1b; empty: the model as it is");

namespace withy::bench {
namespace {

std::string ModelPath() {
  const std::string path = absl::GetFlag(FLAGS_model);
  return path.empty() ? PocketFile(kPocketTarget) : path;
}

// Lets the calling thread use the cores again that it could use when the object was made. An engine
// pins the thread that runs it to a core, and threads made later, such as those of a second engine,
// would all inherit that core.
class KeepsCores {
 public:
  KeepsCores() { known_ = sched_getaffinity(0, sizeof cores_, &cores_) == 0; }
  ~KeepsCores() {
    if (known_) sched_setaffinity(0, sizeof cores_, &cores_);
  }
  KeepsCores(const KeepsCores&) = delete;
  KeepsCores& operator=(const KeepsCores&) = delete;

 private:
  cpu_set_t cores_;
  bool known_ = false;
};

void Say(const std::string& what) { std::fprintf(stderr, "%s\n", what.c_str()); }

class ProfilerBench {
 public:
  absl::Status Run() {
    if (absl::GetFlag(FLAGS_engine)) WITHY_RETURN_IF_ERROR(MeasureEngine());
    if (absl::GetFlag(FLAGS_service)) WITHY_RETURN_IF_ERROR(MeasureService());
    std::printf("%s\n", line_.dump().c_str());
    return absl::OkStatus();
  }

 private:
  absl::Status MeasureEngine() {
    WITHY_ASSIGN_OR_RETURN(directory_, TemporaryDirectory::Create("withy-profiler-engine"));
    const std::string shape = absl::GetFlag(FLAGS_inflate);
    if (!shape.empty()) {
      Say("inflating the model to " + shape);
      WITHY_ASSIGN_OR_RETURN(engine_model_, Inflated(ModelPath(), shape, directory_.path()));
      engine_cache_ = directory_.path();
      line_["inflate"] = shape;
    }
    {
      const KeepsCores cores;
      WITHY_ASSIGN_OR_RETURN(auto engine, ProfiledEngine::Open(engine_model_, directory_.path(),
                                                               engine_cache_, threads_));
      WITHY_RETURN_IF_ERROR(MeasureOverheads(*engine));
      WITHY_RETURN_IF_ERROR(MeasurePhases(*engine));
      WITHY_RETURN_IF_ERROR(MeasurePredictions(engine->model()));
      line_["engine_spans_dropped"] = engine->dropped();
    }
    return MeasureKernelsAndSynchronous();
  }

  void Put(const std::string& key, double value) {
    std::printf("%-40s %12.5f\n", key.c_str(), value);
    line_[key] = value;
  }

  absl::Status MeasureOverhead(ProfiledEngine& engine, const std::string& suffix) {
    Say("overhead" + suffix);
    engine.kernels().set_share(absl::GetFlag(FLAGS_kernel_spans_per_mille) / 1000.0);
    const int pairs = absl::GetFlag(FLAGS_pairs);
    WITHY_ASSIGN_OR_RETURN(const MeanBound prefill, engine.PrefillOverhead(128, pairs));
    WITHY_ASSIGN_OR_RETURN(const MeanBound decode, engine.DecodeOverhead(64, 64, pairs));
    Put("overhead_prefill" + suffix, prefill.mean);
    Put("overhead_decode" + suffix, decode.mean);
    Put("overhead_upper95" + suffix, std::max(prefill.upper95, decode.upper95));
    return absl::OkStatus();
  }

  // Under the governor that the board has, then under each of LM-Meter's three that it offers.
  absl::Status MeasureOverheads(ProfiledEngine& engine) {
    constexpr std::string_view kGovernors[] = {"performance", "conservative", "powersave"};
    Governors governors;
    const std::vector<std::string> offered = governors.Offered(kGovernors);
    std::printf("governor: %s; of performance, conservative and powersave the board offers: %s\n",
                governors.first().empty() ? "none" : governors.first().c_str(),
                offered.empty() ? "none" : absl::StrJoin(offered, ", ").c_str());
    line_["governor"] = governors.first();
    line_["governors"] = offered;
    WITHY_RETURN_IF_ERROR(MeasureOverhead(engine, ""));
    for (const std::string& governor : offered) {
      if (const absl::Status set = governors.Set(governor); !set.ok()) {
        Say("overheads under other governors are not measured: " + std::string(set.message()));
        break;
      }
      WITHY_RETURN_IF_ERROR(MeasureOverhead(engine, "_" + governor));
    }
    return absl::OkStatus();
  }

  absl::Status MeasurePhases(ProfiledEngine& engine) {
    Say("phases");
    WITHY_ASSIGN_OR_RETURN(const std::vector<ProfiledEngine::PhaseAccuracy> phases,
                           engine.Phases(absl::GetFlag(FLAGS_repeats)));
    std::printf("%-16s %14s %14s %10s\n", "phase", "spans, us", "truth, us", "accuracy");
    double least = 1, worst_ns = 0;
    for (const ProfiledEngine::PhaseAccuracy& phase : phases) {
      const double accuracy = Accuracy(phase.measured_us, phase.truth_us);
      std::printf("%-16s %14.3f %14.3f %10.5f\n", phase.name.c_str(), phase.measured_us,
                  phase.truth_us, accuracy);
      if (phase.truth_us >= 1000) {
        least = std::min(least, accuracy);
      } else {
        worst_ns = std::max(worst_ns, 1e3 * std::abs(phase.measured_us - phase.truth_us));
      }
    }
    Put("phase_accuracy_min_1ms", least);
    Put("phase_error_ns_short", worst_ns);
    return absl::OkStatus();
  }

  absl::Status MeasurePredictions(engine::Model& model) {
    Say("predictions");
    WITHY_ASSIGN_OR_RETURN(
        const std::vector<PredictedPass> passes,
        MeasurePrediction(model, absl::GetFlag(FLAGS_prompts), absl::GetFlag(FLAGS_seed)));
    std::printf("%-16s %14s %14s %14s %14s\n", "calls in a pass", "median error", "p95 error",
                "floor, median", "floor, p95");
    for (int32_t calls = 1; calls <= kMostPredictedCalls; ++calls) {
      const std::vector<double> errors = PredictionErrors(passes, calls);
      const std::vector<double> floor = PredictionFloor(passes, calls);
      std::printf("%-16d %14.5f %14.5f %14.5f %14.5f\n", calls, Quantile(errors, 0.5),
                  Quantile(errors, 0.95), Quantile(floor, 0.5), Quantile(floor, 0.95));
    }
    const std::vector<double> errors = PredictionErrors(passes), floor = PredictionFloor(passes);
    Put("prediction_median_error", Quantile(errors, 0.5));
    Put("prediction_p95_error", Quantile(errors, 0.95));
    Put("prediction_floor_median", Quantile(floor, 0.5));
    Put("prediction_floor_p95", Quantile(floor, 0.95));
    return WritePasses(passes);
  }

  absl::Status WritePasses(const std::vector<PredictedPass>& passes) {
    const std::string path = absl::GetFlag(FLAGS_prediction_passes);
    if (path.empty()) return absl::OkStatus();
    std::ofstream file(path);
    file << "prompt,held_out,step,calls,depth,predicted_ms,took_ms\n";
    for (const PredictedPass& pass : passes) {
      file << pass.prompt << ',' << pass.held_out << ',' << pass.step << ',' << pass.calls << ','
           << pass.depth << ',' << pass.predicted_ms << ',' << pass.took_ms << '\n';
    }
    file.close();
    if (file) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("--prediction_passes: cannot write ", path, ": give a path with room"));
  }

  absl::Status MeasureKernelsAndSynchronous() {
    Say("kernels");
    const KeepsCores cores;
    WITHY_ASSIGN_OR_RETURN(auto recorder,
                           telemetry::Recorder::Open(directory_.path() + "/kernel_rings", "bench",
                                                     {.ring_capacity = 65536}));
    WITHY_ASSIGN_OR_RETURN(auto reader,
                           telemetry::Reader::Open(directory_.path() + "/kernel_rings"));
    engine::KernelSpans spans(*recorder);
    WITHY_ASSIGN_OR_RETURN(auto bench,
                           ProgramBench::Open(engine_model_, engine_cache_, threads_, &spans));
    spans.set_layers(bench->info().layers);
    std::vector<double> accuracies, longer;
    std::vector<double> coverages;
    std::printf("%-24s %14s %14s %10s\n", "kernel", "spans, us", "truth, us", "accuracy");
    for (const PassSpec spec : {PassSpec{.rows = 32}, PassSpec{.rows = 1, .depth = 64}}) {
      const KernelsAccuracy accuracy =
          MeasureKernels(*bench, spans, *reader, spec, absl::GetFlag(FLAGS_kernel_rounds));
      coverages.push_back(accuracy.coverage);
      for (const KernelAccuracy& kernel : accuracy.kernels) {
        std::printf("%-16s %7s %14.3f %14.3f %10.5f\n", kernel.name.c_str(),
                    spec.rows == 1 ? "decode" : "prefill", kernel.measured_us, kernel.truth_us,
                    kernel.accuracy);
        accuracies.push_back(kernel.accuracy);
        if (kernel.truth_us >= 5) longer.push_back(kernel.accuracy);
      }
    }
    double sum = 0;
    for (const double accuracy : accuracies) sum += accuracy;
    Put("kernel_accuracy_mean", sum / static_cast<double>(std::max<size_t>(accuracies.size(), 1)));
    Put("kernel_accuracy_min_5us",
        longer.empty() ? 0 : *std::min_element(longer.begin(), longer.end()));
    Put("kernel_coverage_prefill", coverages[0]);
    Put("kernel_coverage_decode", coverages[1]);
    spans.Watch(false);
    Synchronous(*bench, {.rows = 128}, "synchronous_overhead_prefill");
    Synchronous(*bench, {.rows = 1, .depth = 64}, "synchronous_overhead_decode");
    return absl::OkStatus();
  }

  void Synchronous(ProgramBench& bench, const PassSpec& spec, const std::string& key) {
    bench.Prepare(spec);
    std::vector<double> shares;
    for (int pair = 0; pair < absl::GetFlag(FLAGS_pairs) + 1; ++pair) {
      const auto plain = static_cast<double>(bench.Run());
      const auto synchronous = static_cast<double>(bench.RunSynchronously());
      if (pair > 0) shares.push_back(synchronous / plain - 1);
    }
    Put(key, TrimmedMean(shares).mean);
  }

  absl::Status MeasureService() {
    Say("service");
    WITHY_ASSIGN_OR_RETURN(auto service, ProfiledService::Start("", threads_));
    WITHY_ASSIGN_OR_RETURN(const AgentFigures agent,
                           service->MeasureAgent(absl::Seconds(absl::GetFlag(FLAGS_seconds))));
    Put("agent_core_idle", agent.core_idle);
    Put("agent_core_load", agent.core_load);
    line_["calls_under_load"] = agent.calls;
    line_["spans"] = agent.spans;
    line_["spans_dropped"] = agent.dropped;
    service.reset();
    return MeasureRecovery();
  }

  // Each run has services of its own, which know nothing of busy boards.
  absl::Status MeasureRecovery() {
    Say("recovery");
    const std::string shape = absl::GetFlag(FLAGS_recovery_shape);
    WITHY_ASSIGN_OR_RETURN(const TemporaryDirectory directory,
                           TemporaryDirectory::Create("withy-inflated"));
    std::string model = ModelPath();
    if (!shape.empty()) {
      WITHY_ASSIGN_OR_RETURN(model, Inflated(model, shape, directory.path()));
    }
    Samples runs;
    std::vector<size_t> recovery_calls;
    for (int run = 0; run < absl::GetFlag(FLAGS_recovery_runs); ++run) {
      WITHY_ASSIGN_OR_RETURN(const RecoveryFigures recovery, RunRecovery(model, &runs));
      runs.Add("attainment_before", recovery.attainment_before);
      runs.Add("attainment_after", recovery.attainment_after);
      runs.Add("attainable", recovery.attainable);
      if (recovery.attainable > 0) {
        runs.Add("attained_share", recovery.attainment_after / recovery.attainable);
      }
      recovery_calls.push_back(recovery.recovery_calls);
    }
    runs.Print(stdout);
    for (const std::string& key : runs.keys()) Put(key, runs.Median(key));
    if (runs.Has("attained_share")) {
      const Spread shares = Summarize(runs.At("attained_share"));
      Put("attained_share_low", shares.low);
      Put("attained_share_high", shares.high);
    }
    line_["recovery_calls"] = recovery_calls;
    return absl::OkStatus();
  }

  absl::StatusOr<RecoveryFigures> RunRecovery(const std::string& model, Samples* runs) {
    const int calls = absl::GetFlag(FLAGS_recovery_calls);
    WITHY_ASSIGN_OR_RETURN(const auto control, ProfiledService::Start(model, threads_));
    WITHY_ASSIGN_OR_RETURN(const RecoverySlo slo, FindRecoverySlo(*control, calls));
    WITHY_ASSIGN_OR_RETURN(const auto service, ProfiledService::Start(model, threads_));
    WITHY_ASSIGN_OR_RETURN(RecoveryFigures recovery,
                           bench::MeasureRecovery(*service, *control, slo, calls));
    std::printf("SLO: TTFT %.2f ms, TPOT %.3f ms\n", slo.slo.ttft_ms(), slo.slo.tpot_ms());
    std::printf("%5s %8s %10s %10s %10s %10s\n", "level", "in time", "TTFT, ms", "predicted",
                "TPOT, ms", "predicted");
    for (const ProfiledService::Answer& answer : recovery.answers) {
      std::printf("%5u %8s %10.2f %10.2f %10.3f %10.3f\n", answer.level_percent,
                  answer.in_time ? "yes" : "no", answer.ttft_ms, answer.predicted_ttft_ms,
                  answer.tpot_ms, answer.predicted_tpot_ms);
    }
    runs->Add("full_in_time_free", slo.full_free);
    runs->Add("full_in_time_slow", slo.full_slow);
    runs->Add("lowest_in_time_slow", slo.lowest_slow);
    return recovery;
  }

  const int threads_ = absl::GetFlag(FLAGS_threads);
  std::string engine_model_ = ModelPath();
  std::string engine_cache_ = absl::GetFlag(FLAGS_cache_dir);
  TemporaryDirectory directory_;
  nlohmann::ordered_json line_;
};

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "What the profiler costs, how exact it is, and how well passes are predicted.\n"
      "usage: withy-bench-profiler [--model FILE.gguf] [--inflate SHAPE] [--noservice]",
      argc, argv, [] { return withy::bench::ProfilerBench().Run(); });
}
