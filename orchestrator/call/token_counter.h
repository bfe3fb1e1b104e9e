// Counts the tokens of a prompt for the worker that will answer it: here where the target's file
// can be read, else by asking the worker. Neighbours: prompt_counter.h counts here, backends.h
// asks.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/encoder/prune.h"
#include "engine/tokenizer/cancel.h"
#include "orchestrator/board/backends.h"
#include "orchestrator/board/workers.h"
#include "orchestrator/call/prompt_counter.h"
#include "withy/v1/config.pb.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// What a worker is to keep of a prompt; nothing for all of it.
void FillKept(const engine::PrunedPrompt& pruned,
              google::protobuf::RepeatedPtrField<v1::KeptSpans>* wire);

// Thread-safe.
class TokenCounter {
 public:
  TokenCounter(const v1::Config& config, Backends& backends, Workers& workers);

  // `request`'s prompt, as the worker would render it for this call. `worker`: that will run it;
  // null: not known. `pruned`: null for the whole prompt. CANCELLED once `over` holds.
  absl::StatusOr<v1::TokenizeResponse> CountCall(policy::Lane lane, const WorkerInfo& worker,
                                                 const std::string& app_id,
                                                 const v1::GenerateRequest& request,
                                                 absl::Time deadline,
                                                 const engine::CancelCheck& over,
                                                 const engine::PrunedPrompt* pruned = nullptr);
  // LlmService.CountTokens, of an app whose budgets were asked.
  absl::StatusOr<v1::CountTokensResponse> CountTokens(const std::string& app_id,
                                                      const v1::CountTokensRequest& request,
                                                      absl::Time deadline,
                                                      const engine::CancelCheck& over);
  // The raw text of a prompt that is given as tokens. `worker` runs it. Errors: as
  // PromptCounter::TextOf; UNIMPLEMENTED where the worker's file cannot be read here.
  absl::StatusOr<std::string> TextOf(const v1::GetWorkerInfoResponse& worker,
                                     std::span<const int32_t> ids) const;

 private:
  Backends& backends_;
  Workers& workers_;
  const std::unique_ptr<PromptCounter> counter_;  // null: the worker counts
};

}  // namespace withy::orchestrator
