// Joins deltas of one answer that follow each other closely into one message.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/contract_limits.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::model_worker {

// Not thread-safe.
class DeltaGatherer {
 public:
  // The first deltas that are passed on at once: joined, the last token of a short answer would
  // wait for the end of the answer, which takes another step.
  static constexpr int kFirst = 6;

  // Returns what is to be sent now: the deltas kept back and `delta`, if it is one of the first or
  // kDeltaIntervalNs have passed since the last one was sent. Else nothing, and `delta` is kept
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
  // Returns what was kept back; none if nothing was.
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
