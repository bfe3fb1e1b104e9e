// Deltas of one answer that follow each other closely, told as one.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/delta_interval.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::model_worker {

// Not thread-safe.
class DeltaGatherer {
 public:
  // So many are told at once: the last token of a short answer would wait for the end of it, which
  // takes another step.
  static constexpr int kFirst = 6;

  // What is to be told now: `delta`, behind those that were kept back, if it is one of the first,
  // or once kDeltaIntervalNs have passed since something was told; else nothing, and it is kept
  // back.
  std::optional<v1::GenerateDelta> Add(v1::GenerateDelta delta, int64_t now_ns) {
    if (kept_.has_value()) {
      delta.mutable_text()->insert(0, kept_->text());
      kept_->MergeFrom(delta);
    } else {
      kept_ = std::move(delta);
    }
    if (told_ >= kFirst && now_ns - told_ns_ < kDeltaIntervalNs) return std::nullopt;
    return Take(now_ns);
  }
  // What was kept back, if anything was.
  std::optional<v1::GenerateDelta> Take(int64_t now_ns) {
    if (kept_.has_value()) {
      ++told_;
      told_ns_ = now_ns;
    }
    return std::exchange(kept_, std::nullopt);
  }

 private:
  std::optional<v1::GenerateDelta> kept_;
  int64_t told_ = 0;
  int64_t told_ns_ = 0;  // when, the last time
};

}  // namespace withy::model_worker
