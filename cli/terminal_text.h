// Foreign text on a terminal: what a model, a file or another app says must not move the cursor,
// break a table or pass for something else. Neighbours: output.h's tables, and every command that
// prints text that is not its own. JSON is not for here: it has escapes of its own.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace withy::cli {

// Harmless for a terminal: '?' for control characters (C0 but for newline and tab, DEL, C1) and
// for those that reorder text, U+FFFD for bytes that are no UTF-8.
std::string Printable(std::string_view text);

// The same in one line: \n, \r and \t are written out.
std::string OneLine(std::string_view text);

// For standard output: Printable() where that is a terminal, else as it is.
std::string ForStandardOutput(std::string_view text);

// Columns that a line of a terminal takes for Printable() text: two for wide characters, none for
// combining ones.
size_t DisplayWidth(std::string_view text);

}  // namespace withy::cli
