// The form of an answer between the contract's message and the engine's struct. Neighbours:
// grammar/format_check.h checks it; wire.h has the rest of a request.
#pragma once

#include <string>

#include "engine/sampling/output_grammar.h"
#include "withy/v1/types.pb.h"

namespace withy::engine {

// Free where no form is set. `tools_json`: the request's tools, which calls are of. Not checked.
OutputFormat FormatFromWire(const v1::OutputFormat& wire, const std::string& tools_json);

}  // namespace withy::engine
