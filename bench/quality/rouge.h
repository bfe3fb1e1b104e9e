// Rouge-L: how much of a reference an answer has, by their longest common subsequence of words
// (Lin 2004). Neighbour: speculation_figures.cc compares answers of lossy decoders with the
// target's.
#pragma once

#include <string_view>

namespace withy::bench {

// F1 of the longest common subsequence of the words of both, which white space separates; 0..1.
// Two texts without words are equal.
double RougeL(std::string_view reference, std::string_view answer);

}  // namespace withy::bench
