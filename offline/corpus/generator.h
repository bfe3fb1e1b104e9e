// Generates the corpus: prompts of an on-device assistant, each with one correct answer, from a
// seed.
//
//   Generator generator({.seed = 7, .split = Split::kHeldOut});
//   Record record = generator.At(0);   // any index, in any order
//
// Neighbours: train/ tokenises the records, bench/ sends held-out records to the service. Knows no
// tokenizer or model.
#pragma once

#include <cstdint>

#include "offline/corpus/record.h"

namespace withy::corpus {

struct Spec {
  uint64_t seed = 1;
  Split split = Split::kTrain;
  // Per cent of records with five worked examples before the question (short ones, difficulty 1 or
  // 2).
  int five_shot_percent = 25;
  // Per cent of records with two to four worked examples of any difficulty. For training: these
  // have many answers per token.
  int few_shot_percent = 0;
  // If positive, every record has this many worked examples of any difficulty.
  int exact_shots = 0;
  // Maximum number of further questions on each context, for tasks that allow them.
  int follow_ups = 0;
  // Maximum sentences of small talk in the system message; the number is drawn from 0 to this.
  int max_filler = 4;
  // Per cent of wordings that are garbled (Author::Garble), for training.
  int garbled_percent = 0;
  // Upper limit of the difficulty; harder questions are written at this one.
  int max_difficulty = kMaxDifficulty;
};

// The specs that the shipped models were trained and evaluated on. models/README.md gives their
// hashes.
Spec TrainSpec();
Spec HeldOutSpec();

// Immutable; thread-safe.
class Generator {
 public:
  explicit Generator(const Spec& spec) : spec_(spec) {}

  // The record of an index: task index % 6, difficulty (index / 6) % 5 + 1, everything else from
  // (seed, split, index).
  Record At(uint64_t index) const;
  // The same for a chosen task and difficulty in [1, 5].
  Record At(uint64_t index, Task task, int difficulty) const;

 private:
  Spec spec_;
};

}  // namespace withy::corpus
