#include "engine/cuda/pass_stamps.h"

#include <algorithm>

#include "base/status.h"

namespace withy::engine::cuda {

PassStamps::PassStamps(Gpu& gpu, KernelObserver* observer, GpuClock* clock)
    : gpu_(gpu),
      observer_(clock != nullptr ? observer : nullptr),
      clock_(clock),
      stamps_(gpu, MemoryWay::kHost) {}

void PassStamps::Start(const PassTag& tag, int32_t rows, size_t ops) {
  watched_ = observer_ != nullptr && observer_->watches();
  weight_ = watched_ ? observer_->OnPassBegins(rows) : uint16_t{0};
  tag_ = tag;
  rows_ = rows;
  ops_ = ops;
  computed_ = 0;
  stamped_ = 0;
}

absl::Status PassStamps::Begin() {
  if (!watched_) return absl::OkStatus();
  WITHY_RETURN_IF_ERROR(stamps_.Reserve((ops_ + 1) * sizeof(uint64_t)));
  begun_ = Now();
  queued_.clear();
  next_ = 0;
  return absl::OkStatus();
}

void PassStamps::OnQueueing() {
  if (!watched_) return;
  // If kernels are not told of, only the first operation of the program is stamped.
  if (next_ == 0 && (weight_ > 0 || stamped_ == 0)) Stamp();
  queueing_ = Now();
}

void PassStamps::Stamp() {
  gpu_.kernels().stamp(gpu_.queue(), {.to = stamps_.as<uint64_t>() + next_++});
  ++stamped_;
}

void PassStamps::OnQueued(const Op& op) {
  // All rows are made of their tokens in the first operation.
  if (!watched_ || (weight_ == 0 && op.kind != OpKind::kEmbed)) return;
  Stamp();
  queued_.push_back({op.kind, op.layer, queueing_, Now()});
}

void PassStamps::OnStarted() {
  const int64_t now = Now();
  for (Queued& op : queued_) op.to = now;
}

absl::Status PassStamps::Report(bool done) {
  if (!watched_) return absl::OkStatus();
  // Counters of two cores may differ by a little.
  const int64_t now = std::max(Now(), queued_.empty() ? begun_ : queued_.back().to);
  WITHY_RETURN_IF_ERROR(clock_->Refresh());
  const auto* const stamps = stamps_.as<uint64_t>();
  // Both clocks are read with an error; an operation is between its queueing and now, and behind
  // the one before.
  int64_t last = begun_;
  for (size_t i = 0; i < queued_.size(); ++i) {
    const Queued& op = queued_[i];
    last = std::min(std::max(last, op.from), now);
    const int64_t started = std::clamp(clock_->Ticks(stamps[i]), last, now);
    const int64_t ended = std::clamp(clock_->Ticks(stamps[i + 1]), started, now);
    last = ended;
    if (weight_ > 0) {
      observer_->OnKernel({.pass = tag_,
                           .weight = weight_,
                           .op = static_cast<uint8_t>(op.kind),
                           .layer = op.layer,
                           .dispatched = op.from,
                           .arrived = std::min(op.to, started),
                           .started = started,
                           .ended = ended});
    }
    if (op.kind == OpKind::kEmbed) observer_->OnEmbedded(tag_, started, ended);
  }
  computed_ += now - begun_;
  if (done && weight_ > 0) {
    const double stamping = clock_->ticks_of_stamp() * static_cast<double>(stamped_);
    observer_->OnPassDone(rows_, ops_, computed_, static_cast<int64_t>(stamping));
  }
  return absl::OkStatus();
}

}  // namespace withy::engine::cuda
