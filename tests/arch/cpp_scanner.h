// Reads C++ sources just far enough to say how long their functions are and how many methods their
// classes have. No preprocessor, no types: it follows brackets and the heads before them.
//
// Not seen: classes inside functions, and what macros expand to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace withy::arch {

// A function with its body. `lines` are those from the line of the body's opening brace to the one
// of its closing brace, as clang-tidy's readability-function-size counts them.
struct ScannedFunction {
  std::string name;  // as written: "Foo", "Bar::Foo", "operator+"
  int line = 0;      // of the opening brace, from 1
  int lines = 0;
};

// A class or struct with a body. `methods` are all member functions that it declares, of whatever
// access and static ones too: neither constructors nor destructors, friends or what is defaulted or
// deleted, and not those of classes inside it.
struct ScannedClass {
  std::string name;  // with the classes around it: "Outer::Inner"
  int line = 0;
  int methods = 0;
};

struct ScannedFile {
  std::vector<ScannedFunction> functions;
  std::vector<ScannedClass> classes;
  bool balanced = false;  // false where brackets do not match: nothing above can be relied on then
};

// The text without comments, literals' contents and preprocessor lines. Lines stay where they are.
std::string WithoutComments(std::string_view text);

ScannedFile ScanCpp(std::string_view text);

}  // namespace withy::arch
