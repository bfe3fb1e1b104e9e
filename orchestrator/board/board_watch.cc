#include "orchestrator/board/board_watch.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace withy::orchestrator {
namespace {

// A meter of power is sampled so often while calls run; a reading takes 20 us to 2 ms (I2C).
constexpr absl::Duration kBusyInterval = absl::Milliseconds(100);
constexpr absl::Duration kIdleInterval = absl::Seconds(1);
constexpr int64_t kHeatIntervalNs = kNanosPerSecond;

int64_t Millionths(double value) { return static_cast<int64_t>(std::llround(value * 1e6)); }

}  // namespace

BoardWatch::BoardWatch(const std::string& root, bool limits_heat, bool gpus, const Clock& clock,
                       telemetry::Recorder& recorder)
    : clock_(clock),
      limits_heat_(limits_heat),
      zones_(ThermalZones::Find(root)),
      nvml_(gpus ? Nvml::Open(root) : nullptr),
      gpus_(gpus ? GpuSensors::Find(root, nvml_) : GpuSensors()),
      meter_(EnergyMeter::Find(root, nvml_)),
      power_(meter_ == nullptr ? nullptr
                               : &recorder.gauge({.name = "withy_board_power_watts",
                                                  .help = "Power of the board.",
                                                  .unit = telemetry::Unit::kMillionths})),
      energy_(
          meter_ == nullptr
              ? nullptr
              : &recorder.counter({.name = "withy_board_energy_joules_total",
                                   .help = "Energy of the board since the orchestrator started.",
                                   .unit = telemetry::Unit::kMillionths})),
      temperature_(
          zones_.empty() && gpus_.Read().empty()
              ? nullptr
              : &recorder.gauge({.name = "withy_board_temperature_celsius",
                                 .help = "Temperature of the zone that is nearest to its trip "
                                         "point.",
                                 .unit = telemetry::Unit::kMillionths})),
      steps_(
          recorder.gauge({.name = "withy_thermal_steps",
                          .help = "Levels that the model stays below the whole one for heat."})) {
  recorder
      .gauge({.name = "withy_board_power_metered",
              .help = "Whether a meter measures the board's power (1)."})
      .Set(power_ == nullptr ? 0 : 1);
  {
    absl::MutexLock lock(&mutex_);
    MakeGpuGauges(recorder);
  }
  Look();
  bool metered = false;
  bool watched = false;
  {
    absl::MutexLock lock(&mutex_);
    watched = !zones_.empty() || !gpu_gauges_.empty();
    if (!gpu_gauges_.empty()) {
      spdlog::info("gauges of {} GPUs are read from {}", gpu_gauges_.size(), gpus_.name());
    }
    metered = meter_ != nullptr;
    if (metered) spdlog::info("energy is read from {}", meter_->name());
  }
  if (metered || watched) thread_ = std::thread([this] { Run(); });
}

BoardWatch::~BoardWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void BoardWatch::Run() {
  while (true) {
    Look();
    absl::MutexLock lock(&mutex_);
    const absl::Duration interval = ledger_.idle() ? kIdleInterval : kBusyInterval;
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), interval)) return;
  }
}

void BoardWatch::Look() {
  absl::MutexLock lock(&mutex_);
  const int64_t now = Read();
  ledger_.Read(joules_, now);
  if (power_ != nullptr) power_->Set(Millionths(ledger_.watts()));
  LookAtHeat();
}

int64_t BoardWatch::Read() {
  const int64_t now = clock_.SteadyNanos();
  if (meter_ == nullptr) return now;
  const double joules = meter_->Joules(now);
  energy_->Add(static_cast<uint64_t>(Millionths(std::max(0.0, joules - joules_))));
  joules_ = std::max(joules, joules_);
  return now;
}

void BoardWatch::MakeGpuGauges(telemetry::Recorder& recorder) {
  for (const GpuReading& gpu : gpus_.Read()) {
    const auto gauge = [&](const std::optional<double>& read, std::string_view name,
                           std::string_view help, telemetry::Unit unit) -> telemetry::Gauge* {
      if (!read.has_value()) return nullptr;  // its driver does not tell it
      return &recorder.gauge(
          {.name = name, .help = help, .unit = unit, .label_key = "gpu", .label_value = gpu.gpu});
    };
    using enum telemetry::Unit;
    gpu_gauges_.push_back(
        {.celsius = gauge(gpu.celsius, "withy_gpu_temperature_celsius", "Temperature of a GPU.",
                          kMillionths),
         .watts = gauge(gpu.watts, "withy_gpu_power_watts", "Power of a GPU.", kMillionths),
         .clock_hz = gauge(gpu.clock_hz, "withy_gpu_clock_hertz",
                           "Clock of a GPU's multiprocessors.", kOne),
         .busy = gauge(gpu.busy, "withy_gpu_busy_ratio", "Share of time in which a GPU computes.",
                       kMillionths),
         .memory_bytes = gauge(gpu.memory_used_bytes, "withy_gpu_memory_used_bytes",
                               "Memory of a GPU in use, by all programs.", kOne)});
  }
}

void BoardWatch::LookAtGpus(std::vector<ThermalReading>* readings) {
  if (gpu_gauges_.empty()) return;
  const std::vector<GpuReading> gpus = gpus_.Read();
  for (size_t i = 0; i < gpus.size(); ++i) {
    const GpuReading& gpu = gpus[i];
    const GpuGauges& gauges = gpu_gauges_[i];
    const auto set = [](telemetry::Gauge* gauge, const std::optional<double>& value, double unit) {
      if (gauge != nullptr && value.has_value()) gauge->Set(std::llround(*value * unit));
    };
    set(gauges.celsius, gpu.celsius, 1e6);
    set(gauges.watts, gpu.watts, 1e6);
    set(gauges.clock_hz, gpu.clock_hz, 1);
    set(gauges.busy, gpu.busy, 1e6);
    set(gauges.memory_bytes, gpu.memory_used_bytes, 1);
    // A zone of /sys tells for itself.
    if (nvml_ != nullptr && gpu.celsius.has_value()) {
      ThermalReading reading{.zone = absl::StrCat("gpu", gpu.gpu), .celsius = *gpu.celsius};
      if (gpu.throttles_at.has_value()) reading.throttles_at = *gpu.throttles_at;
      readings->push_back(std::move(reading));
    }
  }
}

void BoardWatch::LookAtHeat() {
  const int64_t now = clock_.SteadyNanos();
  if (heat_ns_ != 0 && now - heat_ns_ < kHeatIntervalNs) return;
  heat_ns_ = now;
  std::vector<ThermalReading> readings = zones_.Read();
  LookAtGpus(&readings);
  if (readings.empty()) return;
  const auto room = [](const ThermalReading& reading) {
    return reading.throttles_at - reading.celsius;
  };
  hottest_ = *std::min_element(
      readings.begin(), readings.end(), [&](const ThermalReading& a, const ThermalReading& b) {
        return std::pair(room(a), -a.celsius) < std::pair(room(b), -b.celsius);
      });
  if (temperature_ != nullptr) temperature_->Set(Millionths(hottest_.celsius));
  if (!limits_heat_) return;
  const uint32_t before = limit_.steps();
  limit_.Observe(room(hottest_), now);
  steps_.Set(limit_.steps());
  if (limit_.steps() != before) {
    spdlog::log(limit_.steps() > before ? spdlog::level::warn : spdlog::level::info,
                "{} is at {:.1f} C and slows down at {:.1f} C: the model stays {} levels below the "
                "whole one",
                hottest_.zone, hottest_.celsius, hottest_.throttles_at, limit_.steps());
  }
}

void BoardWatch::CallBegins(uint64_t call, bool yields) {
  absl::MutexLock lock(&mutex_);
  if (meter_ == nullptr) return;
  const int64_t now = Read();
  ledger_.Begin(call, joules_, now, yields);
}

double BoardWatch::CallEnds(uint64_t call) {
  absl::MutexLock lock(&mutex_);
  if (meter_ == nullptr) return 0;
  const int64_t now = Read();
  return 1e3 * ledger_.End(call, joules_, now);
}

absl::StatusOr<double> BoardWatch::MillisFor(double millijoules) {
  absl::MutexLock lock(&mutex_);
  if (meter_ == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        "slo.energy_mj is ", millijoules,
        ": this board has no energy meter that withy can read (powercap, INA3221, a "
        "battery that discharges, or NVML); ask for a time (ttft_ms, tpot_ms) instead, or "
        "let the orchestrator's user read the meter (docs/operations.md)"));
  }
  if (ledger_.busy_watts() <= 0) {
    const int64_t now = Read();
    ledger_.Read(joules_, now);
  }
  if (ledger_.busy_watts() <= 0) {
    return absl::UnavailableError(
        absl::StrCat("slo.energy_mj is ", millijoules, ": ", meter_->name(),
                     " has not told the board's power yet; retry in a second"));
  }
  return millijoules / ledger_.busy_watts();
}

BoardWatch::Heat BoardWatch::HeatFor(const std::vector<uint32_t>& levels) const {
  absl::MutexLock lock(&mutex_);
  const uint32_t most = limit_.MostLevel(levels);
  if (most == levels.back()) return {.most_level_percent = most};
  return {.most_level_percent = most,
          .why = absl::StrFormat(
              "The board is hot (%s at %.1f C slows down at %.1f C): the model is held to %u %%.",
              hottest_.zone, hottest_.celsius, hottest_.throttles_at, most)};
}

}  // namespace withy::orchestrator
