#include "context_store/pressure_watch.h"

#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "context_store/arena/slot_layout.h"

namespace withy::context_store {
namespace {

constexpr uint64_t kPageBytes = 4096;
// What leaves under one hold of the lock: a few milliseconds at most.
constexpr uint64_t kShrinkStepBytes = 8 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<PressureWatch>> PressureWatch::Start(const PressureOptions& options,
                                                                    LeaseBook& book,
                                                                    IdleKeeper& idle,
                                                                    StoreMetrics& metrics,
                                                                    const Clock& clock) {
  std::unique_ptr<PressureWatch> watch;
  if (options.file.empty() || options.rules.shrink_share >= 1) return watch;
  watch.reset(new PressureWatch(options, book, idle, metrics, clock));
  WITHY_ASSIGN_OR_RETURN(watch->pressure_, MemoryPressure::Open(options.file));
  watch->stop_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!watch->stop_.valid()) return ErrnoError("eventfd for the memory pressure");
  spdlog::info("the arena shrinks when tasks wait for memory for {} % of the time ({}{})",
               options.rules.shrink_share * 100, options.file,
               watch->pressure_->triggered() ? ", the kernel wakes" : "");
  watch->thread_ = std::thread([watch = watch.get()] { watch->Watch(); });
  return watch;
}

PressureWatch::~PressureWatch() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void PressureWatch::Watch() {
  policy::ArenaShrink shrink(book_.arena().bytes(), options_.rules);
  int64_t last_ns = clock_.SteadyNanos();
  for (;;) {
    pressure_->Wait(stop_.get(), options_.interval);
    uint64_t stopped = 0;
    if (read(stop_.get(), &stopped, sizeof stopped) > 0) return;
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
        *stalled_us, static_cast<uint64_t>(elapsed_us), now, book_.arena().bytes());
  }
}

uint64_t PressureWatch::WithholdTo(uint64_t bytes) {
  {
    absl::MutexLock lock(&book_.mutex());
    // A worker that has mapped the arena since then has touched every page.
    if (book_.table().kv().pool.counts().withheld > 0) {
      for (const SlotPool::Pages& pages : WithheldPages(book_.table().kv().pool)) {
        (void)book_.arena().ReleasePages(pages.offset, pages.bytes);
      }
    }
  }
  for (bool made_room = false;;) {
    uint64_t now = 0;
    if (!WithholdMore(bytes, &now)) continue;
    // What can be read back has left. The rest is written, or stored in fewer bits, once.
    if (now + kPageBytes > bytes || std::exchange(made_room, true)) return now;
    idle_.MakeRoom(bytes - now);
  }
}

bool PressureWatch::WithholdMore(uint64_t bytes, uint64_t* now) {
  uint64_t evicted = 0;
  absl::MutexLock lock(&book_.mutex());
  const uint64_t withheld = book_.table().kv().pool.counts().withheld;
  const uint64_t step = std::min(bytes - std::min(bytes, withheld), kShrinkStepBytes);
  if (withheld > bytes) book_.table().idle().GiveBack(withheld - bytes);
  // The memory goes before anybody can claim the place again.
  for (const SlotPool::Pages& pages : book_.table().idle().Withhold(step, kPageBytes, &evicted)) {
    if (!book_.arena().ReleasePages(pages.offset, pages.bytes)) {
      spdlog::warn("the kernel does not take back memory of the arena");
      book_.table().idle().GiveBack(pages.bytes);
    }
  }
  metrics_.chunks.evicted.Add(evicted);
  book_.RecordGauges();
  *now = book_.table().kv().pool.counts().withheld;
  return *now <= withheld || *now + kPageBytes > bytes;
}

}  // namespace withy::context_store
