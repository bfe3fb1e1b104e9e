// withyctl calibrate: measures this board with the served model and its TLM, in this process, and
// stores the times where the services read them. Neighbours: calibration_run.h runs the rounds,
// engine/session/calibrator.h takes the samples, wire/calibration.h stores the record,
// calibration_report.h prints it.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/board.h"
#include "base/config.h"
#include "base/config/defaults.h"
#include "base/status.h"
#include "base/strings.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/profile/calibration_report.h"
#include "cli/profile/calibration_run.h"
#include "cli/profile/stamp_times.h"
#include "cli/stop_signals.h"
#include "engine/cuda/gpu/cupti.h"
#include "engine/encoder/tlm.h"
#include "engine/session/calibrator.h"
#include "engine/session/kv_errors.h"
#include "engine/session/served_model.h"
#include "wire/calibration.h"
#include "wire/wire.h"

namespace withy::cli {
namespace {

constexpr uint32_t kReadBytes[] = {256, 1024, 4096};

struct Run {
  CalibrationOptions options;
  bool force = false;
  BoardInfo board;
};

v1::CalibrationKind ToWire(engine::TimedKind kind) {
  switch (kind) {
    case engine::TimedKind::kPrefill:
      return v1::CALIBRATION_KIND_PREFILL;
    case engine::TimedKind::kDecode:
      return v1::CALIBRATION_KIND_DECODE;
    case engine::TimedKind::kSwitch:
      return v1::CALIBRATION_KIND_SWITCH;
    case engine::TimedKind::kResume:
      return v1::CALIBRATION_KIND_RESUME;
    case engine::TimedKind::kTree:
      return v1::CALIBRATION_KIND_TREE;
  }
  return v1::CALIBRATION_KIND_UNSPECIFIED;
}

v1::CalibrationPoint ToWire(const engine::TimedPoint& point) {
  v1::CalibrationPoint wire;
  wire.set_kind(ToWire(point.kind));
  wire.set_level_percent(static_cast<uint32_t>(point.level_percent));
  wire.set_rows(static_cast<uint32_t>(point.rows));
  wire.set_depth(static_cast<uint32_t>(point.depth));
  return wire;
}

engine::TimedPoint FromWire(const v1::CalibrationPoint& wire) {
  engine::TimedPoint point;
  for (const auto kind :
       {engine::TimedKind::kPrefill, engine::TimedKind::kDecode, engine::TimedKind::kSwitch,
        engine::TimedKind::kResume, engine::TimedKind::kTree}) {
    if (ToWire(kind) == wire.kind()) point.kind = kind;
  }
  point.level_percent = static_cast<int32_t>(wire.level_percent());
  point.rows = static_cast<int32_t>(wire.rows());
  point.depth = static_cast<int32_t>(wire.depth());
  return point;
}

// Warns on stderr about other load on the board. Continues, because the user may know better.
void WarnIfBusy(const Args& args, const BoardInfo& board) {
  if (const auto client = Client::Open(args); client.ok()) {
    if (const auto status = (*client)->GetStatus(); status.ok()) {
      uint32_t running = 0;
      for (const v1::ProcessState& state : status->processes()) {
        if (state.process() == "orchestrator") running = state.status().running_calls();
      }
      std::cerr << "withyctl: warning: withy is running on this board (" << Counted(running, "call")
                << " now): its calls would disturb the times. Stop it first (`systemctl stop "
                   "withy.target` or `./withy down`), or make sure that nobody calls.\n";
    }
  }
  if (board.load_average > kBusyLoad) {
    std::cerr << absl::StrCat("withyctl: warning: the load average is ", board.load_average,
                              ": another program is computing, and the times will be too long.\n");
  }
}

// The existing record with the points of this run.
v1::Calibration Begin(const Run& run, const std::string& path, const v1::CalibrationKey& key,
                      const std::vector<v1::CalibrationPoint>& planned) {
  v1::Calibration record;
  record.set_format(engine::kCalibrationFormat);
  *record.mutable_key() = key;
  record.mutable_points()->Assign(planned.begin(), planned.end());
  if (run.force) return record;
  const auto old = engine::ReadCalibration(path);
  if (!old.ok()) {
    if (!absl::IsNotFound(old.status()))
      std::cerr << "withyctl: measuring again: " << old.status().message() << "\n";
    return record;
  }
  if (const std::string different = engine::KeyDifference(old->key(), key); !different.empty()) {
    std::cerr << "withyctl: measuring again: " << path << " was made with " << different << "\n";
    return record;
  }
  const auto points = engine::MergeSamples(planned, *old);
  record.mutable_points()->Assign(points.begin(), points.end());
  *record.mutable_kv_errors() = old->kv_errors();
  record.set_load_average(old->load_average());
  record.set_measured_unix_s(old->measured_unix_s());
  record.set_complete(old->complete() &&
                      std::all_of(points.begin(), points.end(), [](const auto& point) {
                        return !point.sample_us().empty() || !point.left_out().empty();
                      }));
  return record;
}

absl::Status Interrupted(const CalibrationResult& result) {
  return absl::CancelledError(absl::StrCat("interrupted; the samples so far are in ", result.path,
                                           ", and the same command continues from there"));
}

// Takes the samples that `result` lacks.
absl::Status Measure(
    const Run& run,
    const std::function<absl::StatusOr<double>(const v1::CalibrationPoint&)>& sample,
    CalibrationResult* result) {
  v1::Calibration& record = result->record;
  record.set_load_average(std::max(record.load_average(), run.board.load_average));
  result->measured_now = true;
  ProgressBar bar(Clock::Real());
  const CalibrationHooks hooks{
      .sample = sample,
      .save = [&](const v1::Calibration& r) { return engine::WriteCalibration(r, result->path); },
      .progress = [&](double done, std::string_view what) { bar.Update(done, what); }};
  const absl::Status status = RunCalibration(run.options, hooks, Clock::Real(), &record);
  return absl::IsCancelled(status) ? Interrupted(*result) : status;
}

// Takes the samples of the model's times that `result` lacks.
absl::Status MeasureModel(const Run& run, engine::Model& model, int32_t window,
                          const std::vector<v1::CalibrationPoint>& planned,
                          CalibrationResult* result) {
  engine::Calibrator calibrator(model, Clock::Real(), window);
  const auto sample = [&](const v1::CalibrationPoint& point) {
    return calibrator.Sample(FromWire(point), &StopRequested());
  };
  // Brings weights and activations into memory before the first sample that counts.
  const engine::TimedPoint warm_up{.kind = engine::TimedKind::kPrefill,
                                   .level_percent = model.info().levels.back().percent,
                                   .rows = static_cast<int32_t>(planned.front().rows())};
  const absl::Status warm = calibrator.Sample(warm_up, &StopRequested()).status();
  if (absl::IsCancelled(warm)) return absl::CancelledError("interrupted before the first sample");
  WITHY_RETURN_IF_ERROR(warm);
  return Measure(run, sample, result);
}

// Measures the errors of KV formats, and saves them. A model whose window is too short for it goes
// without.
absl::Status MeasureKv(const engine::ServedModel& served, CalibrationResult* result) {
  std::vector<int32_t> tokens = served.bundle.tokenizer->Encode(engine::KvErrorText());
  if (tokens.size() > static_cast<size_t>(served.window)) {
    tokens.resize(static_cast<size_t>(served.window));
  }
  if (tokens.size() < engine::kLeastKvErrorTokens) return absl::OkStatus();
  result->measured_now = true;
  ProgressBar bar(Clock::Real());
  const auto errors = engine::MeasureKvErrors(
      *served.bundle.model, tokens, &StopRequested(),
      [&](double done) { bar.Update(done, "predictions over KV of 4 and 2 bits"); });
  if (absl::IsCancelled(errors.status())) return Interrupted(*result);
  WITHY_RETURN_IF_ERROR(errors.status());
  engine::SetKvErrors(*errors, &result->record);
  return engine::WriteCalibration(result->record, result->path);
}

absl::StatusOr<CalibrationResult> CalibrateModel(const Run& run, const v1::ModelConfig& config,
                                                 const std::string& state_dir) {
  engine::ServedModelOptions options = engine::OptionsFromWire(config, state_dir);
  std::unique_ptr<engine::ServedModel> served;
  {
    ProgressBar bar(Clock::Real());
    options.model.progress = [&](double done, std::string_view what) { bar.Update(done, what); };
    WITHY_ASSIGN_OR_RETURN(served, engine::OpenServedModel(options));
  }
  engine::Model& model = *served->bundle.model;
  std::vector<v1::CalibrationPoint> planned;
  for (const engine::TimedPoint& point : engine::PlanTimes(model.info(), served->window)) {
    planned.push_back(ToWire(point));
  }
  CalibrationResult result;
  result.name = model.info().name;
  result.path = engine::CalibrationPath(config.path(), engine::PackedDir(state_dir));
  const v1::CalibrationKey key =
      engine::MakeCalibrationKey(model.info().id, model.target(), model.threads(), run.board,
                                 model.weight_stats().budget_bytes);
  result.record = Begin(run, result.path, key, planned);
  if (!result.record.complete()) {
    WITHY_RETURN_IF_ERROR(MeasureModel(run, model, served->window, planned, &result));
  }
  if (result.record.kv_errors().empty()) {
    WITHY_RETURN_IF_ERROR(MeasureKv(*served, &result));
  }
  return result;
}

absl::StatusOr<CalibrationResult> CalibrateTlm(const Run& run, const std::string& path,
                                               const v1::Config& config) {
  engine::TlmOptions options;
  options.threads = static_cast<int>(config.orchestrator().tlm_threads());
  options.target = config.model().kernel_target();
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Tlm> tlm, engine::Tlm::Open(path, options));
  WITHY_ASSIGN_OR_RETURN(const v1::CalibrationKey key,
                         engine::MakeTlmKey(path, options.target, options.threads, run.board));
  std::vector<v1::CalibrationPoint> planned;
  for (const uint32_t bytes : kReadBytes) {
    v1::CalibrationPoint& point = planned.emplace_back();
    point.set_kind(v1::CALIBRATION_KIND_READ);
    point.set_text_bytes(bytes);
  }
  CalibrationResult result;
  result.name = path;
  result.path = engine::CalibrationPath(path, engine::PackedDir(config.state_dir()));
  result.record = Begin(run, result.path, key, planned);
  if (result.record.complete()) return result;
  const auto sample = [&](const v1::CalibrationPoint& point) -> absl::StatusOr<double> {
    if (StopRequested()) return absl::CancelledError("interrupted");
    std::string text;
    while (text.size() < point.text_bytes()) text += "a word of the probe and ";
    text.resize(point.text_bytes());
    engine::Rest();
    const int64_t started = Clock::Real().SteadyNanos();
    WITHY_RETURN_IF_ERROR(tlm->Read(text, {}).status());
    return static_cast<double>(Clock::Real().SteadyNanos() - started) / 1e3;
  };
  WITHY_RETURN_IF_ERROR(sample(planned.front()).status());  // warms up
  WITHY_RETURN_IF_ERROR(Measure(run, sample, &result));
  return result;
}

// Path of the TLM; empty: there is none.
std::string TlmPath(const Args& args, const v1::Config& config) {
  std::string path = args.Get("tlm", config.orchestrator().tlm_path());
  if (path.empty()) path = DefaultTlmPath(config.model().path());
  return path == "off" ? "" : path;
}

absl::StatusOr<Run> RunFromArgs(const Args& args) {
  Run run;
  WITHY_ASSIGN_OR_RETURN(const auto rounds, args.Integer("rounds", 1, 1000));
  WITHY_ASSIGN_OR_RETURN(const auto seconds, args.Number("point-seconds"));
  run.options.rounds = static_cast<int>(rounds.value_or(run.options.rounds));
  run.options.point_seconds = seconds.value_or(run.options.point_seconds);
  if (!(run.options.point_seconds > 0 && run.options.point_seconds <= 3600)) {
    return absl::InvalidArgumentError(absl::StrCat("--point-seconds is ", args.Get("point-seconds"),
                                                   ": it must be above 0 and at most 3600"));
  }
  run.force = args.Has("force");
  run.board = ReadBoard();
  return run;
}

absl::StatusOr<CalibrationReport> Calibrate(const Args& args, const Run& run) {
  WITHY_ASSIGN_OR_RETURN(v1::Config config, LoadConfig(args.Get("config")));
  if (args.Has("model")) config.mutable_model()->set_path(args.Get("model"));
  const std::string tlm = TlmPath(args, config);
  if (std::error_code error; !tlm.empty() && !std::filesystem::is_regular_file(tlm, error)) {
    return absl::NotFoundError(
        absl::StrCat("the TLM ", tlm, " does not exist: give its file, or --tlm off"));
  }
  const bool is_draft = config.model().path() == config.draft().path();
  const v1::ModelConfig& model = is_draft ? config.draft() : config.model();
  WarnIfBusy(args, run.board);
  StopOnSignals();
  CalibrationReport report;
  if (args.Has("cupti")) {
    WITHY_ASSIGN_OR_RETURN(const auto cupti, engine::cuda::Cupti::Open());
    WITHY_ASSIGN_OR_RETURN(
        report.stamps,
        MeasureStamps(model.path(), engine::OptionsFromWire(model, config.state_dir()).model,
                      *cupti, &StopRequested()));
  }
  WITHY_ASSIGN_OR_RETURN(report.model, CalibrateModel(run, model, config.state_dir()));
  if (!tlm.empty()) {
    WITHY_ASSIGN_OR_RETURN(report.tlm, CalibrateTlm(run, tlm, config));
  }
  return report;
}

int RunCalibrate(const Args& args) {
  const auto run = RunFromArgs(args);
  if (!run.ok()) return FailUsage(ToStd(run.status().message()));
  const auto report = Calibrate(args, *run);
  if (!report.ok()) return Fail(report.status());
  std::cout << (args.Has("json") ? ReportJson(*report) + "\n"
                                 : ReportText(*report, Clock::Real().UnixNanos()));
  return kExitOk;
}

}  // namespace

std::vector<Command> CalibrateCommands() {
  return {
      {"calibrate", "",
       "measure this board with the served model and its TLM (takes minutes; an interrupted run "
       "continues where it stopped)",
       WithConnection(
           {{"model", "FILE", "GGUF or packed file (default: the configuration's model.path)"},
            {"tlm", "FILE", "TLM (default: the configuration's or the one beside the model)"},
            {"force", "", "measure again from the start"},
            {"rounds", "N", "samples per point (default 5)"},
            {"point-seconds", "S",
             "maximum seconds for the samples of one point; longer points are skipped "
             "(default 10)"},
            {"cupti", "",
             "model on a GPU: first lay CUPTI's times of its kernels beside those that the service "
             "records"},
            {"json", "", "print JSON"}}),
       RunCalibrate}};
}

}  // namespace withy::cli
