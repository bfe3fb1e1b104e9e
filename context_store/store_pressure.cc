// Store: gives memory of the arena back to the system while the board is short of it. Chunks of
// idle contexts that are on disk leave, then those that the disk takes, and what is left is stored
// in fewer bits; calls and their contexts keep theirs, and a call that finds no other room takes
// back what was given up. When to shrink and to grow: policy/kv/kv_shrink.h.
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "context_store/store.h"

namespace withy::context_store {
namespace {

constexpr uint64_t kPageBytes = 4096;
// What leaves under one hold of the lock: a few milliseconds at most.
constexpr uint64_t kShrinkStepBytes = 8 << 20;

}  // namespace

absl::Status Store::StartWatchingPressure() {
  const PressureOptions& options = options_.pressure;
  if (options.file.empty() || options.rules.shrink_share >= 1) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<MemoryPressure>> pressure = MemoryPressure::Open(options.file);
  if (!pressure.ok()) return pressure.status();
  pressure_ = *std::move(pressure);
  pressure_stop_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!pressure_stop_.valid()) return ErrnoError("eventfd for the memory pressure");
  spdlog::info("the arena shrinks when tasks wait for memory for {} % of the time ({}{})",
               options.rules.shrink_share * 100, options.file,
               pressure_->triggered() ? ", the kernel wakes" : "");
  pressure_thread_ = std::thread([this] { WatchPressure(); });
  return absl::OkStatus();
}

void Store::StopWatchingPressure() {
  if (!pressure_thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(pressure_stop_.get(), &one, sizeof one);
  pressure_thread_.join();
}

void Store::WatchPressure() {
  policy::ArenaShrink shrink(arena_->bytes(), options_.pressure.rules);
  int64_t last_ns = clock_.SteadyNanos();
  for (;;) {
    pressure_->Wait(pressure_stop_.get(), options_.pressure.interval);
    uint64_t stopped = 0;
    if (read(pressure_stop_.get(), &stopped, sizeof stopped) > 0) return;
    const absl::StatusOr<uint64_t> stalled_us = pressure_->StalledMicros();
    const int64_t now_ns = clock_.SteadyNanos();
    const double elapsed_us = static_cast<double>(std::max<int64_t>(now_ns - last_ns, 1000)) / 1e3;
    last_ns = now_ns;
    if (!stalled_us.ok()) {
      spdlog::warn("{}: the arena keeps its size", std::string(stalled_us.status().message()));
      return;
    }
    const uint64_t before = shrink.withheld_bytes();
    const uint64_t wanted =
        shrink.Observe(std::min(static_cast<double>(*stalled_us) / elapsed_us, 1.0));
    const uint64_t now = WithholdTo(wanted);
    if (wanted == before) continue;
    spdlog::info(
        "tasks waited for memory for {} us of {} us: {} of the arena's {} bytes are given "
        "back to the system now",
        *stalled_us, static_cast<uint64_t>(elapsed_us), now, arena_->bytes());
  }
}

uint64_t Store::WithholdTo(uint64_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    // A worker that has mapped the arena since then has touched every page.
    if (table_->slots().counts().withheld > 0) {
      for (const SlotPool::Pages& pages : table_->slots().Withheld()) {
        (void)arena_->ReleasePages(pages.offset, pages.bytes);
      }
    }
  }
  for (bool made_room = false;;) {
    uint64_t now = 0;
    if (!WithholdMore(bytes, &now)) continue;
    // What can be read back has left. The rest is written, or stored in fewer bits, once.
    if (now + kPageBytes > bytes || std::exchange(made_room, true)) return now;
    MakeRoom(bytes - now);
  }
}

bool Store::WithholdMore(uint64_t bytes, uint64_t* now) {
  uint64_t evicted = 0;
  absl::MutexLock lock(&mutex_);
  const uint64_t withheld = table_->slots().counts().withheld;
  const uint64_t step = std::min(bytes - std::min(bytes, withheld), kShrinkStepBytes);
  if (withheld > bytes) table_->idle().GiveBack(withheld - bytes);
  // The memory goes before anybody can claim the place again.
  for (const SlotPool::Pages& pages : table_->idle().Withhold(step, kPageBytes, &evicted)) {
    if (!arena_->ReleasePages(pages.offset, pages.bytes)) {
      spdlog::warn("the kernel does not take back memory of the arena");
      table_->idle().GiveBack(pages.bytes);
    }
  }
  evicted_.Add(evicted);
  RecordGauges();
  *now = table_->slots().counts().withheld;
  return *now <= withheld || *now + kPageBytes > bytes;
}

}  // namespace withy::context_store
