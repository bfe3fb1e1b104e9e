#include "engine/session/cost_probe.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/status.h"
#include "engine/model/scratch_kv.h"

namespace withy::engine {
namespace {

constexpr int32_t kPrefillRows = 64;
constexpr int32_t kManyRows = 4;
// Each kind of step runs at least twice, since the first one also warms caches and page tables, and
// then until it has had its time: more rounds find a quiet moment on a busy board.
constexpr int kLeastRounds = 2;
constexpr int kMostRounds = 24;
constexpr int64_t kTimeForEach = 120 * kNanosPerMilli;

class Probe {
 public:
  Probe(Model& model, Clock& clock)
      : model_(model),
        clock_(clock),
        rows_per_context_(std::min(kPrefillRows, model.info().context_length - 1)),
        logits_(static_cast<size_t>(kManyRows) * static_cast<size_t>(model.info().vocab_size)) {
    for (int32_t i = 0; i < kManyRows; ++i) {
      kv_.emplace_back(model.info(), rows_per_context_ + 1);
    }
  }

  // Fastest time in microseconds a row of a prefill.
  absl::StatusOr<double> Prefill() {
    std::vector<Row> rows;
    for (int32_t i = 0; i < rows_per_context_; ++i) {
      rows.push_back({.token = i % model_.info().vocab_size,
                      .position = i,
                      .slot = i,
                      .want_logits = i + 1 == rows_per_context_,
                      .ancestor_slots = {}});
    }
    WITHY_ASSIGN_OR_RETURN(const double us, Fastest(rows, 1));
    return us / rows_per_context_;
  }

  // Fastest time in microseconds of a step with one row of each of `contexts` contexts.
  absl::StatusOr<double> Decode(int32_t contexts) {
    std::vector<Row> rows;
    const int32_t position = contexts == 1 ? rows_per_context_ : 0;
    for (int32_t i = 0; i < contexts; ++i) {
      rows.push_back({.position = position,
                      .slot = position,
                      .context = i,
                      .want_logits = true,
                      .ancestor_slots = {}});
    }
    return Fastest(rows, contexts);
  }

 private:
  absl::StatusOr<double> Fastest(const std::vector<Row>& rows, int32_t contexts) {
    std::vector<ContextView> views;
    for (int32_t i = 0; i < contexts; ++i) {
      views.push_back(kv_[static_cast<size_t>(i)].View());
    }
    int64_t fastest = std::numeric_limits<int64_t>::max();
    const int64_t first = clock_.SteadyNanos();
    for (int round = 0; round < kMostRounds; ++round) {
      const int64_t start = clock_.SteadyNanos();
      if (round >= kLeastRounds && start - first > kTimeForEach) break;
      WITHY_RETURN_IF_ERROR(model_.Forward({.rows = rows, .contexts = views}, logits_.data()));
      fastest = std::min(fastest, clock_.SteadyNanos() - start);
    }
    return static_cast<double>(fastest) / 1e3;
  }

  Model& model_;
  Clock& clock_;
  const int32_t rows_per_context_;
  std::vector<ScratchKv> kv_;
  std::vector<float> logits_;
};

}  // namespace

absl::StatusOr<StepCost> MeasureCost(Model& model, Clock& clock) {
  Probe probe(model, clock);
  StepCost cost;
  WITHY_ASSIGN_OR_RETURN(cost.prefill_us_per_token, probe.Prefill());
  WITHY_ASSIGN_OR_RETURN(cost.decode_us, probe.Decode(1));
  WITHY_ASSIGN_OR_RETURN(const double many_us, probe.Decode(kManyRows));
  cost.decode_us_per_extra = std::max(0.0, (many_us - cost.decode_us) / (kManyRows - 1));
  return cost;
}

}  // namespace withy::engine
