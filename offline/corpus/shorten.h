// Records as a user of the service may send them to a model: with words left out. What the target
// has met in training it bears when prompts are shortened to a share of their words.
#pragma once

#include "offline/corpus/record.h"
#include "offline/corpus/rng.h"

namespace withy::corpus {

// The record with 35 to 90 per cent of its words. Fixed parts and the assistant's messages stay;
// of the rest most likely first go words that neither name anything nor occur in a question or an
// answer, chosen by chance. The answer is the same, though what it is read off may be gone.
Record Shorten(const Record& record, Rng& rng);

}  // namespace withy::corpus
