#include "engine/cuda/gpu/launch_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace withy::engine::cuda {
namespace {

constexpr size_t kAlignment = 16;

uint64_t Mix(uint64_t hash, uint64_t v) {
  hash = (hash ^ v) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

}  // namespace

void LaunchList::Add(const LaunchShape& shape, const void* args, size_t bytes) {
  const size_t at = bytes_.size();
  bytes_.resize(at + (bytes + kAlignment - 1) / kAlignment * kAlignment);
  std::memcpy(bytes_.data() + at, args, bytes);
  launches_.push_back({shape, at});
  hash_ = Mix(hash_, reinterpret_cast<uintptr_t>(shape.kernel));
  for (size_t i = at; i < bytes_.size(); i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, bytes_.data() + i, sizeof word);
    hash_ = Mix(hash_, word);
  }
}

void LaunchList::Clear() {
  launches_.clear();
  bytes_.clear();
  hash_ = 0;
}

bool LaunchList::operator==(const LaunchList& other) const {
  return hash_ == other.hash_ && launches_ == other.launches_ && bytes_ == other.bytes_;
}

void LaunchQueue::TakeBytes(const LaunchShape& shape, const void* args, size_t bytes) {
  if (collects_) {
    list_.Add(shape, args, bytes);
  } else {
    Start(shape, args);
  }
}

void LaunchQueue::Collect() {
  list_.Clear();
  collects_ = true;
}

void LaunchQueue::Drop() {
  list_.Clear();
  collects_ = false;
}

absl::Status LaunchQueue::Submit() {
  collects_ = false;
  auto found = std::find_if(kept_.begin(), kept_.end(),
                            [&](const Kept& kept) { return kept.list == list_; });
  if (found == kept_.end()) {
    for (size_t i = 0; i < list_.size(); ++i) Start(list_.shape(i), list_.args(i));
    kept_.push_front({std::exchange(list_, {}), nullptr});
    if (kept_.size() > kMostGraphs) kept_.pop_back();
    return absl::OkStatus();
  }
  kept_.splice(kept_.begin(), kept_, found);
  Kept& kept = kept_.front();
  if (kept.graph == nullptr && records_) {
    kept.graph = Record(kept.list);
    records_ = kept.graph != nullptr;
  }
  if (kept.graph != nullptr) {
    ++played_;
    return kept.graph->Play();
  }
  for (size_t i = 0; i < list_.size(); ++i) Start(list_.shape(i), list_.args(i));
  return absl::OkStatus();
}

}  // namespace withy::engine::cuda
