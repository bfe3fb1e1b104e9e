#include "tests/arch/cpp_scanner.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <set>
#include <utility>

namespace withy::arch {
namespace {

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Copies a text without what WithoutComments leaves out. Literals stay as "" and 0.
class Stripper {
 public:
  explicit Stripper(std::string_view text) : text_(text) {}

  std::string Strip() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (Starts("//")) {
        SkipLine();
      } else if (Starts("/*")) {
        SkipTo("*/");
      } else if (c == '#' && line_is_blank_) {
        SkipLine();
      } else if (c == '"') {
        SkipString();
      } else if (c == '\'' && !AfterDigit()) {
        SkipQuoted('\'');
        out_ += '0';
      } else {
        Copy();
      }
    }
    return std::move(out_);
  }

 private:
  bool Starts(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  // A ' here separates digits.
  bool AfterDigit() const {
    size_t begin = out_.size();
    while (begin > 0 && (IsWord(out_[begin - 1]) || out_[begin - 1] == '\'')) --begin;
    return begin < out_.size() && std::isdigit(static_cast<unsigned char>(out_[begin])) != 0;
  }

  void Copy() {
    const char c = text_[at_++];
    if (c == '\n') line_is_blank_ = true;
    if (c != '\n' && c != ' ' && c != '\t') line_is_blank_ = false;
    out_ += c;
  }
  void Skip() {
    if (text_[at_++] == '\n') out_ += '\n';
  }
  // Up to the end of the line, over lines that end with a backslash.
  void SkipLine() {
    while (at_ < text_.size() && text_[at_] != '\n') {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) Skip();
      Skip();
    }
  }
  void SkipTo(std::string_view end) {
    const size_t found = text_.find(end, at_ + 2);
    const size_t stop = found == std::string_view::npos ? text_.size() : found + end.size();
    while (at_ < stop) Skip();
    out_ += ' ';
  }
  void SkipQuoted(char quote) {
    Skip();
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) Skip();
      Skip();
    }
    if (at_ < text_.size()) Skip();
  }
  void SkipString() {
    const bool raw = !out_.empty() && out_.back() == 'R';
    if (!raw) {
      SkipQuoted('"');
    } else {
      const size_t open = text_.find('(', at_);
      if (open == std::string_view::npos) {
        at_ = text_.size();
        return;
      }
      const std::string end = ")" + std::string(text_.substr(at_ + 1, open - at_ - 1)) + "\"";
      const size_t found = text_.find(end, open);
      const size_t stop = found == std::string_view::npos ? text_.size() : found + end.size();
      while (at_ < stop) Skip();
    }
    out_ += "\"\"";
    line_is_blank_ = false;
  }

  std::string_view text_;
  size_t at_ = 0;
  bool line_is_blank_ = true;
  std::string out_;
};

struct Token {
  std::string_view text;
  int line = 0;
};

std::vector<Token> Tokenize(std::string_view text) {
  std::vector<Token> tokens;
  int line = 1;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '\n') ++line;
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++at;
      continue;
    }
    size_t end = at + 1;
    if (IsWord(c)) {
      while (end < text.size() && (IsWord(text[end]) || text[end] == '\'')) ++end;
    } else if (c == '"' || (c == ':' && text.substr(at).starts_with("::")) ||
               (c == '-' && text.substr(at).starts_with("->"))) {
      end = std::min(at + 2, text.size());
    }
    tokens.push_back({text.substr(at, end - at), line});
    at = end;
  }
  return tokens;
}

bool IsName(const Token& token) {
  return IsWord(token.text[0]) && std::isdigit(static_cast<unsigned char>(token.text[0])) == 0;
}

// WITHY_RETURN, ABSL_GUARDED_BY: a name of capitals, as of macros.
bool IsMacroName(const Token& token) {
  return token.text.size() > 2 && IsName(token) &&
         std::none_of(token.text.begin(), token.text.end(),
                      [](unsigned char c) { return std::islower(c) != 0; });
}

// Words before brackets that make no function of what follows.
bool TakesBrackets(std::string_view word) {
  static const std::set<std::string_view> words = {"alignas",  "decltype",      "noexcept",
                                                   "explicit", "__attribute__", "__launch_bounds__",
                                                   "requires"};
  return words.contains(word);
}

// What stands before the ';' or '{' of a declaration, without what is in brackets.
struct Head {
  std::vector<Token> tokens;  // those outside of brackets; "(" stands for a parameter list
  size_t params = kNone;      // index of the first "(" that can be a parameter list
  bool pointer = false;       // that one begins "(*" or "(&": a pointer to a function
  bool assigned = false;      // '=' before a parameter list: a variable with its value
  bool without = false;       // ends with "= default" or "= delete"

  static constexpr size_t kNone = static_cast<size_t>(-1);

  bool Has(std::string_view word) const {
    return std::any_of(tokens.begin(), tokens.end(),
                       [&](const Token& token) { return token.text == word; });
  }
  bool BeginsWith(std::string_view word) const {
    return !tokens.empty() && tokens.front().text == word;
  }
  bool IsFunction() const { return params != kNone && !pointer && !assigned; }
  // A class's definition or declaration, not a function that returns `struct X`.
  bool IsClass() const {
    return !IsFunction() && !assigned && (Has("class") || Has("struct") || Has("union"));
  }

  // The name before the parameters: "Bar::Foo", "operator+", "~Bar".
  std::string FunctionName() const {
    size_t begin = params;
    for (size_t i = 0; i < params; ++i) {
      if (tokens[i].text == "operator") begin = std::min(begin, i);
    }
    if (begin == params && begin > 0) --begin;
    if (begin > 0 && tokens[begin - 1].text == "~") --begin;
    while (begin >= 2 && tokens[begin - 1].text == "::" && IsName(tokens[begin - 2])) begin -= 2;
    std::string name;
    for (size_t i = begin; i < params; ++i) name += tokens[i].text;
    return name;
  }

  std::string ClassName() const {
    size_t at = 0;
    while (at < tokens.size() && tokens[at].text != "class" && tokens[at].text != "struct" &&
           tokens[at].text != "union") {
      ++at;
    }
    std::string name = "(unnamed)";
    for (++at; at < tokens.size() && tokens[at].text != ":"; ++at) {
      if (IsName(tokens[at]) && tokens[at].text != "final" && !IsMacroName(tokens[at])) {
        name = std::string(tokens[at].text);
      }
    }
    return name;
  }
};

class Scanner {
 public:
  explicit Scanner(std::string_view text)
      : stripped_(WithoutComments(text)), tokens_(Tokenize(stripped_)) {}

  ScannedFile Scan() {
    file_.balanced = true;
    Scope("", nullptr);
    if (at_ < tokens_.size()) file_.balanced = false;  // a '}' too many
    return std::move(file_);
  }

 private:
  bool AtEnd() const { return at_ >= tokens_.size(); }
  bool Is(std::string_view text) const { return !AtEnd() && tokens_[at_].text == text; }
  bool NextIs(std::string_view text) const {
    return at_ + 1 < tokens_.size() && tokens_[at_ + 1].text == text;
  }

  // Declarations up to the '}' of the scope, which is left, or to the end. `name` is that of the
  // classes around, `in` the class whose body it is.
  void Scope(const std::string& name, ScannedClass* in) {
    while (!AtEnd() && !Is("}")) Declaration(name, in);
  }

  // A bracket with all that is in it.
  void SkipBracket() {
    static constexpr std::string_view kOpen = "([{";
    static constexpr std::string_view kClose = ")]}";
    std::string open;
    do {
      if (AtEnd()) {
        file_.balanced = false;
        return;
      }
      const char c = tokens_[at_++].text[0];
      if (kOpen.find(c) != std::string_view::npos) open += c;
      if (const size_t close = kClose.find(c); close != std::string_view::npos) {
        if (open.empty() || open.back() != kOpen[close]) file_.balanced = false;
        if (!open.empty()) open.pop_back();
      }
    } while (!open.empty());
  }

  // "<...>" of a template; a '<' that compares stays alone.
  void SkipAngles() {
    const size_t begin = at_;
    int depth = 0;
    while (!AtEnd() && !Is(";") && !Is("{") && !Is("}")) {
      if (Is("(") || Is("[")) {
        SkipBracket();
        continue;
      }
      if (Is("<")) ++depth;
      if (Is(">")) --depth;
      ++at_;
      if (depth == 0) return;
    }
    at_ = begin + 1;
  }

  // Reads a declaration's head, to its ';' or '{' or the end of the scope around it.
  Head ReadHead() {
    Head head;
    bool initializers = false;  // behind a constructor's ':'
    while (!AtEnd() && !Is(";") && !Is("}")) {
      const Token token = tokens_[at_];
      const Token* before = head.tokens.empty() ? nullptr : &head.tokens.back();
      if (Is("{")) {
        // A member that is initialized with braces, else the body.
        if (!initializers || before == nullptr || !(IsName(*before) || before->text == ">")) break;
        SkipBracket();
        head.tokens.push_back({"}", token.line});
      } else if (Is("[")) {
        SkipBracket();
      } else if (Is("<") && !(before != nullptr && before->text == "operator") && !head.assigned) {
        SkipAngles();
        if (initializers) head.tokens.push_back({">", token.line});
      } else if (Is("(")) {
        ReadParameters(head);
      } else {
        if (Is("=") && head.params == Head::kNone && !head.Has("operator")) head.assigned = true;
        if (Is("=") && (NextIs("default") || NextIs("delete"))) head.without = true;
        if (Is(":") && head.params != Head::kNone) initializers = true;
        ++at_;
        head.tokens.push_back(token);
      }
    }
    return head;
  }

  void ReadParameters(Head& head) {
    const Token token = tokens_[at_];
    const Token* before = head.tokens.empty() ? nullptr : &head.tokens.back();
    if (before != nullptr && before->text == "operator" && NextIs(")")) {  // operator()
      at_ += 2;
      head.tokens.push_back({"()", token.line});
      return;
    }
    const bool after_name = before != nullptr && (IsName(*before) || head.Has("operator"));
    if (head.params == Head::kNone && after_name && !TakesBrackets(before->text) &&
        !(IsMacroName(*before) && head.tokens.size() > 1)) {
      head.pointer = NextIs("*") || NextIs("&");
      head.params = head.tokens.size();
    }
    SkipBracket();
    head.tokens.push_back({"(", token.line});
  }

  void Declaration(const std::string& name, ScannedClass* in) {
    if (Is(";")) {
      ++at_;
      return;
    }
    if ((Is("public") || Is("private") || Is("protected")) && NextIs(":")) {
      at_ += 2;
      return;
    }
    while (Is("template") && NextIs("<")) {
      ++at_;
      SkipAngles();
    }
    const Head head = ReadHead();
    if (in != nullptr && IsMethod(head, in->name)) ++in->methods;
    if (!Is("{")) {
      if (Is(";")) ++at_;
      return;
    }
    if (head.BeginsWith("namespace") || head.BeginsWith("extern") ||
        (head.BeginsWith("inline") && head.Has("namespace"))) {
      if (head.IsFunction()) return Body(head);
      ++at_;
      Scope(name, nullptr);
      Close();
    } else if (head.Has("enum")) {
      SkipBracket();
      SkipToSemicolon();
    } else if (head.IsClass()) {
      Class(head, name);
    } else if (head.IsFunction()) {
      Body(head);
    } else {
      SkipBracket();
      SkipToSemicolon();
    }
  }

  static bool IsMethod(const Head& head, const std::string& class_name) {
    if (!head.IsFunction() || head.without) return false;
    for (const char* other : {"friend", "using", "typedef", "static_assert"}) {
      if (head.BeginsWith(other)) return false;
    }
    const std::string name = head.FunctionName();
    const size_t colons = class_name.rfind("::");
    const std::string own =
        colons == std::string::npos ? class_name : class_name.substr(colons + 2);
    if (name == own || name.starts_with("~")) return false;
    // A macro alone, as MOCK_METHOD(...), declares nothing that is told apart.
    return !(head.params == 1 && IsMacroName(head.tokens[0]));
  }

  void Class(const Head& head, const std::string& name) {
    ScannedClass found;
    found.name = name.empty() ? head.ClassName() : name + "::" + head.ClassName();
    found.line = tokens_[at_].line;
    ++at_;
    Scope(found.name, &found);
    Close();
    SkipToSemicolon();
    file_.classes.push_back(std::move(found));
  }

  void Body(const Head& head) {
    ScannedFunction found;
    found.name = head.FunctionName();
    found.line = tokens_[at_].line;
    SkipBracket();
    found.lines = tokens_[at_ - 1].line - found.line;
    file_.functions.push_back(std::move(found));
  }

  void Close() {
    if (Is("}")) {
      ++at_;
    } else {
      file_.balanced = false;
    }
  }

  // The rest of a variable's declaration.
  void SkipToSemicolon() {
    while (!AtEnd() && !Is(";") && !Is("}")) {
      if (Is("(") || Is("[") || Is("{")) {
        SkipBracket();
      } else {
        ++at_;
      }
    }
    if (Is(";")) ++at_;
  }

  std::string stripped_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  ScannedFile file_;
};

}  // namespace

std::string WithoutComments(std::string_view text) { return Stripper(text).Strip(); }

ScannedFile ScanCpp(std::string_view text) { return Scanner(text).Scan(); }

}  // namespace withy::arch
