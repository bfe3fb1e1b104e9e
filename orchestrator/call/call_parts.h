// What answering a call needs of the orchestrator, borrowed from gateway.h, which owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "engine/tokenizer/cancel.h"
#include "orchestrator/app_records.h"
#include "orchestrator/auditor.h"
#include "orchestrator/board/backends.h"
#include "orchestrator/board/board_watch.h"
#include "orchestrator/board/prober.h"
#include "orchestrator/board/tlm_of_model.h"
#include "orchestrator/board/workers.h"
#include "orchestrator/call/app_budgets.h"
#include "orchestrator/call/call_registry.h"
#include "orchestrator/call/calls.h"
#include "orchestrator/call/token_counter.h"
#include "orchestrator/metrics.h"
#include "telemetry/recorder.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// Everything is thread-safe and outlives the calls.
struct CallParts {
  const Clock& clock;
  telemetry::Recorder& recorder;
  Metrics& metrics;
  Backends& backends;
  AppRecords& apps;
  Workers& workers;
  TokenCounter& counter;
  CallTable& calls;
  CallRegistry& registry;
  BoardWatch& board;
  AppBudgets& budgets;
  TlmOfModel& tlm;
  Auditor* auditor;  // null: none
  Prober* prober;    // null: none
};

// A Generate call as it arrived.
struct IncomingCall {
  uint64_t id = 0;         // of CallTable::Arrive
  int64_t arrived_ns = 0;  // steady clock
  Caller caller = {};
  // Whether nobody waits for it any more; asked while its prompt is encoded. Empty: never.
  engine::CancelCheck over = nullptr;
  bool record_without_thought = false;  // RunRequest
};

// Takes one message of the answer; false when nobody reads any more.
using AnswerSink = std::function<bool(v1::GenerateResponse)>;

}  // namespace withy::orchestrator
