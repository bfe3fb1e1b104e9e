#include "offline/tlm/text_windows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status.h"

namespace withy::tlm {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 20;
constexpr size_t kNeighbourhood = 4;  // batches from which one batch is drawn

}  // namespace

absl::StatusOr<TextWindows> TextWindows::Make(const engine::Tokenizer& tokenizer,
                                              const engine::TlmShape& shape,
                                              std::span<const Text> texts) {
  WITHY_ASSIGN_OR_RETURN(const engine::WindowMaker maker,
                         engine::WindowMaker::Create(tokenizer, shape, "TLM"));
  TextWindows made;
  std::vector<size_t> tokens;
  for (const Text& text : texts) {
    WITHY_ASSIGN_OR_RETURN(made.texts_.emplace_back(),
                           maker.Make(text.text, {}, text.words, kMaxTextBytes));
    tokens.push_back(made.texts_.back().tokens.size());
  }
  made.by_length_.resize(made.texts_.size());
  std::iota(made.by_length_.begin(), made.by_length_.end(), size_t{0});
  std::stable_sort(made.by_length_.begin(), made.by_length_.end(),
                   [&](size_t a, size_t b) { return tokens[a] < tokens[b]; });
  for (int32_t step = 1; step <= shape.slo_steps; ++step) {
    // Present: WindowMaker has checked it.
    made.ttft_.push_back(tokenizer.FindToken(engine::TtftToken(step)).value());
    made.tpot_.push_back(tokenizer.FindToken(engine::TpotToken(step)).value());
  }
  return made;
}

std::vector<std::vector<int32_t>> TextWindows::Windows(size_t text, const SloSteps& slo) const {
  std::vector<std::vector<int32_t>> windows = texts_[text].windows;
  for (std::vector<int32_t>& window : windows) {  // [CLS], TTFT token, TPOT token, text, [SEP]
    window[1] = ttft_[static_cast<size_t>(slo.ttft - 1)];
    window[2] = tpot_[static_cast<size_t>(slo.tpot - 1)];
  }
  return windows;
}

std::vector<float> TextWindows::Weights(size_t text) const {
  std::vector<float> weights;
  for (const std::vector<int32_t>& window : texts_[text].windows) {
    const auto tokens =
        static_cast<int32_t>(window.size()) - engine::kWindowPrefix - engine::kWindowSuffix;
    weights.push_back(static_cast<float>(std::max(1, tokens)));
  }
  return weights;
}

std::vector<size_t> TextWindows::Draw(int64_t count, corpus::Rng* rng) const {
  const size_t n = std::min(static_cast<size_t>(count), by_length_.size());
  const size_t near = std::min(kNeighbourhood * n, by_length_.size());
  const size_t begin = rng->Below(static_cast<uint32_t>(by_length_.size() - near + 1));
  std::vector<size_t> drawn(by_length_.begin() + static_cast<ptrdiff_t>(begin),
                            by_length_.begin() + static_cast<ptrdiff_t>(begin + near));
  rng->Shuffle(drawn);
  drawn.resize(n);
  return drawn;
}

SloSteps TextWindows::DrawSlo(corpus::Rng* rng) const {
  const int32_t ttft = rng->Between(1, slo_steps());
  return {ttft, rng->Between(1, slo_steps())};
}

engine::TlmSlo TextWindows::Slo(const SloSteps& steps) const {
  return {.ttft_ratio = static_cast<double>(steps.ttft) / slo_steps(),
          .tpot_ratio = static_cast<double>(steps.tpot) / slo_steps()};
}

}  // namespace withy::tlm
