#include "bench/profiler/profiler_recovery.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status.h"
#include "bench/engine/engine_bench.h"
#include "bench/profiler/profiler_figures.h"
#include "bench/samples.h"

namespace withy::bench {
namespace {

using Answer = ProfiledService::Answer;

constexpr size_t kWindow = 10;  // calls by which attainment is judged
// What an SLO has above the times of nine of ten calls that are to meet it.
constexpr double kRoomFree = 1.3;
constexpr double kRoomSlow = 1.15;
// Share of attainment that counts as recovered.
constexpr double kRecovered = 0.9;

class BusyBoard {
 public:
  static absl::StatusOr<BusyBoard> Start(int processes) {
    BusyBoard board;
    for (int i = 0; i < processes; ++i) {
      WITHY_ASSIGN_OR_RETURN(auto neighbour, BusyNeighbour::Start());
      board.neighbours_.push_back(std::move(neighbour));
    }
    return board;
  }

 private:
  std::vector<std::unique_ptr<BusyNeighbour>> neighbours_;
};

struct Times {
  std::vector<double> ttft_ms, tpot_ms;  // tpot_ms: 0 for one token
  void Add(const Answer& answer) {
    ttft_ms.push_back(answer.ttft_ms);
    tpot_ms.push_back(answer.tpot_ms);
  }
  double ShareWithin(const v1::Slo& slo) const {
    size_t within = 0;
    for (size_t i = 0; i < ttft_ms.size(); ++i) {
      if (ttft_ms[i] <= slo.ttft_ms() && tpot_ms[i] <= slo.tpot_ms()) ++within;
    }
    return static_cast<double>(within) / static_cast<double>(std::max<size_t>(ttft_ms.size(), 1));
  }
};

absl::StatusOr<Times> TimesOf(ProfiledService& service, int calls, uint32_t level_percent) {
  Times times;
  for (int i = 0; i < calls; ++i) {
    WITHY_ASSIGN_OR_RETURN(const Answer answer,
                           service.Ask(static_cast<uint64_t>(i), {}, level_percent));
    times.Add(answer);
  }
  return times;
}

}  // namespace

absl::StatusOr<RecoverySlo> FindRecoverySlo(ProfiledService& service, int calls) {
  WITHY_ASSIGN_OR_RETURN(const uint32_t lowest, service.LowestLevel());
  if (lowest == 100) {
    return absl::FailedPreconditionError(
        "the model has one level: there is nothing to recover with; elasticize it");
  }
  WITHY_ASSIGN_OR_RETURN(const Times full, TimesOf(service, calls, 100));
  Times full_slow, lowest_slow;
  {
    WITHY_ASSIGN_OR_RETURN(const BusyBoard busy, BusyBoard::Start(service.threads()));
    WITHY_ASSIGN_OR_RETURN(full_slow, TimesOf(service, calls, 100));
    WITHY_ASSIGN_OR_RETURN(lowest_slow, TimesOf(service, calls, lowest));
  }
  constexpr double kMost = 0.9;
  RecoverySlo found;
  found.lowest_percent = lowest;
  found.slo.set_ttft_ms(std::max(kRoomFree * Quantile(full.ttft_ms, kMost),
                                 kRoomSlow * Quantile(lowest_slow.ttft_ms, kMost)));
  found.slo.set_tpot_ms(std::max(kRoomFree * Quantile(full.tpot_ms, kMost),
                                 kRoomSlow * Quantile(lowest_slow.tpot_ms, kMost)));
  found.full_free = full.ShareWithin(found.slo);
  found.full_slow = full_slow.ShareWithin(found.slo);
  found.lowest_slow = lowest_slow.ShareWithin(found.slo);
  return found;
}

absl::StatusOr<RecoveryFigures> MeasureRecovery(ProfiledService& service, ProfiledService& control,
                                                const RecoverySlo& slo, int before) {
  RecoveryFigures figures;
  std::vector<bool> in_time;
  Times lowest;
  const auto ask = [&](int number) -> absl::Status {
    WITHY_ASSIGN_OR_RETURN(const Answer answer,
                           service.Ask(static_cast<uint64_t>(100 + number), slo.slo));
    in_time.push_back(answer.in_time);
    figures.answers.push_back(answer);
    return absl::OkStatus();
  };
  for (int i = 0; i < before; ++i) WITHY_RETURN_IF_ERROR(ask(i));
  {
    WITHY_ASSIGN_OR_RETURN(const BusyBoard busy, BusyBoard::Start(service.threads()));
    for (int i = 0; i < before; ++i) {
      WITHY_RETURN_IF_ERROR(ask(before + i));
      WITHY_ASSIGN_OR_RETURN(
          const Answer answer,
          control.Ask(static_cast<uint64_t>(100 + before + i), {}, slo.lowest_percent));
      lowest.Add(answer);
    }
  }
  const auto change = static_cast<size_t>(before);
  const auto share = [&](size_t from, size_t to) {
    const auto begin = in_time.begin();
    const auto met =
        std::count(begin + static_cast<int64_t>(from), begin + static_cast<int64_t>(to), true);
    return to > from ? static_cast<double>(met) / static_cast<double>(to - from) : 0;
  };
  figures.attainment_before = share(0, change);
  figures.attainable = std::min(figures.attainment_before, lowest.ShareWithin(slo.slo));
  figures.recovery_calls = RecoveryCalls(in_time, change, kWindow, kRecovered * figures.attainable);
  figures.attainment_after = share(change, in_time.size());
  return figures;
}

}  // namespace withy::bench
