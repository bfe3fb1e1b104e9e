// How far the service is with a long prompt, on stderr. Neighbours: output.h draws the bar.
#pragma once

#include <optional>

#include "cli/output.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::cli {

// Of one answer. Drawn from the second second on, only on a terminal, and gone before the answer's
// first word. One thread.
class PromptProgressBar {
 public:
  explicit PromptProgressBar(const Clock& clock = Clock::Real()) : bar_(clock) {}
  void Show(const v1::GenerateResponse& message);
  void Remove() { bar_.reset(); }

 private:
  std::optional<ProgressBar> bar_;
};

}  // namespace withy::cli
