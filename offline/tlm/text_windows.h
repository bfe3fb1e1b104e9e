// Windows of many texts, cut once by the engine's WindowMaker; the SLO tokens are set per use.
// Neighbours: score_stage.cc and decision_stage.cc draw batches from it. No LibTorch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/encoder/windows.h"
#include "engine/tokenizer/tokenizer.h"
#include "offline/corpus/rng.h"

namespace withy::tlm {

struct SloSteps {
  int32_t ttft = 1;  // 1 .. slo_steps
  int32_t tpot = 1;
};

// Immutable.
class TextWindows {
 public:
  struct Text {
    std::string_view text;
    std::span<const engine::ByteSpan> words;  // empty: engine::SplitWords
  };

  // Errors: as WindowMaker.
  static absl::StatusOr<TextWindows> Make(const engine::Tokenizer& tokenizer,
                                          const engine::TlmShape& shape,
                                          std::span<const Text> texts);

  size_t size() const { return texts_.size(); }
  const engine::WindowedText& At(size_t text) const { return texts_[text]; }
  // The windows of one text for an SLO.
  std::vector<std::vector<int32_t>> Windows(size_t text, const SloSteps& slo) const;
  // Weight of each window in the text's decision: its text tokens, as engine::Tlm averages them.
  std::vector<float> Weights(size_t text) const;

  // `count` different texts of similar length, to reduce padding.
  std::vector<size_t> Draw(int64_t count, corpus::Rng* rng) const;
  SloSteps DrawSlo(corpus::Rng* rng) const;
  int32_t slo_steps() const { return static_cast<int32_t>(ttft_.size()); }
  engine::TlmSlo Slo(const SloSteps& steps) const;

 private:
  std::vector<engine::WindowedText> texts_;
  std::vector<size_t> by_length_;
  std::vector<int32_t> ttft_;  // token of each step, from step 1
  std::vector<int32_t> tpot_;
};

}  // namespace withy::tlm
