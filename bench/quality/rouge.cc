#include "bench/quality/rouge.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/strings.h"

namespace withy::bench {

double RougeL(std::string_view reference, std::string_view answer) {
  const auto words = [](std::string_view text) {
    return std::vector<std::string>(
        absl::StrSplit(ToAbsl(text), absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty()));
  };
  const std::vector<std::string> wanted = words(reference), got = words(answer);
  if (wanted.empty() || got.empty()) return wanted.empty() && got.empty() ? 1 : 0;
  std::vector<int> before(got.size() + 1, 0), row(got.size() + 1, 0);
  for (const std::string& word : wanted) {
    for (size_t i = 0; i < got.size(); ++i) {
      row[i + 1] = word == got[i] ? before[i] + 1 : std::max(before[i + 1], row[i]);
    }
    std::swap(before, row);
  }
  const double common = before.back();
  return 2 * common / static_cast<double>(wanted.size() + got.size());
}

}  // namespace withy::bench
