// The table of tuned constants (policy/constants.h) says of each where it comes from, and the tests
// that it names exist.
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy {
namespace {

// The names of all tests, "Suite" and "Suite.Name".
std::set<std::string> TestNames() {
  static const std::regex kTest(R"(TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\))");
  std::set<std::string> names;
  for (const char* folder : {"policy", "orchestrator", "model_worker", "serving"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (!entry.path().string().ends_with("_test.cc")) continue;
      std::ifstream file(entry.path());
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      for (std::sregex_iterator at(text.begin(), text.end(), kTest), end; at != end; ++at) {
        names.insert((*at)[1]);
        names.insert((*at)[1].str() + "." + (*at)[2].str());
      }
    }
  }
  return names;
}

TEST(Constants, SayWhereTheyComeFrom) {
  static const std::regex kOrigin("Choice[.:]|Measured:|Unrecorded[.:]|Not tuned");
  std::ifstream file("policy/constants.h");
  std::string comment;
  bool in_comment = false;
  int constants = 0;
  for (std::string line; std::getline(file, line);) {
    const bool is_comment = line.starts_with("//");
    if (is_comment) comment = (in_comment ? comment + " " : "") + line;
    in_comment = is_comment;
    if (!line.starts_with("inline constexpr")) continue;
    ++constants;
    EXPECT_TRUE(std::regex_search(comment, kOrigin)) << line << "\n" << comment;
  }
  EXPECT_GT(constants, 100) << "run from the repository's root";
}

TEST(Constants, NameTestsThatExist) {
  const std::set<std::string> names = TestNames();
  EXPECT_GT(names.size(), 100u) << "run from the repository's root";
  std::ifstream file("policy/constants.h");
  const std::string text = std::regex_replace(std::string{std::istreambuf_iterator<char>(file), {}},
                                              std::regex("\n// "), " ");
  static const std::regex kNamed(R"(\b([A-Z]\w+Test)(?:\.([A-Z]\w+)(\*?))?)");
  int named = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), kNamed), end; at != end; ++at) {
    const bool suite_alone = !(*at)[2].matched || (*at)[3].length() > 0;
    const std::string name = suite_alone ? (*at)[1].str() : (*at)[1].str() + "." + (*at)[2].str();
    EXPECT_TRUE(names.contains(name)) << "policy/constants.h names " << name;
    ++named;
  }
  EXPECT_GT(named, 50);
}

}  // namespace
}  // namespace withy
