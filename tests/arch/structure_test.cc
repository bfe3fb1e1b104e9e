// Holds the tree to what a reader can take in: sources of a folder, words of the documents.
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy {
namespace {

namespace fs = std::filesystem;

constexpr int kMostSources = 40;   // of a folder, without those of folders in it
constexpr int kMostWords = 32000;  // of docs/

// Folders that have more, with as many as they may have: they are to be split, and never grow.
const std::map<std::string, int>& Fuller() {
  static const std::map<std::string, int> fuller = {
      {"base", 78}, {"cli", 46}, {"engine/cpu", 51}, {"engine/model", 44}, {"engine/session", 50}};
  return fuller;
}

bool IsSource(const fs::path& path) {
  const std::string extension = path.extension();
  return extension == ".h" || extension == ".cc" || extension == ".cu" || extension == ".cuh" ||
         extension == ".c";
}

bool IsOurs(const std::string& top) {
  return top != "build" && top != "run" && !top.starts_with(".") && !top.starts_with("build");
}

TEST(Structure, NoFolderHoldsMoreSourcesThanAReaderCanTakeIn) {
  std::map<std::string, int> sources;
  for (const auto& top : fs::directory_iterator(".")) {
    if (!top.is_directory() || !IsOurs(top.path().filename())) continue;
    for (const auto& entry : fs::recursive_directory_iterator(top)) {
      if (!entry.is_regular_file() || !IsSource(entry.path())) continue;
      ++sources[entry.path().parent_path().lexically_relative(".")];
    }
  }
  EXPECT_GT(sources.size(), 20u) << "run from the repository's root";
  for (const auto& [folder, count] : sources) {
    const auto fuller = Fuller().find(folder);
    EXPECT_LE(count, fuller == Fuller().end() ? kMostSources : fuller->second)
        << folder << ": make rooms in it";
    EXPECT_TRUE(fuller == Fuller().end() || count > kMostSources)
        << folder << " needs no exception any more";
  }
}

TEST(Structure, DocumentsStayShort) {
  int words = 0;
  for (const auto& entry : fs::recursive_directory_iterator("docs")) {
    if (entry.path().extension() != ".md") continue;
    std::ifstream file(entry.path());
    for (std::string word; file >> word;) ++words;
  }
  EXPECT_GT(words, 1000) << "run from the repository's root";
  EXPECT_LE(words, kMostWords);
}

}  // namespace
}  // namespace withy
