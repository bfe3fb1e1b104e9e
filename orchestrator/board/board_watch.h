// The board's energy and temperatures, and what follows from them for calls: what each is charged
// with, what an energy budget is worth in time, and how far the model steps down before a hot board
// slows itself down. Neighbours: base/sensors/energy_meter.h, base/sensors/gpu_sensors.h and
// base/sensors/thermal_zones.h read, policy/board/energy_ledger.h and policy/board/thermal_limit.h
// decide, prepare.cc and generate.cc ask.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/sensors/energy_meter.h"
#include "base/sensors/gpu_sensors.h"
#include "base/sensors/nvml.h"
#include "base/sensors/thermal_zones.h"
#include "policy/board/energy_ledger.h"
#include "policy/board/thermal_limit.h"
#include "telemetry/recorder.h"

namespace withy::orchestrator {

// Thread-safe. Has a thread where the board has a meter or thermal zones.
class BoardWatch {
 public:
  // `root` is prepended to /sys. `limits_heat`: the model steps down on a hot board. `gpus`: a
  // model may be on a GPU, and NVIDIA's library is looked for; it keeps the card awake.
  BoardWatch(const std::string& root, bool limits_heat, bool gpus, const Clock& clock,
             telemetry::Recorder& recorder);
  ~BoardWatch();
  BoardWatch(const BoardWatch&) = delete;
  BoardWatch& operator=(const BoardWatch&) = delete;

  // A call is given to a worker, or has ended there. `yields`: it computes only while no other
  // does.
  void CallBegins(uint64_t call, bool yields = false);
  // Millijoules that the call is charged with; 0 without a meter.
  double CallEnds(uint64_t call);

  // Milliseconds for which the board can compute with so much energy. Errors: UNIMPLEMENTED without
  // a meter; UNAVAILABLE while its power is not known yet.
  absl::StatusOr<double> MillisFor(double millijoules);

  // What the heat means for a call that may have any of `levels` (per cent, ascending).
  struct Heat {
    uint32_t most_level_percent = 100;
    std::string why = {};  // a sentence; empty: the whole model may run
  };
  Heat HeatFor(const std::vector<uint32_t>& levels) const;

  // Reads meter and temperatures now; the thread does so, too.
  void Look();

 private:
  void Run();
  // Returns when.
  int64_t Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeGpuGauges(telemetry::Recorder& recorder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets the gauges of GPUs; adds what may slow the board down to `readings`.
  void LookAtGpus(std::vector<ThermalReading>* readings) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookAtHeat() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  const bool limits_heat_;
  const ThermalZones zones_;
  const std::shared_ptr<const Nvml> nvml_;  // null: none; sensors and meter share it
  const GpuSensors gpus_;
  mutable absl::Mutex mutex_;
  const std::unique_ptr<EnergyMeter> meter_ ABSL_PT_GUARDED_BY(mutex_);  // null: none
  double joules_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t heat_ns_ ABSL_GUARDED_BY(mutex_) = 0;  // when it was looked at; 0: never
  policy::EnergyLedger ledger_ ABSL_GUARDED_BY(mutex_);
  policy::ThermalLimit limit_ ABSL_GUARDED_BY(mutex_);
  ThermalReading hottest_ ABSL_GUARDED_BY(mutex_);  // with the least room
  struct GpuGauges {                                // null: its driver does not tell it
    telemetry::Gauge* celsius;
    telemetry::Gauge* watts;
    telemetry::Gauge* clock_hz;
    telemetry::Gauge* busy;
    telemetry::Gauge* memory_bytes;
  };
  std::vector<GpuGauges> gpu_gauges_ ABSL_GUARDED_BY(mutex_);  // as GpuSensors::Read
  telemetry::Gauge* const power_;                              // null: no meter
  telemetry::Counter* const energy_;                           // null: no meter
  telemetry::Gauge* const temperature_;                        // null: no sensor
  telemetry::Gauge& steps_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace withy::orchestrator
