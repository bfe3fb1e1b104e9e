#include "engine/weights/stage_ring.h"

#include <algorithm>

namespace withy::engine {

StageRing::StageRing(int32_t stages, int32_t slots, int32_t level)
    : stages_(stages),
      slots_count_(std::min(slots, stages)),
      slots_(static_cast<size_t>(slots_count_)),
      level_(level) {}

bool StageRing::Holds(int32_t stage) const {
  const int32_t ahead = (stage - first_ + stages_) % stages_;
  return ahead < count_;
}

StageRing::State StageRing::StateOf(int32_t stage, int32_t level) const {
  if (!Holds(stage)) return State::kAbsent;
  const Slot& slot = SlotFor(stage);
  if (slot.failed) return State::kFailed;
  if (slot.level < level) return slot.wanted < level ? State::kAbsent : State::kReading;
  return slot.reads > 0 ? State::kReading : State::kReady;
}

void StageRing::Demand(int32_t stage, int32_t level) {
  idle_ = false;
  level_ = level;
  if (!Holds(stage)) {
    first_ = stage;
    count_ = 0;
    return;
  }
  while (first_ != stage) {
    first_ = After(first_, 1);
    --count_;
  }
  for (int32_t i = 0; i < count_; ++i) {
    Slot& slot = SlotFor(After(first_, i));
    slot.wanted = std::max(slot.wanted, level);
  }
}

void StageRing::Release(int32_t stage) {
  while (Holds(stage)) {
    first_ = After(first_, 1);
    --count_;
  }
}

void StageRing::Reset() {
  count_ = 0;
  idle_ = true;
}

std::optional<StageRead> StageRing::NextRead() {
  if (idle_) return std::nullopt;
  for (int32_t i = 0; i < count_; ++i) {
    const int32_t stage = After(first_, i);
    Slot& slot = SlotFor(stage);
    if (slot.wanted <= slot.level || slot.failed) continue;
    const StageRead read{stage, slot.level, slot.wanted};
    slot.level = slot.wanted;
    ++slot.reads;
    return read;
  }
  if (count_ == slots_count_) return std::nullopt;
  const int32_t next = After(first_, count_);
  Slot& slot = SlotFor(next);
  // Where the number of slots does not divide that of the stages, the last stages of a pass and the
  // first of the next one may want the same slot.
  if (slot.reads > 0 || (slot.stage >= 0 && Holds(slot.stage))) return std::nullopt;
  slot = {.stage = next, .level = level_, .wanted = level_, .reads = 1};
  ++count_;
  return StageRead{next, -1, level_};
}

void StageRing::Finished(int32_t slot, bool ok) {
  Slot& finished = slots_[static_cast<size_t>(slot)];
  --finished.reads;
  if (!ok) finished.failed = true;
}

}  // namespace withy::engine
