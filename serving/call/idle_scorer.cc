#include "serving/call/idle_scorer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"

namespace withy::serving {

void IdleScorer::Start(std::unique_ptr<engine::TextScorer> scorer,
                       std::shared_ptr<ScoreSink> sink) {
  if (!closed_.ok()) return sink->Failed(closed_);
  if (sink_ != nullptr) {
    return sink->Failed(absl::ResourceExhaustedError("another text is being scored"));
  }
  scorer_ = std::move(scorer);
  sink_ = std::move(sink);
  full_since_ns_ = 0;
}

bool IdleScorer::Round(bool may_compute, const std::atomic<bool>* interrupt) {
  if (sink_ == nullptr) return false;
  if (sink_->HasLeft()) {
    Fail(absl::CancelledError("the stream of the text that was scored has ended"));
    return false;
  }
  if (AwaitsReader() || !may_compute) return false;
  const absl::StatusOr<bool> scored = scorer_->Run(interrupt);
  if (!scored.ok()) {
    Fail(scored.status());
    return true;
  }
  if (!*scored) return true;
  sink_->Scored(scorer_->Fresh(), {scorer_->progress(), scorer_->computed_tokens()});
  if (scorer_->finished()) {
    const auto scorer = std::move(scorer_);
    std::exchange(sink_, nullptr)->Finished(scorer->Scores());
  }
  return true;
}

// Whether the reader is behind; one that has been for too long loses the text.
bool IdleScorer::AwaitsReader() {
  if (sink_->HasRoom()) {
    full_since_ns_ = 0;
    return false;
  }
  const int64_t now = clock_.SteadyNanos();
  if (full_since_ns_ == 0) full_since_ns_ = now;
  if (now - full_since_ns_ > kStalledReaderNs) {
    Fail(absl::ResourceExhaustedError(absl::StrCat("scoring was ended: nothing of it was read for ",
                                                   kStalledReaderNs / kNanosPerSecond,
                                                   " s; read the stream as it comes")));
  }
  return true;
}

void IdleScorer::Fail(const absl::Status& status) {
  scorer_ = nullptr;
  std::exchange(sink_, nullptr)->Failed(status);
}

void IdleScorer::Close(const absl::Status& status) {
  closed_ = status;
  if (sink_ != nullptr) Fail(status);
}

}  // namespace withy::serving
