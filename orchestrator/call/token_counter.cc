#include "orchestrator/call/token_counter.h"

#include "base/status.h"
#include "orchestrator/call/digest.h"

namespace withy::orchestrator {

void FillKept(const engine::PrunedPrompt& pruned,
              google::protobuf::RepeatedPtrField<v1::KeptSpans>* wire) {
  if (pruned.pruned_words == 0) return;
  for (const std::vector<engine::ByteSpan>& spans : pruned.kept) {
    v1::KeptSpans* message = wire->Add();
    for (const engine::ByteSpan& span : spans) {
      v1::ByteSpan* out = message->add_spans();
      out->set_begin(span.begin);
      out->set_end(span.end);
    }
  }
}

TokenCounter::TokenCounter(const v1::Config& config, Backends& backends, Workers& workers)
    : backends_(backends), workers_(workers), counter_(PromptCounter::Open(config)) {}

absl::StatusOr<v1::TokenizeResponse> TokenCounter::CountCall(
    policy::Lane lane, const WorkerInfo& worker, const std::string& app_id,
    const v1::GenerateRequest& request, absl::Time deadline, const engine::CancelCheck& over,
    const engine::PrunedPrompt* pruned) {
  v1::TokenizeRequest count;
  *count.mutable_prompt() = request.prompt();
  count.set_app_id(app_id);
  count.set_context_id(request.context_id());
  count.set_truncation(request.truncation());
  if (pruned != nullptr) FillKept(*pruned, count.mutable_kept());
  const bool stateless = request.context_id().empty();
  if (!stateless && !request.request_id().empty()) {
    count.set_request_id(request.request_id());
    count.set_request_digest(RequestDigest(request));
  }
  const bool whole = stateless && request.truncation() != v1::TRUNCATION_OLDEST;
  if (whole && worker != nullptr && counter_ != nullptr && counter_->Fits(*worker)) {
    WITHY_ASSIGN_OR_RETURN(v1::TokenizeResponse counted,
                           counter_->Count(count, over ? &over : nullptr));
    counted.set_instance(worker->instance());
    return counted;
  }
  return backends_.Tokenize(lane, count, deadline, over);
}

absl::StatusOr<std::string> TokenCounter::TextOf(const v1::GetWorkerInfoResponse& worker,
                                                 std::span<const int32_t> ids) const {
  if (counter_ != nullptr && counter_->Fits(worker)) return counter_->TextOf(ids);
  return absl::UnimplementedError(
      "prompt: tokens are only taken for the target, where the orchestrator can read its file: "
      "send the text");
}

absl::StatusOr<v1::CountTokensResponse> TokenCounter::CountTokens(
    const std::string& app_id, const v1::CountTokensRequest& request, absl::Time deadline,
    const engine::CancelCheck& over) {
  WITHY_ASSIGN_OR_RETURN(const policy::Lane lane, workers_.FindLane(request.model(), deadline));
  if (lane == policy::Lane::kDraft) {  // what it says when it serves no model is of use
    WITHY_RETURN_IF_ERROR(workers_.Get(lane, deadline).status());
  }
  v1::TokenizeRequest forwarded;
  forwarded.set_app_id(app_id);
  *forwarded.mutable_prompt() = request.prompt();
  WITHY_ASSIGN_OR_RETURN(const v1::TokenizeResponse counted,
                         backends_.Tokenize(lane, forwarded, deadline, over));
  v1::CountTokensResponse response;
  response.set_tokens(counted.prompt_tokens());
  return response;
}

}  // namespace withy::orchestrator
