// Gives texts their vectors on the engine thread: at once while no call has anything to compute
// there, else in pieces between the calls' steps, which take a small share of the time. The
// requests come one after the other. Neighbours: text_embedder.h computes; call/scheduler.h calls
// it; model_worker/embed_stream.h is told.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "serving/embedding/text_embedder.h"
#include "telemetry/recorder.h"

namespace withy::serving {

// Told on the engine thread; must return at once. Finished or Failed is the last call.
class EmbedSink {
 public:
  virtual ~EmbedSink() = default;
  // `vectors`: of the texts that were finished since the last call; may be none.
  virtual void Embedded(std::vector<TextVector> vectors, uint64_t computed_tokens) = 0;
  virtual void Finished() = 0;
  virtual void Failed(const absl::Status& status) = 0;
  virtual bool HasLeft() const = 0;
};

// What the engine thread does otherwise.
enum class EngineUse { kIdle, kSteps, kInterrupted };

// For the engine thread.
class IdleEmbedder {
 public:
  static constexpr size_t kMostWaiting = 32;  // requests

  // Counter: withy_embedded_tokens_total.
  IdleEmbedder(Clock& clock, telemetry::Recorder& recorder);

  // Fails at once: RESOURCE_EXHAUSTED while kMostWaiting requests are there, or as Close said.
  void Start(std::unique_ptr<TextEmbedder> embedder, std::shared_ptr<EmbedSink> sink);
  // Goes on with the first request until a piece is done or `*interrupt` became true. Returns
  // whether it computed.
  bool Round(EngineUse use, const std::atomic<bool>* interrupt);
  // How long the engine thread may wait until the next round.
  absl::Duration IdleWait() const {
    return requests_.empty() ? absl::InfiniteDuration() : absl::ZeroDuration();
  }
  // Fails the requests that are there and all later ones.
  void Close(const absl::Status& status);

 private:
  struct Request {
    std::unique_ptr<TextEmbedder> embedder;
    std::shared_ptr<EmbedSink> sink;
  };
  void DropThoseThatLeft();
  // False: `*interrupt` became true.
  bool RunSlice(const std::atomic<bool>* interrupt);

  Clock& clock_;
  telemetry::Counter& tokens_;
  absl::Status closed_;
  std::deque<Request> requests_;
  uint64_t counted_tokens_ = 0;  // of the first one
  int64_t piece_ended_ns_ = 0;   // of the last piece beside calls
};

}  // namespace withy::serving
