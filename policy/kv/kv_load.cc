#include "policy/kv/kv_load.h"

#include <algorithm>
#include <utility>

#include "policy/constants.h"

namespace withy::policy {

KvLoad::KvLoad(std::vector<Chunk> chunks, uint32_t layers)
    : chunks_(std::move(chunks)), layers_(layers) {
  for (const Chunk chunk : chunks_) ++counts_[static_cast<size_t>(chunk)];
}

bool KvLoad::Apply(const KvLoadEvent& event, int64_t now_ns) {
  const bool layers = event.kind == KvLoadEvent::Kind::kLayers;
  const uint32_t before = layers ? event.change : event.change - 1;
  if (before < changes_ && !layers) return false;
  if (before > changes_) {
    early_.push_back(event);
    return true;
  }
  if (layers) {
    news_ns_ = now_ns;
    // A layer told before the last change is in place of what is still being read, too.
    ArriveUpTo(event.layers);
    return true;
  }
  if (!Change(event, now_ns)) return false;
  for (const KvLoadEvent& next : std::exchange(early_, {})) Apply(next, now_ns);
  return true;
}

bool KvLoad::Change(const KvLoadEvent& event, int64_t now_ns) {
  const bool yielded = event.kind == KvLoadEvent::Kind::kYielded;
  for (const uint32_t chunk : event.chunks) {
    if (chunk < chunks_.size() && chunks_[chunk] != Chunk::kReading) return false;
  }
  ++changes_;
  for (const uint32_t chunk : event.chunks) {
    if (chunk < chunks_.size()) Set(chunk, yielded ? Chunk::kToCompute : Chunk::kLost);
  }
  if (!yielded || !event.chunks.empty() || event.arrived_blocks > arrived_blocks_) {
    news_ns_ = now_ns;
  }
  if (yielded) {
    asked_ = false;
    refused_ns_ = event.chunks.empty() ? now_ns : 0;
    arrived_blocks_ = event.arrived_blocks;
  }
  return true;
}

void KvLoad::ArriveUpTo(uint32_t layers) {
  arrived_ = std::max(arrived_, std::min(layers, layers_));
  if (arrived_ < layers_) return;
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    if (chunks_[chunk] == Chunk::kReading) Set(chunk, Chunk::kResident);
  }
}

void KvLoad::Set(uint32_t chunk, Chunk state) {
  --counts_[static_cast<size_t>(chunks_[chunk])];
  ++counts_[static_cast<size_t>(state)];
  chunks_[chunk] = state;
}

void KvLoad::OnAsked(uint32_t computed_before) {
  asked_ = true;
  computed_before_ = std::max(computed_before_, computed_before);
}

void KvLoad::OnGivenUp(uint32_t chunk) {
  if (chunk >= chunks_.size()) return;
  for (uint32_t i = chunk; i < chunks_.size(); ++i) --counts_[static_cast<size_t>(chunks_[i])];
  chunks_.resize(chunk);
}

uint32_t KvLoad::Find(Chunk state, uint32_t from) const {
  if (count(state) == 0 || from >= chunks_.size()) return kNone;
  const auto found = std::find(chunks_.begin() + from, chunks_.end(), state);
  return found == chunks_.end() ? kNone : static_cast<uint32_t>(found - chunks_.begin());
}

uint32_t KvLoad::LayersFor(uint32_t chunk) const {
  return Find(Chunk::kReading) <= chunk ? arrived_ : kAllLayers;
}

bool KvLoad::MayAsk(int64_t now_ns) const {
  if (!may_yield() || asked_) return false;
  return refused_ns_ == 0 || (waits() && now_ns - refused_ns_ >= kAskForYieldNs);
}

void KvLoad::BeginWait(int64_t now_ns) {
  if (waits()) return;
  waits_since_ns_ = now_ns;
  news_ns_ = std::max(news_ns_, now_ns);
}

int64_t KvLoad::EndWait() { return std::exchange(waits_since_ns_, 0); }

KvLoad::Next KvLoad::NextStep(int64_t now_ns) const {
  if (!waits() || !reading()) return Next::kNothing;
  if (now_ns - news_ns_ > kStuckLoadNs) return Next::kGiveUp;
  return MayAsk(now_ns) ? Next::kAsk : Next::kNothing;
}

}  // namespace withy::policy
