// Measures the times of a calibration: plans the points and takes one sample of a point.
// Neighbours: `withyctl calibrate` takes the samples in rounds and stores them; level_times.h holds
// the results. Stores and judges nothing.
//
//   for (const TimedPoint& point : PlanTimes(model.info(), window))
//     WITHY_ASSIGN_OR_RETURN(const double us, calibrator.Sample(point, nullptr));
//
// Source: ElastiLM section 4 (one-shot profiling of prefill and decode for every sub-model); ours
// adds depth, batch, level switches and resuming a context.
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
  kPrefill,  // `rows` tokens into an empty context, in a worker's pieces, after a rest
  kDecode,   // one step of `rows` calls with contexts of `depth` tokens
  kSwitch,   // first step after a step at another level, minus the step that follows it
  kResume,   // first step of a context of `depth` tokens after a step of another context
  kTree,     // one step of one call with a token tree of `rows` rows and an empty context
};

struct TimedPoint {
  TimedKind kind = TimedKind::kPrefill;
  int32_t level_percent = 100;
  int32_t rows = 1;
  int32_t depth = 0;
  friend bool operator==(const TimedPoint&, const TimedPoint&) = default;
};

// Prefill times are interpolated linearly between these lengths. Few tokens are bound by reading
// weights, more by computing, many by attention, so no interval spans more than an octave.
inline constexpr std::array<int32_t, 7> kPrefillTokens = {16, 32, 64, 128, 256, 512, 1024};

// Rows of a token tree; a single row is a decode step.
inline constexpr std::array<int32_t, 8> kTreeRows = {2, 3, 4, 6, 8, 12, 16, 32};

// The points of every level, lowest first: prefill of kPrefillTokens; decode of 1, 2 and 4 rows at
// depths 0, 512 and 2048; switching; for the full model also resuming
// at those depths, and token trees of kTreeRows. Lengths and
// depths are limited to `window` tokens. Within a level shorter prefills come first.
std::vector<TimedPoint> PlanTimes(const ModelInfo& info, int32_t window);

// Lets the board idle for 50 ms. Real calls arrive after pauses; cores, caches and memory that have
// idled are slower at first, on some boards by a third over a whole prompt.
void Rest();

struct CalibratorLimits {
  int64_t kv_bytes = int64_t{512} << 20;          // KV of all contexts together
  int64_t fill_ns = int64_t{60} * 1'000'000'000;  // time to fill a context to a depth
  // A short measurement is repeated within this time; the sample is the median.
  int64_t sample_ns = 20 * kNanosPerMilli;
  std::function<void()> rest = Rest;  // called before each prefill
};

// Owns private KV. Single-threaded; model and clock are borrowed.
class Calibrator {
 public:
  static constexpr int32_t kMaxContexts = 4;

  Calibrator(Model& model, const Clock& clock, int32_t window, const CalibratorLimits& limits = {});

  // Returns microseconds; for kSwitch a difference, which may be negative. The first samples also
  // warm up caches and page tables: discard one round. Errors: RESOURCE_EXHAUSTED (KV or the time
  // to fill a context exceeds the limits: the point cannot be measured here), CANCELLED (`cancel`
  // became true), those of Model::Forward.
  absl::StatusOr<double> Sample(const TimedPoint& point, const std::atomic<bool>* cancel);

 private:
  absl::StatusOr<double> Once(const TimedPoint& point);
  absl::StatusOr<double> Prefill(int32_t level, int32_t rows);
  absl::StatusOr<double> Step(int32_t level, int32_t first_context, int32_t rows, int32_t depth);
  absl::StatusOr<double> TreeStep(int32_t level, int32_t rows);
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
  std::unique_ptr<ScratchKv> prompt_;                 // for prefills
  std::vector<std::unique_ptr<ScratchKv>> contexts_;  // for decode steps
  std::vector<int32_t> filled_;                       // tokens in each of contexts_
  const std::atomic<bool>* cancel_ = nullptr;
};

}  // namespace withy::engine
