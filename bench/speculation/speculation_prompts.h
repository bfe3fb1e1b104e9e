// Prompts of the speculation benchmark for a general model, by kind: what lookup gains differs by
// how much of the answer stands in the prompt. Neighbour: speculation.cc asks them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace withy::bench {

struct PromptKind {
  std::string_view name;
  std::vector<std::string> prompts;
};

// "chat", "extraction", "edits", "structured" and "creative".
const std::vector<PromptKind>& SpeculationPrompts();

}  // namespace withy::bench
