// Exercises that teach at a tenth of the tokens what the corpus teaches slowly: to copy, and to
// find what belongs to a name. Neighbours: batches.h mixes them with the corpus. Knows no words:
// tokens are drawn at random.
#pragma once

#include <cstdint>

#include "offline/corpus/rng.h"
#include "offline/train/chat_encoder.h"

namespace withy::train {

// Random tokens said twice: from the second saying on every token can be copied from the prompt.
Sample EchoSample(corpus::Rng& rng, int32_t vocab_size, int64_t phrase_tokens);

// What a recall sample looks like; samples of one shape have one length.
struct RecallShape {
  int keys = 2;
  int relations = 1;  // facts a key
  int key_tokens = 2;
  int value_tokens = 1;
  bool mark = true;              // a fixed token between key and value
  int link_tokens = 1;           // and so many of the relation's own
  int ask_tokens = 1;            // before and after the key in a question
  bool value_first = false;      // facts name the value before the key
  bool keys_look_alike = false;  // share tokens with each other
  int questions = 4;
};
// `hardness` in [0, 1]: at 0 the value follows its key at once, which copying already answers;
// every limit grows with it, so that each step asks little more than the one before.
RecallShape DrawRecallShape(corpus::Rng& rng, double hardness);

// Facts (key, relation, value) in any order, then questions for the values of a key and relation:
// what answering from a passage, a catalogue or a screen comes down to.
Sample RecallSample(corpus::Rng& rng, int32_t vocab_size, const RecallShape& shape);

}  // namespace withy::train
