// Scores a text on the engine thread while no call has anything to compute there: a pass of it is
// left as soon as something arrives, and resumed once there is nothing else again. One text at a
// time. Neighbours: engine/session/text_scorer.h computes; scheduler.h calls it; score_stream.h is
// told.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/session/text_scorer.h"

namespace withy::serving {

struct ScoreProgress {
  double share = 0;              // of the text, 0 .. 1
  uint64_t computed_tokens = 0;  // as TextScorer's
};

// Told on the engine thread; must return at once. Finished or Failed is the last call.
class ScoreSink {
 public:
  virtual ~ScoreSink() = default;
  // `tokens`: since the last call, if the scorer reports them.
  virtual void Scored(std::span<const engine::Sample> tokens, const ScoreProgress& progress) = 0;
  virtual void Finished(const std::vector<engine::TextScore>& scores) = 0;
  virtual void Failed(const absl::Status& status) = 0;
  // Whether a message would be sent; nothing is computed meanwhile.
  virtual bool HasRoom() const = 0;
  virtual bool HasLeft() const = 0;
};

// For the engine thread.
class IdleScorer {
 public:
  // How often a full sink is looked at.
  static constexpr absl::Duration kReaderPoll = absl::Milliseconds(5);

  explicit IdleScorer(Clock& clock) : clock_(clock) {}

  // Fails at once: RESOURCE_EXHAUSTED while another text is scored, or as Close said.
  void Start(std::unique_ptr<engine::TextScorer> scorer, std::shared_ptr<ScoreSink> sink);
  // Goes on with the text, if there is one and `may_compute`, until a piece is done or `*interrupt`
  // became true. Returns whether it computed.
  bool Round(bool may_compute, const std::atomic<bool>* interrupt);
  // How long the engine thread may wait until the next round.
  absl::Duration IdleWait() const {
    return sink_ == nullptr ? absl::InfiniteDuration() : kReaderPoll;
  }
  // Fails the text that is scored and all later ones.
  void Close(const absl::Status& status);

 private:
  bool AwaitsReader();
  void Fail(const absl::Status& status);

  Clock& clock_;
  absl::Status closed_;
  std::unique_ptr<engine::TextScorer> scorer_;  // both or neither
  std::shared_ptr<ScoreSink> sink_;
  int64_t full_since_ns_ = 0;  // the sink has no room; 0: it has
};

}  // namespace withy::serving
