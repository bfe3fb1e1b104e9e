// Shows the prefill progress of a long prompt on stderr. Neighbour: output.h draws the bar.
#pragma once

#include <optional>

#include "cli/output.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::cli {

// For one answer. Drawn only on a terminal, after the first second; removed before the answer's
// first word. Single-threaded.
class PromptProgressBar {
 public:
  explicit PromptProgressBar(const Clock& clock = Clock::Real()) : bar_(clock) {}
  void Show(const v1::GenerateResponse& message);
  void Remove() { bar_.reset(); }

 private:
  std::optional<ProgressBar> bar_;
};

}  // namespace withy::cli
