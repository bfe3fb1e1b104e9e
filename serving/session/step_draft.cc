#include "serving/session/step_draft.h"

#include <algorithm>

#include "base/status.h"

namespace withy::serving {

absl::Status StepDraft::Set(std::span<const policy::DraftedToken> tokens) {
  if (!tokens_.answer_begun || answer_.finished()) {
    return absl::FailedPreconditionError("a draft needs an answer that has begun and goes on");
  }
  WITHY_ASSIGN_OR_RETURN(tree_, policy::TokenTree::Create(tokens, model_.vocab_size, room().depth,
                                                          tokens_.count() - 1));
  return absl::OkStatus();
}

// The last token of an answer is sampled and not computed.
DraftRoom StepDraft::room() const {
  const int32_t length = tokens_.count();
  const int32_t left =
      std::min(request_.answer.max_tokens - answer_.tokens(), tokens_.window - length);
  return {.depth = std::max(0, left - 1), .slots = std::max(0, kv_.blocks().slots() - length)};
}

int32_t StepDraft::slots_ahead() const {
  return std::max(rows(), tokens_.answer_begun ? ahead_ : 0);
}

void StepDraft::ClearDensity() {
  density_chunks_ = static_cast<size_t>(kv_.blocks().chunks());
  density_.assign(static_cast<size_t>(rows()) * density_chunks_, 0);
}

std::span<float> StepDraft::DensityOfRow(int32_t row) {
  return std::span(density_).subspan(static_cast<size_t>(row - 1) * density_chunks_,
                                     density_chunks_);
}

engine::Row StepDraft::LastTokenRow() const {
  return {
      .token = tokens_.ids.back(), .position = tokens_.count() - 1, .level = 0, .context_level = 0};
}

engine::ContextView StepDraft::View() {
  engine::ContextView view = kv_.blocks().View(kv_.holes().SkipPresent(0));
  view.density = {};
  return view;
}

}  // namespace withy::serving
