// Exercises that teach, with a tenth of the tokens, what the corpus teaches slowly: copying, and
// finding the value that belongs to a name. Neighbour: batches.h mixes them with the corpus. Tokens
// are drawn at random; no words are involved.
#pragma once

#include <cstdint>

#include "offline/corpus/rng.h"
#include "offline/train/chat_encoder.h"

namespace withy::train {

// Random tokens twice: every token of the second copy can be copied from the first.
Sample EchoSample(corpus::Rng& rng, int32_t vocab_size, int64_t phrase_tokens);

// Parameters of a recall sample. Samples with equal parameters have equal length.
struct RecallShape {
  int keys = 2;
  int relations = 1;  // facts per key
  int key_tokens = 2;
  int value_tokens = 1;
  bool mark = true;              // a fixed token between key and value
  int link_tokens = 1;           // tokens of the relation between key and value
  int ask_tokens = 1;            // tokens before and after the key in a question
  bool value_first = false;      // facts give the value before the key
  bool keys_look_alike = false;  // keys share tokens
  int questions = 4;
};
// `hardness` in [0, 1]. At 0 the value directly follows its key, so copying is enough; all limits
// grow with it in small steps.
RecallShape DrawRecallShape(corpus::Rng& rng, double hardness);

// Facts (key, relation, value) in random order, then questions for the value of a key and relation:
// the core of answering from a passage, a catalogue or a screen.
Sample RecallSample(corpus::Rng& rng, int32_t vocab_size, const RecallShape& shape);

}  // namespace withy::train
