// Makes foreign text safe for a terminal: text from a model, a file or another app must not move
// the cursor, break a table or imitate other output. Neighbours: output.h's tables and every
// command that prints such text. Not for JSON, which has its own escapes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace withy::cli {

// Replaces control characters (C0 except newline and tab, DEL, C1) and characters that reorder text
// by
// '?', and bytes that are not UTF-8 by U+FFFD.
std::string Printable(std::string_view text);

// The same on one line: \n, \r and \t are written as escapes.
std::string OneLine(std::string_view text);

// For standard output: Printable() on a terminal, else unchanged.
std::string ForStandardOutput(std::string_view text);

// Terminal columns of Printable() text: two for wide characters, none for combining ones.
size_t DisplayWidth(std::string_view text);

}  // namespace withy::cli
