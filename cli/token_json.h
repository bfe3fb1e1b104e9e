// An answer's tokens as JSON with their text; protobuf's own JSON would show bytes as base64.
// Neighbour: generate.cc prints it.
#pragma once

#include <string>

#include "withy/v1/llm_service.pb.h"

namespace withy::cli {

// {"tokens":[{"id":5,"text":" the","logprob":-0.1,"alternatives":[…]}]}. A token that is not valid
// UTF-8 on its own also has "bytes":[226,130]; its "text" shows these bytes as U+FFFD.
std::string TokensJson(const google::protobuf::RepeatedPtrField<v1::Token>& tokens);

}  // namespace withy::cli
