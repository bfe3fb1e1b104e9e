#include "engine/session/calibrator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <span>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/session/solo_answer.h"

namespace withy::engine {
namespace {

constexpr int32_t kDepths[] = {0, 512, 2048};
constexpr int32_t kBatches[] = {1, 2, 4};
static_assert(kBatches[2] == Calibrator::kMaxContexts);

// Rows per prefill piece of a worker with a single call.
constexpr int32_t kPieceRows = 128;
constexpr int kMaxRepeats = 8;  // of one sample

// The ascending values of `wanted` up to `bound`; `bound` replaces those above it.
std::vector<int32_t> Bounded(std::span<const int32_t> wanted, int32_t bound) {
  std::vector<int32_t> kept;
  for (const int32_t value : wanted) {
    const int32_t bounded = std::min(value, bound);
    if (kept.empty() || kept.back() != bounded) kept.push_back(bounded);
  }
  return kept;
}

int64_t BytesPerToken(const KvInfo& kv) {
  return static_cast<int64_t>(kv.block_bytes) * kv.layers / kv.chunk_tokens;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void Rest() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

std::vector<TimedPoint> PlanTimes(const ModelInfo& info, int32_t window) {
  std::vector<TimedPoint> plan;
  const std::vector<int32_t> depths = Bounded(kDepths, window - 1);
  for (const LevelInfo& level : info.levels) {
    const int32_t percent = level.percent;
    for (const int32_t tokens : Bounded(kPrefillTokens, window)) {
      plan.push_back({.kind = TimedKind::kPrefill, .level_percent = percent, .rows = tokens});
    }
    for (const int32_t depth : depths) {
      for (const int32_t rows : kBatches) {
        plan.push_back({TimedKind::kDecode, percent, rows, depth});
      }
    }
    if (info.levels.size() > 1) plan.push_back({TimedKind::kSwitch, percent, 1, 0});
  }
  for (const int32_t depth : depths) {
    if (depth > 0) plan.push_back({TimedKind::kResume, info.levels.back().percent, 1, depth});
  }
  for (const int32_t rows : kTreeRows) {
    if (rows <= window) plan.push_back({TimedKind::kTree, info.levels.back().percent, rows, 0});
  }
  return plan;
}

Calibrator::Calibrator(Model& model, const Clock& clock, int32_t window,
                       const CalibratorLimits& limits)
    : model_(model),
      clock_(clock),
      limits_(limits),
      plan_(PlanTimes(model.info(), window)),
      logits_(static_cast<size_t>(kTreeRows.back()) *
              static_cast<size_t>(model.info().vocab_size)) {
  for (const TimedPoint& point : plan_) {
    deepest_ = std::max(deepest_, point.depth);
    if (point.kind == TimedKind::kPrefill)
      longest_prefill_ = std::max(longest_prefill_, point.rows);
  }
}

absl::StatusOr<double> Calibrator::Sample(const TimedPoint& point,
                                          const std::atomic<bool>* cancel) {
  cancel_ = cancel;
  std::vector<double> times;
  const int64_t started = clock_.SteadyNanos();
  do {
    WITHY_ASSIGN_OR_RETURN(const double us, Once(point));
    times.push_back(us);
  } while (times.size() < kMaxRepeats && clock_.SteadyNanos() - started < limits_.sample_ns);
  return Median(std::move(times));
}

absl::StatusOr<double> Calibrator::Once(const TimedPoint& point) {
  const ModelInfo& info = model_.info();
  const int32_t level = LevelIndex(info, point.level_percent);
  if (level < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(info.name, " has no level of ", point.level_percent, " %"));
  }
  switch (point.kind) {
    case TimedKind::kPrefill:
      return Prefill(level, point.rows);
    case TimedKind::kDecode:
      WITHY_RETURN_IF_ERROR(PrepareContexts(point.rows, point.depth));
      return Step(level, 0, point.rows, point.depth);
    case TimedKind::kSwitch: {
      const auto full = static_cast<int32_t>(info.levels.size()) - 1;
      WITHY_RETURN_IF_ERROR(PrepareContexts(1, 0));
      WITHY_RETURN_IF_ERROR(Step(level == full ? 0 : full, 0, 1, 0).status());
      WITHY_ASSIGN_OR_RETURN(const double first_us, Step(level, 0, 1, 0));
      WITHY_ASSIGN_OR_RETURN(const double next_us, Step(level, 0, 1, 0));
      return first_us - next_us;
    }
    case TimedKind::kResume:
      WITHY_RETURN_IF_ERROR(PrepareContexts(2, point.depth));
      WITHY_RETURN_IF_ERROR(Step(level, 1, 1, point.depth).status());
      return Step(level, 0, 1, point.depth);
    case TimedKind::kTree:
      WITHY_RETURN_IF_ERROR(PrepareContexts(1, point.depth));
      return TreeStep(level, point.rows);
  }
  return absl::InternalError("unknown kind of point");
}

absl::StatusOr<double> Calibrator::Prefill(int32_t level, int32_t rows) {
  const ModelInfo& info = model_.info();
  if (prompt_ == nullptr) prompt_ = std::make_unique<ScratchKv>(info, longest_prefill_);
  limits_.rest();
  double us = 0;
  for (int32_t first = 0; first < rows; first += kPieceRows) {
    std::vector<Row> piece;
    for (int32_t i = first; i < std::min(rows, first + kPieceRows); ++i) {
      piece.push_back({.token = i % info.vocab_size,
                       .position = i,
                       .slot = i,
                       .level = level,
                       .want_logits = i + 1 == rows,
                       .ancestor_slots = {}});
    }
    const ContextView view = prompt_->View(first);
    WITHY_ASSIGN_OR_RETURN(const double piece_us, Timed({.rows = piece, .contexts = {&view, 1}}));
    us += piece_us;
  }
  return us;
}

absl::StatusOr<double> Calibrator::Step(int32_t level, int32_t first_context, int32_t rows,
                                        int32_t depth) {
  std::vector<Row> batch;
  std::vector<ContextView> views;
  for (int32_t i = 0; i < rows; ++i) {
    views.push_back(contexts_[static_cast<size_t>(first_context + i)]->View(depth));
    batch.push_back({.position = depth,
                     .slot = depth,
                     .context = i,
                     .level = level,
                     .want_logits = true,
                     .ancestor_slots = {}});
  }
  return Timed({.rows = batch, .contexts = views});
}

// A chain: its shape does not matter for its time.
absl::StatusOr<double> Calibrator::TreeStep(int32_t level, int32_t rows) {
  std::vector<int32_t> slots(static_cast<size_t>(rows));
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<Row> batch;
  for (int32_t i = 0; i < rows; ++i) {
    Row& row = batch.emplace_back(Row{.token = i % model_.info().vocab_size,
                                      .position = i,
                                      .slot = i,
                                      .level = level,
                                      .want_logits = true,
                                      .ancestor_slots = {}});
    if (i > 1) row.ancestor_slots = std::span(slots).subspan(1, static_cast<size_t>(i) - 1);
  }
  const ContextView view = contexts_[0]->View();
  filled_[0] = 0;  // the tree has written over its beginning
  return Timed({.rows = batch, .contexts = {&view, 1}});
}

// Ensures that the first `count` of contexts_ hold `depth` tokens. Their content does not affect a
// step's time, as long as the model itself has written it.
absl::Status Calibrator::PrepareContexts(int32_t count, int32_t depth) {
  const int64_t bytes = BytesPerToken(model_.info().kv) * (depth + 1) * kMaxContexts;
  if (bytes > limits_.kv_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the KV of ", kMaxContexts, " contexts of ",
                                                     depth, " tokens would take ", bytes >> 20,
                                                     " MiB, more than ", limits_.kv_bytes >> 20));
  }
  const int64_t fitting =
      limits_.kv_bytes / kMaxContexts / std::max<int64_t>(BytesPerToken(model_.info().kv), 1);
  const auto capacity =
      static_cast<int32_t>(std::min<int64_t>(std::max(deepest_ + 1, kTreeRows.back()), fitting));
  while (contexts_.size() < static_cast<size_t>(count)) {
    contexts_.push_back(std::make_unique<ScratchKv>(model_.info(), capacity));
    filled_.push_back(0);
  }
  WITHY_RETURN_IF_ERROR(Fill(depth));
  for (size_t i = 1; i < static_cast<size_t>(count); ++i) {
    if (filled_[i] < depth) CopyFirstContext(i, depth);
  }
  return absl::OkStatus();
}

// Uses the lowest level, because it is the fastest.
absl::Status Calibrator::Fill(int32_t depth) {
  double us = 0;
  int32_t done = 0;
  for (int32_t& filled = filled_[0]; filled < depth;) {
    const double left_us = done > 0 ? us / done * (depth - filled) : 0;
    if ((us + left_us) * 1e3 > static_cast<double>(limits_.fill_ns)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("filling a context of ", depth, " tokens would take about ",
                       static_cast<int64_t>((us + left_us) / 1e6), " s, more than ",
                       limits_.fill_ns / kNanosPerSecond));
    }
    std::vector<Row> piece;
    const int32_t end = std::min(depth, filled + kPieceRows);
    for (int32_t i = filled; i < end; ++i) {
      piece.push_back({.token = i % model_.info().vocab_size,
                       .position = i,
                       .slot = i,
                       .level = 0,
                       .ancestor_slots = {}});
    }
    const ContextView view = contexts_[0]->View(filled);
    WITHY_ASSIGN_OR_RETURN(const double piece_us, Timed({.rows = piece, .contexts = {&view, 1}}));
    us += piece_us;
    done += end - filled;
    filled = end;
  }
  return absl::OkStatus();
}

void Calibrator::CopyFirstContext(size_t to, int32_t depth) {
  const KvInfo& kv = model_.info().kv;
  const int32_t chunks = (depth + kv.chunk_tokens - 1) / kv.chunk_tokens;
  const ContextView source = contexts_[0]->View();
  const ContextView target = contexts_[to]->View();
  for (size_t i = 0; i < static_cast<size_t>(chunks * kv.layers); ++i) {
    std::memcpy(target.memory.At(target.blocks[i]), source.memory.At(source.blocks[i]),
                kv.block_bytes);
  }
  contexts_[to]->Touch();
  filled_[to] = depth;
}

absl::StatusOr<double> Calibrator::Timed(const Batch& batch) {
  const int64_t start = clock_.SteadyNanos();
  WITHY_RETURN_IF_ERROR(model_.Forward(batch, logits_.data(), cancel_));
  return static_cast<double>(clock_.SteadyNanos() - start) / 1e3;
}

}  // namespace withy::engine
