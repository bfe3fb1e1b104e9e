// Small TLMs for tests: a vocabulary, a shape, a temporary directory.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "engine/encoder/checkpoint.h"
#include "gtest/gtest.h"

namespace withy::engine {

inline constexpr char kSmallVocab[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\ncat\nsat\non\nmat\n##s\n##ing\nun\n##able\n,\n.\na\nb\n##a\n";

inline WordPieceVocab SmallVocab(int32_t slo_steps = 10) {
  auto vocab = ParseVocab(kSmallVocab, "vocab.txt");
  EXPECT_TRUE(vocab.ok()) << vocab.status();
  AddSloTokens(slo_steps, &*vocab);
  return *vocab;
}

// Two shared layers and one for each head; unusual sizes where allowed.
inline TlmShape SmallShape() {
  TlmShape shape;
  shape.encoder = {.vocab = SmallVocab().size(),
                   .embedding = 32,
                   .hidden = 64,
                   .bottleneck = 32,
                   .ffn = 64,
                   .ffn_count = 2,
                   .heads = 2,
                   .positions = 64};
  shape.shared_layers = 2;
  shape.score_layers = 1;
  shape.decision_layers = 1;
  shape.window = 64;
  shape.prompt_levels = {50, 100};
  shape.model_levels = {20, 60, 100};
  shape.pair_accuracy = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f};
  shape.pair_accuracy_examples = {0.7f, 0.7f, 0.7f, 0.8f, 0.8f, 0.8f};
  return shape;
}

// SmallShape() with weights large enough that every input affects the output.
inline TlmCheckpoint SmallTlm(uint64_t seed = 3, const TlmShape& shape = SmallShape()) {
  auto made = MakeTlmCheckpoint(shape, SmallVocab(shape.slo_steps), seed);
  EXPECT_TRUE(made.ok()) << made.status();
  for (TlmTensor& tensor : made->tensors) {
    const bool wide = tensor.spec.role != TensorRole::kBias &&
                      tensor.spec.role != TensorRole::kScale &&
                      tensor.spec.role != TensorRole::kTokens;
    for (float& value : tensor.values) value *= wide ? 8.0f : 1.0f;
  }
  return *std::move(made);
}

class TempFolder {
 public:
  explicit TempFolder(const char* name)
      : path_(std::filesystem::path(testing::TempDir()) /
              (std::string("withy_") + name + "_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace withy::engine
