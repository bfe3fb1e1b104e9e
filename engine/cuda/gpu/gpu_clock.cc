#include "engine/cuda/gpu/gpu_clock.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/status.h"

namespace withy::engine::cuda {
namespace {

constexpr int kStamps = 64;  // that tell the timer's step
constexpr int kReadings = 8;
constexpr int64_t kRefreshNs = 2'000'000'000;

}  // namespace

void ClockMap::Add(const Reading& reading) {
  if (!read_ || reading.gpu_ns < newest_.gpu_ns) {
    base_ = reading;
  } else if (reading.gpu_ns - base_.gpu_ns >= kRateNs) {
    rate_ = static_cast<double>(reading.ticks - base_.ticks) /
            static_cast<double>(reading.gpu_ns - base_.gpu_ns);
    measured_ = true;
    base_ = reading;
  }
  newest_ = reading;
  read_ = true;
}

int64_t ClockMap::Ticks(int64_t gpu_ns) const {
  return newest_.ticks + static_cast<int64_t>(static_cast<double>(gpu_ns - newest_.gpu_ns) * rate_);
}

GpuClock::GpuClock(Gpu& gpu, TickClock clock)
    : gpu_(gpu), clock_(clock), opened_(ReadClockPair()), stamps_(gpu, MemoryWay::kHost) {}

double GpuClock::TicksPerNs() const {
  if (!clock_.is_counter()) return 1;
  const ClockPair now = ReadClockPair();
  return static_cast<double>(now.ticks - opened_.ticks) /
         static_cast<double>(std::max<int64_t>(1, now.steady_ns - opened_.steady_ns));
}

absl::Status GpuClock::Open() {
  WITHY_RETURN_IF_ERROR(stamps_.Reserve(kStamps * sizeof(uint64_t)));
  auto* const stamps = stamps_.as<uint64_t>();
  for (int i = 0; i < kStamps; ++i) gpu_.kernels().stamp(gpu_.queue(), {.to = stamps + i});
  WITHY_RETURN_IF_ERROR(gpu_.Wait());
  uint64_t step = 0;
  for (int i = 1; i < kStamps; ++i) step = std::gcd(step, stamps[i] - stamps[i - 1]);
  step_ns_ = static_cast<int64_t>(std::max<uint64_t>(step, 1));
  ticks_of_stamp_ =
      static_cast<double>(stamps[kStamps - 1] - stamps[0]) / (kStamps - 1) * TicksPerNs();
  return Read();
}

absl::Status GpuClock::Refresh() {
  // The longer ago it was opened, the better this is known.
  map_.SetNominal(TicksPerNs());
  return SteadyNowNs() - read_ns_ < kRefreshNs ? absl::OkStatus() : Read();
}

// A stamp lies between two readings of the host's clock; the closest of several counts.
absl::Status GpuClock::Read() {
  ClockMap::Reading best;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kReadings; ++i) {
    const int64_t before = clock_.Now();
    gpu_.kernels().stamp(gpu_.queue(), {.to = stamps_.as<uint64_t>()});
    WITHY_RETURN_IF_ERROR(gpu_.Wait());
    const int64_t after = clock_.Now();
    if (after - before >= least) continue;
    least = after - before;
    best = {static_cast<int64_t>(*stamps_.as<uint64_t>()) + step_ns_ / 2, before + least / 2};
  }
  map_.SetNominal(TicksPerNs());
  map_.Add(best);
  read_ns_ = SteadyNowNs();
  return absl::OkStatus();
}

}  // namespace withy::engine::cuda
