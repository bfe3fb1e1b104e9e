// Texts of withyctl explain: why a call took its time. Neighbour: explain.cc runs the command.
#pragma once

#include <string>

#include "withy/v1/profiler.pb.h"

namespace withy::cli {

// What happened to the call, and what made it slow, a line each. Pure.
std::string ExplainText(const v1::ExplainCallResponse& told);

// A table of calls in the given order; a sentence if there are none. `now_ns`: of the steady clock.
// Pure.
std::string CallsText(const v1::ListCallsResponse& calls, int64_t now_ns);

}  // namespace withy::cli
