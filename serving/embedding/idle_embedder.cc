#include "serving/embedding/idle_embedder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "policy/constants.h"

namespace withy::serving {

IdleEmbedder::IdleEmbedder(Clock& clock, telemetry::Recorder& recorder)
    : clock_(clock),
      tokens_(recorder.counter(
          {.name = "withy_embedded_tokens_total",
           .help = "Tokens computed for the vectors of texts (Embed, /v1/embeddings)."})) {}

void IdleEmbedder::Start(std::unique_ptr<TextEmbedder> embedder, std::shared_ptr<EmbedSink> sink) {
  if (!closed_.ok()) return sink->Failed(closed_);
  if (requests_.size() >= kMostWaiting) {
    return sink->Failed(absl::ResourceExhaustedError(absl::StrCat(
        requests_.size(), " requests wait for the vectors of their texts: retry later")));
  }
  requests_.push_back({std::move(embedder), std::move(sink)});
}

void IdleEmbedder::DropThoseThatLeft() {
  for (auto it = requests_.begin(); it != requests_.end();) {
    if (!it->sink->HasLeft()) {
      ++it;
      continue;
    }
    it->sink->Failed(absl::CancelledError("the stream of the texts' vectors has ended"));
    if (it == requests_.begin()) counted_tokens_ = 0;
    it = requests_.erase(it);
  }
}

bool IdleEmbedder::Round(EngineUse use, const std::atomic<bool>* interrupt) {
  if (requests_.empty()) return false;
  DropThoseThatLeft();
  if (requests_.empty() || use == EngineUse::kInterrupted) return false;
  const int64_t began_ns = clock_.SteadyNanos();
  if (use == EngineUse::kIdle) return RunSlice(interrupt);
  if (began_ns - piece_ended_ns_ < policy::kEmbedPauseMs * kNanosPerMilli) return false;
  const int64_t until_ns = began_ns + policy::kEmbedPieceMs * kNanosPerMilli;
  bool computed = false;
  while (!requests_.empty() && clock_.SteadyNanos() < until_ns && RunSlice(interrupt)) {
    computed = true;
  }
  if (computed) piece_ended_ns_ = clock_.SteadyNanos();
  return computed;
}

bool IdleEmbedder::RunSlice(const std::atomic<bool>* interrupt) {
  Request& first = requests_.front();
  const absl::StatusOr<bool> ran = first.embedder->Run(interrupt);
  const bool over = !ran.ok() || first.embedder->finished();
  const uint64_t computed = first.embedder->computed_tokens();
  tokens_.Add(computed - counted_tokens_);
  counted_tokens_ = over ? 0 : computed;
  if (ran.ok() && *ran) first.sink->Embedded(first.embedder->TakeVectors(), computed);
  if (over) {
    const Request ended = std::move(first);
    requests_.pop_front();
    if (ran.ok()) {
      ended.sink->Finished();
    } else {
      ended.sink->Failed(ran.status());
    }
  }
  return !ran.ok() || *ran;
}

void IdleEmbedder::Close(const absl::Status& status) {
  closed_ = status;
  while (!requests_.empty()) {
    const Request ended = std::move(requests_.front());
    requests_.pop_front();
    ended.sink->Failed(status);
  }
}

}  // namespace withy::serving
