#include "cli/progress.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace withy::cli {

void PromptProgressBar::Show(const v1::GenerateResponse& message) {
  if (message.has_delta() || message.has_finished()) Remove();
  if (!message.has_progress() || !bar_.has_value()) return;
  const v1::PromptProgress& progress = message.progress();
  bar_->Update(
      static_cast<double>(progress.computed_tokens()) / std::max(1u, progress.prefill_tokens()),
      absl::StrCat("reading the prompt: ", progress.computed_tokens(), " of ",
                   progress.prefill_tokens(), " tokens"));
}

}  // namespace withy::cli
