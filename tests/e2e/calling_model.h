// A model for tests of agents' loops, made by hand: whatever it is asked, it calls a tool, and once
// the conversation has a tool's result, it says what it saw.
#pragma once

#include <string>

namespace withy::e2e {

// What it generates first: a call of `look`, in two tokens, and then the end of its turn.
inline constexpr char kCallingText[] =
    "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"it\"}}\n</tool_call>";
// What it generates once there is a result.
inline constexpr char kCalledText[] = "It is a cat.";

// Path of its GGUF file, whose template is engine::kToolTemplate; made once.
const std::string& CallingModelPath();

}  // namespace withy::e2e
