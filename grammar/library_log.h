// What XGrammar would print: its warnings, which say what of a schema or an expression it does not
// enforce, are collected for the caller, and errors are exceptions. Neighbour: compiler.h.
#pragma once

#include <string>

namespace withy::grammar {

// Collects what XGrammar warns of on this thread while it lives. One at a time on a thread; without
// one, warnings are dropped.
class LibraryWarnings {
 public:
  LibraryWarnings();
  ~LibraryWarnings();
  LibraryWarnings(const LibraryWarnings&) = delete;
  LibraryWarnings& operator=(const LibraryWarnings&) = delete;

  // The first warning; empty: there was none.
  const std::string& text() const { return text_; }
  void Add(const std::string& message) {
    if (text_.empty()) text_ = message;
  }

 private:
  std::string text_;
};

}  // namespace withy::grammar
