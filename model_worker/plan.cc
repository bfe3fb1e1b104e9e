#include "model_worker/plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace withy::model_worker {
namespace {

constexpr int32_t kRowStep = 8;

// A piece that used less than kFullEnough of its time grows towards kAim of it.
constexpr double kFullEnough = 0.85;
constexpr double kAim = 0.95;
// Short pieces cost more a row than the long prefill that the first guess was measured on.
constexpr double kCautious = 0.7;
constexpr double kMaxGrowth = 1.25;
constexpr double kMaxShrink = 4.0;

std::vector<size_t> Ordered(size_t count, const auto& before) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), before);
  return order;
}

// The rows of prefill being dealt out.
class Piece {
 public:
  Piece(std::span<const RunningCall> calls, int32_t rows)
      : calls_(calls), left_(rows), given_(calls.size()) {}

  void Give(size_t call, int32_t at_most) {
    const int32_t rows =
        std::clamp(calls_[call].ready_rows - given_[call], 0, std::min(at_most, left_));
    given_[call] += rows;
    left_ -= rows;
  }
  int32_t left() const { return left_; }
  int32_t given(size_t call) const { return given_[call]; }

 private:
  std::span<const RunningCall> calls_;
  int32_t left_;
  std::vector<int32_t> given_;
};

}  // namespace

bool ComesBefore(const CallOrder& a, const CallOrder& b, int64_t now_ns) {
  const auto key = [now_ns](const CallOrder& order) {
    const bool patient = now_ns - order.arrived_ns < kPatienceNs;
    const int64_t deadline = !patient                 ? std::numeric_limits<int64_t>::min()
                             : order.deadline_ns == 0 ? std::numeric_limits<int64_t>::max()
                                                      : order.deadline_ns;
    const int32_t priority = patient ? -order.priority : 0;
    return std::tuple(deadline, priority, order.arrived_ns, order.sequence);
  };
  return key(a) < key(b);
}

std::vector<size_t> ChooseStarts(std::span<const WaitingCall> waiting,
                                 std::span<const std::string_view> busy_contexts, size_t free_slots,
                                 int64_t now_ns) {
  const std::vector<size_t> order = Ordered(waiting.size(), [&](size_t a, size_t b) {
    return ComesBefore(waiting[a].order, waiting[b].order, now_ns);
  });
  std::vector<std::string_view> busy(busy_contexts.begin(), busy_contexts.end());
  std::vector<size_t> starts;
  for (const size_t i : order) {
    if (starts.size() >= free_slots) break;
    const std::string_view context = waiting[i].context;
    if (!context.empty()) {
      if (std::find(busy.begin(), busy.end(), context) != busy.end()) continue;
      busy.push_back(context);
    }
    starts.push_back(i);
  }
  return starts;
}

std::vector<PlannedRows> PlanStep(std::span<const RunningCall> calls, int32_t piece_rows,
                                  int64_t now_ns) {
  std::vector<PlannedRows> plan;
  std::vector<size_t> prefills;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].paused || calls[i].ready_rows <= 0) continue;
    if (calls[i].decoding) {
      plan.push_back({.call = i, .rows = 1});
    } else {
      prefills.push_back(i);
    }
  }
  if (prefills.empty()) return plan;
  std::sort(prefills.begin(), prefills.end(), [&](size_t a, size_t b) {
    return ComesBefore(calls[a].order, calls[b].order, now_ns);
  });
  Piece piece(calls, piece_rows);
  const bool hurried = calls[prefills.front()].order.deadline_ns != 0;
  const size_t first = prefills.front();
  piece.Give(first, hurried ? piece_rows : (piece_rows + 1) / 2);
  std::stable_sort(prefills.begin(), prefills.end(), [&](size_t a, size_t b) {
    return calls[a].pending_rows < calls[b].pending_rows;
  });
  // Rows of others would come before the first token of a prompt that ends here.
  const bool alone = hurried && piece.given(first) == calls[first].pending_rows;
  for (const size_t i : prefills) {
    if (!alone) piece.Give(i, piece.left());
  }
  for (const size_t i : prefills) {
    if (piece.given(i) > 0) plan.push_back({.call = i, .rows = piece.given(i)});
  }
  return plan;
}

bool GoesBetween(const CallOrder& prompt, bool begun, std::span<const CallOrder> prompts_under_way,
                 int64_t now_ns) {
  if (prompt.deadline_ns != 0) {
    return std::all_of(prompts_under_way.begin(), prompts_under_way.end(),
                       [&](const CallOrder& other) { return ComesBefore(prompt, other, now_ns); });
  }
  return !begun && !prompts_under_way.empty() &&
         std::all_of(prompts_under_way.begin(), prompts_under_way.end(),
                     [](const CallOrder& other) { return other.deadline_ns == 0; });
}

PieceSizer::PieceSizer(double us_per_row, int32_t piece_ms, int32_t max_rows)
    : piece_us_(piece_ms * 1e3),
      max_rows_(std::max(max_rows, kMinRows)),
      rows_(std::clamp(kCautious * piece_us_ / std::max(us_per_row, 0.001),
                       static_cast<double>(kMinRows), static_cast<double>(max_rows_))) {}

int32_t PieceSizer::Rows(int32_t decode_rows, double share) const {
  const auto rows = static_cast<int32_t>(std::max(0.0, rows_ - decode_rows) / share);
  return std::clamp(rows / kRowStep * kRowStep, kMinRows, max_rows_);
}

void PieceSizer::Observe(double full_rows, double elapsed_us) {
  const double used = elapsed_us / piece_us_;  // share of the time a piece may take
  if (used > 1.0) {
    rows_ = std::min(rows_, std::max(full_rows / std::min(used, kMaxShrink), 1.0 * kMinRows));
  } else if (full_rows >= Rows(0) && used < kFullEnough) {
    rows_ = std::min(rows_ * std::min(kMaxGrowth, kAim / used), 1.0 * max_rows_);
  }
}

}  // namespace withy::model_worker
