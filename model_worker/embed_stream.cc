#include "model_worker/embed_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "engine/session/scored_text.h"
#include "engine/session/text_scorer.h"
#include "model_worker/score_stream.h"
#include "policy/constants.h"
#include "rpc/status.h"

namespace withy::model_worker {
namespace {

// Vectors of a message: 2048 of 8192 numbers are 128 messages, half of what the queue takes before
// a push waits; progress is told while the other half is free.
constexpr size_t kMessageBytes = size_t{512} << 10;

absl::StatusOr<std::vector<int32_t>> IdsOf(int index, const v1::EmbedInput& input,
                                           const serving::SessionEnv& env,
                                           const engine::CancelCheck* cancelled) {
  if (input.has_tokens()) {
    std::vector<int32_t> ids;
    for (const uint32_t id : input.tokens().ids()) {
      if (id >= static_cast<uint32_t>(env.model.vocab_size)) {
        return absl::InvalidArgumentError(
            absl::StrCat("inputs[", index, "] has the token ", id, ": ", env.model.name,
                         " has the tokens 0 to ", env.model.vocab_size - 1));
      }
      ids.push_back(static_cast<int32_t>(id));
    }
    return ids;
  }
  if (input.text().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("inputs[", index, "] is empty: give a text, or at least one token"));
  }
  WITHY_ASSIGN_OR_RETURN(engine::ScoredText text,
                         engine::EncodeScoredText(env.encoder, {}, input.text(), cancelled));
  return std::move(text.ids);
}

}  // namespace

absl::StatusOr<std::unique_ptr<serving::TextEmbedder>> EmbedderFromWire(
    const v1::EmbedRequest& request, const serving::SessionEnv& env, engine::Model& model,
    const engine::CancelCheck* cancelled) {
  std::vector<std::vector<int32_t>> texts;
  size_t longest = 0;
  for (int i = 0; i < request.inputs_size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(texts.emplace_back(), IdsOf(i, request.inputs(i), env, cancelled));
    longest = std::max(longest, texts.back().size());
  }
  WITHY_ASSIGN_OR_RETURN(
      std::unique_ptr<serving::TextEmbedder> embedder,
      serving::TextEmbedder::Create(model, std::move(texts), static_cast<int32_t>(env.window)));
  const engine::ScoreContestant contestant{.model = &model};
  const size_t kv_bytes =
      engine::TextScorer::KvBytes({&contestant, 1}, static_cast<int32_t>(longest));
  if (kv_bytes > kMostScoreKvBytes) {
    return absl::OutOfRangeError(
        absl::StrCat("inputs: KV of ", longest, " tokens takes ", kv_bytes >> 20,
                     " MiB, and at most ", kMostScoreKvBytes >> 20,
                     " MiB are spent on a text: send its parts as inputs of their own"));
  }
  return embedder;
}

void EmbedStream::Embedded(std::vector<serving::TextVector> vectors, uint64_t computed_tokens) {
  gathered_.set_computed_tokens(computed_tokens);
  for (const serving::TextVector& vector : vectors) {
    v1::Embedding& wire = *gathered_.add_embeddings();
    wire.mutable_values()->Add(vector.values.begin(), vector.values.end());
    wire.set_tokens(static_cast<uint32_t>(vector.tokens));
    gathered_bytes_ += vector.values.size() * sizeof(float);
    if (gathered_bytes_ >= kMessageBytes) Send();
  }
  if (pace_.Due(Clock::Real().SteadyNanos()) && queue_->HasRoom()) Send();
}

void EmbedStream::Send() {
  v1::EmbedResponse next;
  next.set_computed_tokens(gathered_.computed_tokens());
  gathered_.Swap(&next);
  queue_->Push(std::move(next));
  gathered_bytes_ = 0;
}

void EmbedStream::Finished() {
  if (gathered_.embeddings_size() > 0) Send();
  queue_->Close(absl::OkStatus());
}

void EmbedStream::Failed(const absl::Status& status) {
  const bool retry = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
  queue_->Close(retry ? rpc::WithRetryAfter(status, policy::kEmbedRetryMs) : status);
}

}  // namespace withy::model_worker
