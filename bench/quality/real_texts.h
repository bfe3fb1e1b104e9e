// What a real model is asked in `bench real`: chats of the shapes that clients send, and text of
// many scripts and kinds. Functions of a seed alone, but for the files that are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/quality/real_peer.h"

namespace withy::bench {

// `count` chats that end with a user's message: with and without a system message, of one to nine
// turns, with empty lines, other scripts, markup and control tokens' texts left out.
std::vector<Chat> RealChats(uint64_t seed, size_t count);

// Pieces of about a kilobyte each, at least `bytes` in all: words of several scripts, numbers,
// code, punctuation, spaces and line breaks in runs, combining characters, emoji.
std::vector<std::string> VariedPieces(uint64_t seed, size_t bytes);

// The text of the project's own documents below `source` (docs/*.md in order of their names), at
// most `bytes`; empty if there are none.
std::string DocumentText(const std::string& source, size_t bytes);

// Cuts a text in pieces of about `bytes`, at the borders of characters.
std::vector<std::string> CutText(const std::string& text, size_t bytes);

}  // namespace withy::bench
