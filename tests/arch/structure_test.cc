// Holds the tree to what a reader can take in: sources of a folder, words of the documents, lines
// of a function, methods of a class.
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/arch/cpp_scanner.h"

namespace withy {
namespace {

namespace fs = std::filesystem;

constexpr int kMostSources = 40;   // of a folder, without those of folders in it
constexpr int kMostWords = 32000;  // of docs/
constexpr int kMostLines = 70;     // of a function's body
constexpr int kMostMethods = 30;   // of a class
// Of a class in the folders that grew the largest ones.
constexpr int kMostMethodsOfCores = 25;

// Folders that have more, with as many as they may have: they are to be split, and never grow.
const std::map<std::string, int>& Fuller() {
  static const std::map<std::string, int> fuller = {
      {"base", 72}, {"cli", 46}, {"engine/cpu", 48}, {"engine/model", 44}, {"engine/session", 50}};
  return fuller;
}

struct Exception {
  int most = 0;  // how large it is: it must not grow
  const char* reason = nullptr;
};
using Exceptions = std::map<std::string, Exception>;  // by "file: name"

const Exceptions& LongerFunctions() {
  static const Exceptions exceptions = {
      {"engine/cpu/kernels_avx512.cc: Multiply",
       {92, "one loop over registers that a call would spill"}},
      {"draft_worker/service_test.cc: TEST_F", {82, "to be split"}},
  };
  return exceptions;
}

const Exceptions& LargerClasses() {
  static const Exceptions exceptions = {
      {"engine/jinja/interpreter.h: Interpreter",
       {37, "a method for each kind of node of the language"}},
      {"engine/jinja/value.h: Value", {33, "questions and conversions for each type of a value"}},
  };
  return exceptions;
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

struct Source {
  std::string path;
  arch::ScannedFile scanned;
};

std::vector<Source> ScanSources() {
  std::vector<Source> sources;
  for (const auto& top : fs::directory_iterator(".")) {
    if (!top.is_directory() || !IsOurs(top.path().filename())) continue;
    for (const auto& entry : fs::recursive_directory_iterator(top)) {
      if (!entry.is_regular_file() || !IsSource(entry.path())) continue;
      std::ifstream file(entry.path());
      std::stringstream text;
      text << file.rdbuf();
      sources.push_back({entry.path().lexically_relative(".").string(), arch::ScanCpp(text.str())});
    }
  }
  return sources;
}

// Fails for what is larger than it may be, and for exceptions that are not needed.
class Sizes {
 public:
  explicit Sizes(const Exceptions& exceptions) : exceptions_(exceptions) {}

  void Add(const Source& source, const std::string& name, int line, int size, int most) {
    ++seen_;
    if (size <= most) return;
    const std::string key = source.path + ": " + name;
    const auto exception = exceptions_.find(key);
    if (exception == exceptions_.end()) {
      ADD_FAILURE() << source.path << ":" << line << ": " << name << " has " << size
                    << ", more than " << most;
    } else {
      EXPECT_LE(size, exception->second.most) << key << " must not grow";
      needed_.insert(key);
    }
  }

  void Finish() const {
    EXPECT_GT(seen_, 1000) << "run from the repository's root";
    for (const auto& [key, exception] : exceptions_) {
      EXPECT_TRUE(needed_.contains(key)) << key << " needs no exception any more";
    }
  }

 private:
  const Exceptions& exceptions_;
  std::set<std::string> needed_;
  int seen_ = 0;
};

TEST(Structure, SourcesCanBeScanned) {
  for (const Source& source : ScanSources()) {
    EXPECT_TRUE(source.scanned.balanced) << source.path << ": brackets do not match";
  }
}

TEST(Structure, FunctionsFitAScreen) {
  Sizes sizes(LongerFunctions());
  for (const Source& source : ScanSources()) {
    for (const arch::ScannedFunction& function : source.scanned.functions) {
      sizes.Add(source, function.name, function.line, function.lines, kMostLines);
    }
  }
  sizes.Finish();
}

TEST(Structure, ClassesHaveFewMethods) {
  Sizes sizes(LargerClasses());
  for (const Source& source : ScanSources()) {
    const std::string& path = source.path;
    const bool core = path.starts_with("serving/") || path.starts_with("context_store/") ||
                      path.starts_with("orchestrator/");
    for (const arch::ScannedClass& of : source.scanned.classes) {
      sizes.Add(source, of.name, of.line, of.methods, core ? kMostMethodsOfCores : kMostMethods);
    }
  }
  sizes.Finish();
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
