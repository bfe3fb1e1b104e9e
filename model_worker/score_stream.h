// ModelWorker.Score on the wire: a request becomes the scorer of its text, and what is scored
// becomes messages. Neighbours: service.cc takes the request, idle_scorer.h computes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/session/text_scorer.h"
#include "engine/tokenizer/cancel.h"
#include "engine/tokenizer/tokenizer.h"
#include "rpc/write_queue.h"
#include "serving/call/idle_scorer.h"
#include "serving/session/session.h"
#include "wire/wire.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::model_worker {

// KV of one text, with its reference's, at most: beside the arena, in ordinary memory.
inline constexpr size_t kMostScoreKvBytes = size_t{512} << 20;

// Encodes the text and checks it against the model. Errors: INVALID_ARGUMENT naming the field
// (prompt, text, level, KV format, window_tokens, logprobs), OUT_OF_RANGE (the text is longer than
// the window, or its KV than kMostScoreKvBytes, and `window_tokens` is 0), CANCELLED.
absl::StatusOr<std::unique_ptr<engine::TextScorer>> ScorerFromWire(
    const v1::ScoreRequest& request, const serving::SessionEnv& env, engine::Model& model,
    const engine::CancelCheck* cancelled);

// The one place for a text that is scored. Any thread.
class ScorePlace {
 public:
  [[nodiscard]] bool Take() { return !taken_.exchange(true); }
  void Leave() { taken_ = false; }

 private:
  std::atomic<bool> taken_{false};
};

// Leaves the place before the stream is closed, so that its reader may go on with the next text.
class ScoreStream final : public serving::ScoreSink {
 public:
  using Queue = rpc::WriteQueue<v1::ScoreResponse>;

  ScoreStream(std::shared_ptr<Queue> queue, std::shared_ptr<ScorePlace> place,
              const v1::ScoreRequest& request, const engine::Tokenizer& tokenizer);

  void Scored(std::span<const engine::Sample> tokens,
              const serving::ScoreProgress& progress) override;
  void Finished(const std::vector<engine::TextScore>& scores) override;
  void Failed(const absl::Status& status) override;
  bool HasRoom() const override { return queue_->HasRoom(); }
  bool HasLeft() const override { return queue_->cancelled(); }

 private:
  const std::shared_ptr<Queue> queue_;
  const std::shared_ptr<ScorePlace> place_;
  const engine::Tokenizer& tokenizer_;
  engine::SamplingParams reported_;  // what of a token is told
  engine::ProgressPace pace_;
  uint64_t computed_tokens_ = 0;
};

}  // namespace withy::model_worker
