// A grammar for tests without XGrammar: an answer is one of some texts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampling/output_grammar.h"

namespace withy::engine {

// Tokens 0..255 are bytes; `end` ends the answer where one of the texts does.
class TextsGrammar final : public OutputGrammar {
 public:
  TextsGrammar(std::vector<std::string> texts, int32_t end, int32_t vocab_size)
      : texts_(std::move(texts)), end_(end), vocab_size_(vocab_size) {}

  int32_t vocab_size() const override { return vocab_size_; }
  std::unique_ptr<GrammarState> Begin() const override {
    return std::make_unique<State>(texts_, end_);
  }

 private:
  class State final : public GrammarState {
   public:
    State(std::vector<std::string> texts, int32_t end) : texts_(std::move(texts)), end_(end) {}

    void FillMask(std::span<uint32_t> mask) override {
      std::fill(mask.begin(), mask.end(), 0);
      const auto allow = [&](int32_t token) {
        mask[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
      };
      for (const char next : Next()) allow(static_cast<uint8_t>(next));
      if (MayEnd()) allow(end_);
    }
    bool Accept(int32_t token) override {
      const bool fits =
          token == end_ ? MayEnd()
                        : token < 256 && Next().find(static_cast<char>(token)) != std::string::npos;
      if (!fits) return false;
      ended_ = ended_ || token == end_;
      said_ += static_cast<char>(token);
      return true;
    }
    void RollBack(int32_t tokens) override {
      said_.resize(said_.size() - static_cast<size_t>(tokens));
      if (tokens > 0) ended_ = false;
    }
    bool MayEnd() const override {
      return !ended_ && std::find(texts_.begin(), texts_.end(), said_) != texts_.end();
    }
    std::string ForcedText() override {
      const std::string before = said_;
      while (!MayEnd() && Next().size() == 1) said_ += Next();
      std::string forced = said_.substr(before.size());
      said_ = before;
      return forced;
    }

   private:
    std::string Next() const {
      std::string next;
      for (const std::string& text : texts_) {
        const bool longer = !ended_ && text.size() > said_.size() && text.starts_with(said_);
        if (longer && next.find(text[said_.size()]) == std::string::npos)
          next += text[said_.size()];
      }
      return next;
    }

    const std::vector<std::string> texts_;
    const int32_t end_;
    std::string said_;
    bool ended_ = false;
  };

  std::vector<std::string> texts_;
  int32_t end_;
  int32_t vocab_size_;
};

}  // namespace withy::engine
