// Writes the corpus: an on-device assistant's prompts with one right answer each, from a seed.
//
//   Generator generator({.seed = 7, .split = Split::kHeldOut});
//   Record record = generator.At(0);   // any index, in any order
//
// Neighbours: train/ tokenises what it writes, bench/ runs held-out records through the service.
// Knows no tokenizer and no model.
#pragma once

#include <cstdint>

#include "offline/corpus/record.h"

namespace withy::corpus {

struct Spec {
  uint64_t seed = 1;
  Split split = Split::kTrain;
  // Per cent of records with five worked examples before the question (short, difficulty 1 or 2).
  int five_shot_percent = 25;
  // Per cent of records with two to four worked examples of any difficulty: many answers a token,
  // for training.
  int few_shot_percent = 0;
  // When positive: every record has this many worked examples, of any difficulty.
  int exact_shots = 0;
  // Up to this many further questions on each context, where it bears them.
  int follow_ups = 0;
  // Sentences of small talk in the system message: 0 to this many.
  int max_filler = 4;
  // Per cent of wordings that are garbled (Author::Garble), for training.
  int garbled_percent = 0;
  // Harder questions are written at this difficulty instead.
  int max_difficulty = kMaxDifficulty;
};

// The two specs that the shipped models were trained and judged on; their hashes stand in
// models/README.md.
Spec TrainSpec();
Spec HeldOutSpec();

// Immutable after construction; At() may be called from any thread.
class Generator {
 public:
  explicit Generator(const Spec& spec) : spec_(spec) {}

  // The record of this index: task index % 6, difficulty (index / 6) % 5 + 1, everything else from
  // (seed, split, index).
  Record At(uint64_t index) const;
  // The same for a chosen task and difficulty in [1, 5].
  Record At(uint64_t index, Task task, int difficulty) const;

 private:
  Spec spec_;
};

}  // namespace withy::corpus
