// Prompts of a user's own, of which a TLM is trained for any model: the file, and what the model
// itself answers to them. Neighbours: target.h answers and judges, job.cc trains.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "offline/corpus/record.h"

namespace withy::tlm {

// Longest prompt that is used; longer ones take long to label.
inline constexpr size_t kMaxOwnPromptBytes = 8192;

// One line: {"prompt": "..."}, which becomes the user's message, or {"messages": [{"role": "...",
// "content": "..."}, ...]}, which ends with the user's. Other keys are ignored. The record has no
// answer. Errors: INVALID_ARGUMENT naming `where` and the problem.
absl::StatusOr<corpus::Record> ParseOwnPrompt(std::string_view line, std::string_view where);

struct OwnPrompts {
  std::vector<corpus::Record> records;
  int64_t too_long = 0;  // that were left out
};

// The first `most` prompts of at most kMaxOwnPromptBytes; empty lines are skipped. Errors:
// NOT_FOUND; as ParseOwnPrompt, with the line number; INVALID_ARGUMENT if there is no prompt.
absl::StatusOr<OwnPrompts> ReadOwnPrompts(const std::string& path, int64_t most);

}  // namespace withy::tlm
