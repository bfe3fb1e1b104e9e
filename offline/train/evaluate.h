// Exact-match accuracy of a model on corpus records, by task and difficulty, and how often a
// draft's next token equals the target's. Greedy decoding gives the correct answer exactly if,
// given the correct answer as input, the most likely token is correct everywhere; so one pass is
// enough.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "offline/corpus/generator.h"
#include "offline/train/chat_encoder.h"
#include "offline/train/model.h"
#include "offline/train/workers.h"

namespace withy::train {

struct Share {
  int64_t hits = 0;
  int64_t count = 0;
  void Add(const Share& other) {
    hits += other.hits;
    count += other.count;
  }
  double value() const {
    return count == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(count);
  }
};

struct Accuracy {
  Share overall;
  std::array<Share, corpus::kTaskCount> by_task;
  std::array<std::array<Share, corpus::kMaxDifficulty>, corpus::kTaskCount> by_difficulty;
  std::array<Share, 2> by_shots;  // without and with worked examples
  Share draft_agreement;          // over the answers' tokens; only if there is a draft

  void Add(const Accuracy& other);
  // "0.912 (api 0.95 qa 0.90 …)"
  std::string Summary() const;
};

// Evaluates records [0, count) of `spec`. With `draft` (same vocabulary) also its agreement with
// `model`.
Accuracy Evaluate(const Model& model, const corpus::Spec& spec, uint64_t count,
                  const ChatEncoder& encoder, const Workers& workers, const Model* draft = nullptr);

// The tokens of `samples` as [batch, longest], padded on the right with 0.
torch::Tensor PadTokens(const std::vector<Sample>& samples, torch::Device device);

}  // namespace withy::train
