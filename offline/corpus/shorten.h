// Drops words from records, as the service's prompt pruning does, so that training prepares the
// target for pruned prompts.
#pragma once

#include "offline/corpus/record.h"
#include "offline/corpus/rng.h"

namespace withy::corpus {

// Keeps 35 to 90 per cent of the record's words. Fixed parts and the assistant's messages are kept.
// Of the others, words that name nothing and occur in no question or answer are usually dropped
// first, at random. The answer is unchanged, although its source may have been dropped.
Record Shorten(const Record& record, Rng& rng);

}  // namespace withy::corpus
