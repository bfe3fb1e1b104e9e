// ModelWorker.Embed on the wire: a request becomes the embedder of its texts, and vectors become
// messages. Neighbours: service.cc takes the request, serving/embedding/ computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/cancel.h"
#include "rpc/write_queue.h"
#include "serving/embedding/idle_embedder.h"
#include "serving/session/session.h"
#include "wire/wire.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::model_worker {

// Encodes the texts and checks them against the model. Errors: INVALID_ARGUMENT naming the input
// (empty, no token of the vocabulary), OUT_OF_RANGE (an input is longer than the window, or its KV
// than kMostScoreKvBytes), CANCELLED.
absl::StatusOr<std::unique_ptr<serving::TextEmbedder>> EmbedderFromWire(
    const v1::EmbedRequest& request, const serving::SessionEnv& env, engine::Model& model,
    const engine::CancelCheck* cancelled);

// Gathers vectors, so that all messages of a request fit the queue: the engine thread never waits
// for a reader.
class EmbedStream final : public serving::EmbedSink {
 public:
  using Queue = rpc::WriteQueue<v1::EmbedResponse>;

  explicit EmbedStream(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}

  void Embedded(std::vector<serving::TextVector> vectors, uint64_t computed_tokens) override;
  void Finished() override;
  void Failed(const absl::Status& status) override;
  bool HasLeft() const override { return queue_->cancelled(); }

 private:
  void Send();

  const std::shared_ptr<Queue> queue_;
  v1::EmbedResponse gathered_;
  size_t gathered_bytes_ = 0;
  engine::ProgressPace pace_;
};

}  // namespace withy::model_worker
