// Takes the times that a calibration consists of: which ones, and one sample of each. Neighbours:
// `withyctl calibrate` goes round them and keeps the samples; level_times.h is what comes of them.
// Keeps no record, judges nothing.
//
//   for (const TimedPoint& point : PlanTimes(model.info(), window))
//     WITHY_ASSIGN_OR_RETURN(const double us, calibrator.Sample(point, nullptr));
//
// Source: ElastiLM section 4 (one-shot profiling of prefill and decode for every sub-model); ours
// adds depth, batch, switching and coming back to a context.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"

namespace withy::engine {

enum class TimedKind {
  kPrefill,  // of `rows` tokens into an empty context, in pieces as a worker cuts them, after a
             // rest
  kDecode,   // a step of `rows` calls with contexts of `depth` tokens
  kSwitch,   // what the first step takes more than the next, after a step of another level
  kResume,   // first step of a context of `depth` tokens after another's
};

struct TimedPoint {
  TimedKind kind = TimedKind::kPrefill;
  int32_t level_percent = 100;
  int32_t rows = 1;
  int32_t depth = 0;
  friend bool operator==(const TimedPoint&, const TimedPoint&) = default;
};

// Between two of them a prompt's time is taken to be linear. Few tokens are bound by reading the
// weights, more by computing, many by attention, so it is not over more than an octave.
inline constexpr std::array<int32_t, 7> kPrefillTokens = {16, 32, 64, 128, 256, 512, 1024};

// Every level, lowest first: prefill of kPrefillTokens, decode of 1, 2 and 4 rows at depths 0, 512
// and 2048, switching; of the full model also resuming at those depths. Lengths and depths end at
// `window` tokens. Shorter prefills come before longer ones of the same level.
std::vector<TimedPoint> PlanTimes(const ModelInfo& info, int32_t window);

// Lets the board idle for 50 ms. Calls come after pauses, and cores, caches and memory that have
// idled are slower at first: by a third over a prompt on some boards.
void Rest();

struct CalibratorLimits {
  int64_t kv_bytes = int64_t{512} << 20;          // of all contexts together
  int64_t fill_ns = int64_t{60} * 1'000'000'000;  // for bringing a context to a depth
  // A sample is the median of a few times when one is short.
  int64_t sample_ns = 20 * kNanosPerMilli;
  std::function<void()> rest = Rest;  // before each prefill
};

// Holds private KV. One thread; model and clock are borrowed.
class Calibrator {
 public:
  static constexpr int32_t kMostContexts = 4;

  Calibrator(Model& model, const Clock& clock, int32_t window, const CalibratorLimits& limits = {});

  // Microseconds; of kSwitch a difference, which may be negative. The first samples also warm up
  // caches and page tables: take a round that is not kept. Errors: RESOURCE_EXHAUSTED (KV or
  // filling a context would go beyond the limits: the point cannot be measured here), CANCELLED
  // (`cancel` became true), those of Model::Forward.
  absl::StatusOr<double> Sample(const TimedPoint& point, const std::atomic<bool>* cancel);

 private:
  absl::StatusOr<double> Once(const TimedPoint& point);
  absl::StatusOr<double> Prefill(int32_t level, int32_t rows);
  absl::StatusOr<double> Step(int32_t level, int32_t first_context, int32_t rows, int32_t depth);
  absl::Status PrepareContexts(int32_t count, int32_t depth);
  absl::Status Fill(int32_t depth);
  void CopyFirstContext(size_t to, int32_t depth);
  absl::StatusOr<double> Timed(const Batch& batch);

  Model& model_;
  const Clock& clock_;
  const CalibratorLimits limits_;
  const std::vector<TimedPoint> plan_;
  int32_t longest_prefill_ = 0;
  int32_t deepest_ = 0;
  std::vector<float> logits_;
  std::unique_ptr<ScratchKv> prompt_;                 // of prefills
  std::vector<std::unique_ptr<ScratchKv>> contexts_;  // of decode steps
  std::vector<int32_t> filled_;                       // tokens that each of contexts_ holds
  const std::atomic<bool>* cancel_ = nullptr;
};

}  // namespace withy::engine
