// Converts a call's outcome to messages: the last message of its stream, and the stored result that
// a retry gets.
#pragma once

#include <string>

#include "engine/tokenizer/tokenizer.h"
#include "model_worker/call.h"
#include "model_worker/lease.h"
#include "withy/v1/context_store.pb.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::model_worker {

// Latency counts from Submit in this process; the orchestrator adds its own part and the SLO.
v1::GenerateFinished ToWire(const CallOutcome& outcome);

// The commit as the store takes it; `model` names the model in the stored result.
v1::LeaseCommit ToWire(const LeaseCommit& commit, const engine::Tokenizer& tokenizer,
                       const std::string& model);

}  // namespace withy::model_worker
