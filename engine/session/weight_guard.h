// Keeps watch over the packed file of a served model: checks it in idle time, packs a damaged one
// again, and says when the model in use can no longer be trusted. Neighbours: weights/scrubber.h
// reads; model_worker/ and draft_worker/ have one each.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/model/model.h"
#include "engine/weights/scrubber.h"
#include "telemetry/recorder.h"

namespace withy::engine {

struct WeightGuardOptions {
  std::string model_path;  // as it was opened
  std::string cache_dir;
  uint64_t bytes_per_second = 0;  // 0: nothing is checked
  absl::Duration interval;
  // Called from the guard's thread.
  std::function<bool()> busy;  // whether calls run
  // Damage that no answer is computed with, with what follows from it: for the log.
  std::function<void(const absl::Status&)> on_harmless;
  // Answers may be wrong from now on, and were perhaps before: the model must be opened anew, which
  // packs it again, or says what is missing. Once.
  std::function<void(const absl::Status&)> on_unusable;
};

// Counts damaged packed files of a process, also those that its start found.
class PackedFileMetrics {
 public:
  explicit PackedFileMetrics(telemetry::Recorder& recorder);
  void Scrubbed(uint64_t bytes) { scrubbed_.Add(bytes); }
  void Damaged() { damaged_.Add(); }

 private:
  telemetry::Counter& scrubbed_;
  telemetry::Counter& damaged_;
};

// Both references outlive it. Destroyed before what its callbacks use.
class WeightGuard {
 public:
  WeightGuard(const Model& model, WeightGuardOptions options, PackedFileMetrics& metrics);
  // Ends what is under way.
  ~WeightGuard();
  WeightGuard(const WeightGuard&) = delete;
  WeightGuard& operator=(const WeightGuard&) = delete;

  // UNAVAILABLE while weights that are read from the file may differ from those that were checked:
  // it was written to, and is being checked. Any thread.
  absl::Status Trust();

 private:
  bool OnDamage(const absl::Status& damage);
  absl::Status PackAgain();
  bool Suspect();

  const Model& model_;
  const WeightGuardOptions options_;
  PackedFileMetrics& metrics_;
  std::atomic<bool> ending_{false};
  uint64_t bad_reads_ = 0;              // of streamed weights, as seen so far
  std::unique_ptr<Scrubber> scrubber_;  // null: nothing is checked
};

}  // namespace withy::engine
