// Tokens of an answer as JSON, with their text: the contract's own JSON would show bytes as base64.
// Neighbour: generate.cc prints it.
#pragma once

#include <string>

#include "withy/v1/llm_service.pb.h"

namespace withy::cli {

// {"tokens":[{"id":5,"text":" the","logprob":-0.1,"alternatives":[…]}]}. A token that is no UTF-8
// by itself, a part of a character, has "bytes":[226,130] beside a "text" that shows them as
// U+FFFD.
std::string TokensJson(const google::protobuf::RepeatedPtrField<v1::Token>& tokens);

}  // namespace withy::cli
