#include "engine/session/cost_probe.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "base/status.h"
#include "engine/model/scratch_kv.h"

namespace withy::engine {
namespace {

constexpr int32_t kPrefillRows = 64;
constexpr int32_t kManyRows = 4;
// Each kind of step runs at least twice, because the first run also warms caches and page tables,
// and then until its time is used up: more rounds find a quiet moment on a busy board.
constexpr int kMinRounds = 2;
constexpr int kMaxRounds = 24;
constexpr int64_t kTimeForEach = 120 * kNanosPerMilli;

// Rows of a prompt piece that is timed at two depths: as many as attention computes together.
constexpr int32_t kDeepRows = 16;
// Tokens of the deep context: far more than the shallow one has, and limited by this memory.
constexpr int32_t kMaxDepth = 2048;
constexpr int64_t kMaxKvBytes = int64_t{32} << 20;

int32_t DepthFor(const ModelInfo& info, int32_t shallow) {
  const int64_t chunk_bytes = static_cast<int64_t>(info.kv.block_bytes) * info.kv.layers;
  const int64_t fitting =
      kMaxKvBytes / std::max<int64_t>(chunk_bytes, 1) * info.kv.chunk_tokens - kDeepRows;
  const auto most = static_cast<int32_t>(std::min<int64_t>(fitting, kMaxDepth));
  return std::max(shallow, std::min(most, info.context_length - kDeepRows));
}

class Probe {
 public:
  Probe(Model& model, Clock& clock)
      : model_(model),
        clock_(clock),
        rows_per_context_(std::clamp(model.info().context_length - 1, 1, kPrefillRows)),
        depth_(DepthFor(model.info(), rows_per_context_)),
        logits_(static_cast<size_t>(kManyRows) * static_cast<size_t>(model.info().vocab_size)) {
    for (int32_t i = 0; i < kManyRows; ++i) {
      kv_.emplace_back(model.info(), i == 0 ? depth_ + kDeepRows : 1);
    }
  }

  // Fastest time per prefill row, in microseconds.
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

  // Fastest time of a step with one row of each of `contexts` contexts, in microseconds.
  absl::StatusOr<double> Decode(int32_t contexts) {
    std::vector<Row> rows;
    for (int32_t i = 0; i < contexts; ++i) {
      rows.push_back({.context = i, .want_logits = true, .ancestor_slots = {}});
    }
    return Fastest(rows, contexts);
  }

  // Prefill times of an empty context; `us_per_token`: the result of Prefill().
  absl::StatusOr<std::vector<PrefillTime>> Times(double us_per_token) {
    std::vector<PrefillTime> times;
    const bool fits = rows_per_context_ + kDeepRows <= model_.info().context_length;
    if (rows_per_context_ > kDeepRows && fits) {
      WITHY_ASSIGN_OR_RETURN(const double few_us, Shallow(/*level=*/-1, kDeepRows));
      times.push_back({kDeepRows, std::min(few_us, rows_per_context_ * us_per_token)});
    }
    for (const int32_t tokens : {rows_per_context_, 2 * rows_per_context_}) {
      times.push_back({tokens, tokens * us_per_token});
    }
    return times;
  }

  // Cost of the first context's depth at a level (-1: the full one). Call after Prefill(), whose KV
  // fills the context: its content does not affect a step's time.
  absl::StatusOr<DepthCost> Depth(int32_t level) {
    DepthCost cost;
    const int32_t more = depth_ - rows_per_context_;
    if (more <= 0) return cost;
    FillDeepContext();
    const auto slope = [&](int32_t rows) -> absl::StatusOr<double> {
      WITHY_ASSIGN_OR_RETURN(const double deep_us, Piece(level, depth_, rows));
      WITHY_ASSIGN_OR_RETURN(const double shallow_us, Shallow(level, rows));
      return std::max(0.0, (deep_us - shallow_us) / more / rows);
    };
    WITHY_ASSIGN_OR_RETURN(cost.decode_us, slope(1));
    WITHY_ASSIGN_OR_RETURN(cost.prefill_us, slope(kDeepRows));
    return cost;
  }

 private:
  // Fastest time of `rows` rows after those computed by Prefill(), in microseconds.
  absl::StatusOr<double> Shallow(int32_t level, int32_t rows) {
    if (level < 0 && rows == kDeepRows && few_us_ > 0) return few_us_;
    WITHY_ASSIGN_OR_RETURN(const double us, Piece(level, rows_per_context_, rows));
    if (level < 0 && rows == kDeepRows) few_us_ = us;
    return us;
  }

  // Fastest time of `count` rows after `depth` tokens of the first context, in microseconds.
  absl::StatusOr<double> Piece(int32_t level, int32_t depth, int32_t count) {
    std::vector<Row> rows;
    for (int32_t i = 0; i < count; ++i) {
      rows.push_back({.position = depth + i,
                      .slot = depth + i,
                      .level = level,
                      .want_logits = i + 1 == count,
                      .ancestor_slots = {}});
    }
    return Fastest(rows, 1);
  }

  void FillDeepContext() {
    const KvInfo& kv = model_.info().kv;
    const ContextView view = kv_[0].View();
    const auto whole = static_cast<size_t>(rows_per_context_ / kv.chunk_tokens * kv.layers);
    if (whole == 0) return;
    for (size_t i = whole; i < view.blocks.size(); ++i) {
      std::memcpy(view.memory.At(view.blocks[i]), view.memory.At(view.blocks[i % whole]),
                  kv.block_bytes);
    }
    kv_[0].Touch();
  }

  absl::StatusOr<double> Fastest(const std::vector<Row>& rows, int32_t contexts) {
    std::vector<ContextView> views;
    for (int32_t i = 0; i < contexts; ++i) {
      views.push_back(kv_[static_cast<size_t>(i)].View());
    }
    int64_t fastest = std::numeric_limits<int64_t>::max();
    const int64_t first = clock_.SteadyNanos();
    for (int round = 0; round < kMaxRounds; ++round) {
      const int64_t start = clock_.SteadyNanos();
      // For a long step the first round is as good as the next.
      const int least = fastest > kTimeForEach && warm_ ? 1 : kMinRounds;
      if (round >= least && start - first > kTimeForEach) break;
      WITHY_RETURN_IF_ERROR(model_.Forward({.rows = rows, .contexts = views}, logits_.data()));
      fastest = std::min(fastest, clock_.SteadyNanos() - start);
    }
    warm_ = true;
    return static_cast<double>(fastest) / 1e3;
  }

  Model& model_;
  Clock& clock_;
  const int32_t rows_per_context_;
  const int32_t
      depth_;  // of the first context; if equal to rows_per_context_, there is no deeper one
  std::vector<ScratchKv> kv_;
  std::vector<float> logits_;
  bool warm_ = false;  // the weights have been read once
  double few_us_ = 0;  // kDeepRows rows of the full model, shallow; 0 = not measured yet
};

}  // namespace

namespace {

// Lower limit of the depth cost relative to the other costs: a step reads a token's KV as fast as
// it reads weights, and prompt rows compute attention as fast as products. Halved, so that only
// noise is below it.
DepthCost LeastDepthCost(const ModelInfo& info, const StepCost& cost) {
  constexpr double kHalf = 0.5;
  const LevelInfo& full = info.levels.back();
  const double kv_bytes =
      static_cast<double>(info.kv.block_bytes) * info.kv.layers / info.kv.chunk_tokens;
  const double flops = 4.0 * info.layers * info.heads * info.head_dim;
  DepthCost least;
  if (full.weight_bytes > 0) {
    least.decode_us = kHalf * cost.decode_us * kv_bytes / static_cast<double>(full.weight_bytes);
  }
  if (full.flops_per_token > 0) {
    least.prefill_us =
        kHalf * cost.prefill_us_per_token * flops / static_cast<double>(full.flops_per_token);
  }
  return least;
}

DepthCost AtLeast(const DepthCost& measured, const DepthCost& least, double share) {
  return {std::max(measured.prefill_us, share * least.prefill_us),
          std::max(measured.decode_us, share * least.decode_us)};
}

}  // namespace

DepthCost DepthCostOf(const StepCost& cost, int32_t lowest_percent, int32_t percent) {
  const double range = 100.0 - lowest_percent;
  const double share = range > 0 ? std::clamp((percent - lowest_percent) / range, 0.0, 1.0) : 1;
  const auto between = [&](double low, double high) { return low + share * (high - low); };
  return {between(cost.lowest_level_depth.prefill_us, cost.depth.prefill_us),
          between(cost.lowest_level_depth.decode_us, cost.depth.decode_us)};
}

absl::StatusOr<StepCost> MeasureCost(Model& model, Clock& clock) {
  Probe probe(model, clock);
  StepCost cost;
  WITHY_ASSIGN_OR_RETURN(cost.prefill_us_per_token, probe.Prefill());
  WITHY_ASSIGN_OR_RETURN(cost.decode_us, probe.Decode(1));
  WITHY_ASSIGN_OR_RETURN(const double many_us, probe.Decode(kManyRows));
  cost.decode_us_per_extra = std::max(0.0, (many_us - cost.decode_us) / (kManyRows - 1));
  WITHY_ASSIGN_OR_RETURN(cost.prefill, probe.Times(cost.prefill_us_per_token));
  const DepthCost least = LeastDepthCost(model.info(), cost);
  WITHY_ASSIGN_OR_RETURN(const DepthCost depth, probe.Depth(/*level=*/-1));
  cost.depth = cost.lowest_level_depth = AtLeast(depth, least, 1);
  if (model.info().levels.size() > 1) {
    WITHY_ASSIGN_OR_RETURN(const DepthCost lowest, probe.Depth(/*level=*/0));
    cost.lowest_level_depth = AtLeast(lowest, least, model.info().levels.front().percent / 100.0);
  }
  return cost;
}

}  // namespace withy::engine
