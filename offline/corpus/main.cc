// withy-corpus: writes the corpus as JSON lines to standard output.
//   withy-corpus train|heldout COUNT [FIRST_INDEX]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "offline/corpus/generator.h"
#include "offline/corpus/json.h"

int main(int argc, char** argv) {
  const std::string_view split = argc > 1 ? argv[1] : "";
  uint64_t count = 0;
  uint64_t first = 0;
  const bool valid = (argc == 3 || argc == 4) && (split == "train" || split == "heldout") &&
                     absl::SimpleAtoi(argv[2], &count) &&
                     (argc == 3 || absl::SimpleAtoi(argv[3], &first));
  if (!valid) {
    std::fprintf(stderr,
                 "usage: withy-corpus train|heldout COUNT [FIRST_INDEX]\nWrites COUNT records as "
                 "JSON lines to standard output.\n");
    return 2;
  }
  using withy::corpus::Generator;
  const Generator generator(split == "train" ? withy::corpus::TrainSpec()
                                             : withy::corpus::HeldOutSpec());
  for (uint64_t i = first; i < first + count; ++i) {
    const std::string line = withy::corpus::ToJson(generator.At(i)) + "\n";
    if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size()) {
      std::perror("withy-corpus: write to standard output");
      return 1;
    }
  }
  if (std::fflush(stdout) != 0) {
    std::perror("withy-corpus: write to standard output");
    return 1;
  }
  return 0;
}
