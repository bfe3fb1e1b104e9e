// Whether what the caller of the end-to-end benchmark asks for can be had, said before minutes of
// work. Neighbours: slo.cc has the flags that these come from.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace withy::bench {

struct SloOptions {
  std::vector<std::string> alphas = {};
  std::vector<std::string> real = {};    // of alphas, or all; empty: the first of them
  std::vector<std::string> tables = {};  // names, all or none
  std::vector<std::string> tlms = {};    // NAME=FILE.gguf
  std::vector<std::pair<std::string, std::string>> files = {};  // flag, file; not given: empty
  std::string calls = {};                                       // to write; may be empty
  int requests = 1;
  int rounds = 1;
  int threads = 1;
  int five_shot_percent = 100;
  double load = 0.5;
};

// Errors: INVALID_ARGUMENT naming flag, value and what there is; NOT_FOUND naming flag and file;
// as CheckOutput.
absl::Status CheckOptions(const SloOptions& options);

// Whether `list` names `name`, or all.
bool Wanted(const std::vector<std::string>& list, const std::string& name);

}  // namespace withy::bench
