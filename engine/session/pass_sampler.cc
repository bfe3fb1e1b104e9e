#include "engine/session/pass_sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace withy::engine {
namespace {

constexpr double kNewest = 0.2;  // weight of the newest pass in what passes of a kind take

}  // namespace

PassSampler::Kind& PassSampler::KindOf(int32_t rows) {
  const auto kind = static_cast<size_t>(std::bit_width(static_cast<uint32_t>(std::max(rows, 1))));
  return kinds_[std::min(kind, kKinds - 1)];
}

uint32_t PassSampler::Random(uint32_t below) {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return static_cast<uint32_t>((random_ >> 32) * below >> 32);
}

uint32_t PassSampler::BlockOf(const Kind& kind) const {
  if (kind.computing <= 0) return 1;  // one pass tells how long they are
  const double passes = std::ceil(kind.recording / (share_ * kind.computing));
  return static_cast<uint32_t>(std::clamp<double>(passes, 1, kMostPasses));
}

uint16_t PassSampler::Next(int32_t rows) {
  if (share_ <= 0) return 0;
  if (share_ >= 1) return 1;
  Kind& kind = KindOf(rows);
  if (kind.left == 0) {
    kind.left = kind.block = BlockOf(kind);
    kind.chosen = Random(kind.block);
  }
  --kind.left;
  return static_cast<uint16_t>(kind.left == kind.chosen ? kind.block : 0);
}

void PassSampler::Took(int32_t rows, size_t ops, int64_t ticks, int64_t stamping) {
  if (ticks <= 0) return;
  Kind& kind = KindOf(rows);
  const double weight = kind.computing > 0 ? kNewest : 1;
  const double recording = static_cast<double>(ops) * ticks_of_op_ + static_cast<double>(stamping);
  kind.recording += weight * (recording - kind.recording);
  kind.computing += weight * (static_cast<double>(ticks) - kind.computing);
}

}  // namespace withy::engine
