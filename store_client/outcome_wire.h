// Converts a call's outcome to messages: the last message of its stream, and the stored result that
// a retry gets.
#pragma once

#include <string>

#include "engine/tokenizer/tokenizer.h"
#include "serving/call/call.h"
#include "serving/session/lease.h"
#include "withy/v1/context_store.pb.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::store_client {

// Latency counts from Submit in this process; the orchestrator adds its own part and the SLO.
v1::GenerateFinished ToWire(const serving::CallOutcome& outcome);

// The commit as the store takes it; `model` names the model in the stored result.
v1::LeaseCommit ToWire(const serving::LeaseCommit& commit, const engine::Tokenizer& tokenizer,
                       const std::string& model);

}  // namespace withy::store_client
