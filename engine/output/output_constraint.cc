#include "engine/output/output_constraint.h"

#include <algorithm>

#include "engine/chat/thoughts.h"

namespace withy::engine {

OutputConstraint::OutputConstraint(const OutputGrammar* grammar, const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), state_(grammar == nullptr ? nullptr : grammar->Begin()) {
  if (active()) mask_.resize(MaskWords(grammar->vocab_size()));
}

void OutputConstraint::BeginBehind(std::span<const int32_t> prompt) {
  if (!active()) return;
  channels_ = Channels::Of(tokenizer_);
  if (!channels_) return;
  channels_->BeginBehind(prompt);
  in_thought_ = !channels_->InAnswer();
}

void OutputConstraint::AllowThought() {
  std::fill(mask_.begin(), mask_.end(), ~uint32_t{0});
  for (const int32_t end : tokenizer_.end_of_generation_ids()) {
    mask_[static_cast<size_t>(end) / 32] &= ~(uint32_t{1} << (end % 32));
  }
}

void OutputConstraint::FillMask() {
  if (filled_) return;
  filled_ = true;
  in_thought_ ? AllowThought() : state_->FillMask(mask_);
}

absl::StatusOr<std::span<const uint32_t>> OutputConstraint::Mask() {
  if (!active()) return std::span<const uint32_t>();
  FillMask();
  if (std::all_of(mask_.begin(), mask_.end(), [](uint32_t word) { return word == 0; })) {
    return absl::FailedPreconditionError(
        "output_format: the model's vocabulary has no token for what must come next; allow other "
        "characters there");
  }
  return std::span<const uint32_t>(mask_);
}

void OutputConstraint::Accept(int32_t token) {
  if (!active()) return;
  filled_ = false;
  if (!in_thought_) {
    state_->Accept(token);
    return;
  }
  const bool control = tokenizer_.IsControl(token);
  if (channels_) {
    channels_->Push(token, control ? "" : std::string(tokenizer_.TokenBytes(token)));
    in_thought_ = !channels_->InAnswer();
    return;
  }
  thought_tail_ += control ? tokenizer_.TokenText(token) : tokenizer_.TokenBytes(token);
  in_thought_ = thought_tail_.find(kThoughtEnd) == std::string::npos;
  if (thought_tail_.size() > kThoughtEnd.size()) {
    thought_tail_.erase(0, thought_tail_.size() - kThoughtEnd.size());
  }
}

bool OutputConstraint::Over() {
  if (!active() || in_thought_ || !state_->MayEnd()) return false;
  FillMask();
  const std::span<const int32_t> ends = tokenizer_.end_of_generation_ids();
  size_t place = 0;
  return std::all_of(mask_.begin(), mask_.end(), [&](uint32_t word) {
    const auto first = static_cast<int32_t>(32 * place++);
    for (const int32_t end : ends) {
      if (end >= first && end < first + 32) word &= ~(uint32_t{1} << (end - first));
    }
    return word == 0;
  });
}

bool OutputConstraint::Try(int32_t token) {
  if (!active() || in_thought_) return true;
  return state_->Accept(token);
}

void OutputConstraint::TakeBack(int32_t tokens) {
  if (active() && !in_thought_ && tokens > 0) state_->RollBack(tokens);
}

std::vector<int32_t> OutputConstraint::Forced(size_t limit) {
  if (!active() || in_thought_) return {};
  const std::string text = state_->ForcedText();
  if (text.empty()) return {};
  std::vector<int32_t> tokens = tokenizer_.Encode(text, {.add_bos = false, .continues = true});
  if (!tokens.empty()) tokens.pop_back();
  if (tokens.size() > limit) tokens.resize(limit);
  return tokens;
}

}  // namespace withy::engine
