#include "engine/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/jinja/characters.h"
#include "engine/tokenizer/unicode.h"

namespace withy::jinja {
namespace {

constexpr size_t kNowhere = std::string_view::npos;

// Operators, longer ones first.
constexpr std::array<std::string_view, 27> kOperators = {
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
    "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!"};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsWordByte(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<uint8_t>(c) >= 0x80;
}

// Newlines as "\n", without the last one.
std::string Normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

// The value of a string literal's inside.
absl::StatusOr<std::string> Unescaped(std::string_view text, int line) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    constexpr std::string_view kNames = "abfnrtv\\'\"";
    constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t at = kNames.find(c); at != kNowhere) {
      out += kValues[at];
      continue;
    }
    if (c == '\n') continue;
    const bool octal = c >= '0' && c <= '7';
    const size_t wanted = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : octal ? 3 : 0;
    if (wanted == 0) {
      out += '\\';
      out += c;
      continue;
    }
    char32_t code = 0;
    size_t digits = 0;
    for (size_t at = octal ? i : i + 1; digits < wanted && at < text.size(); ++at, ++digits) {
      const char d = text[at];
      const int value = IsDigit(d)             ? d - '0'
                        : d >= 'a' && d <= 'f' ? d - 'a' + 10
                        : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                               : 16;
      if (value >= (octal ? 8 : 16)) break;
      code = code * (octal ? 8 : 16) + static_cast<char32_t>(value);
    }
    if ((!octal && digits < wanted) || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", line, ": a string has an escape that is no character"));
    }
    i += octal ? digits - 1 : digits;
    engine::AppendUtf8(code, out);
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string text) : text_(std::move(text)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < text_.size()) WITHY_RETURN_IF_ERROR(TextAndTag());
    Add(Token::Type::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(text_).substr(at_); }

  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", ToAbsl(what)));
  }

  void Add(Token::Type type, std::string text) {
    tokens_.push_back({type, std::move(text), line_});
  }

  void Advance(size_t bytes) {
    bytes = std::min(bytes, text_.size() - at_);
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<int64_t>(at_),
                                         text_.begin() + static_cast<int64_t>(at_ + bytes), '\n'));
    at_ += bytes;
    if (bytes > 0) at_line_start_ = text_[at_ - 1] == '\n';
  }

  void SkipSpaces() {
    const size_t end = SpacesEnd(text_, at_);
    Advance(end - at_);
  }

  // Adds the text in front of a tag at `end`, whose sign is `sign`.
  void AddText(size_t end, char sign, bool block) {
    std::string_view text = std::string_view(text_).substr(at_, end - at_);
    if (sign == '-') {
      text = text.substr(0, SpacesBegin(text));
    } else if (sign != '+' && block) {
      const size_t line = text.rfind('\n') + 1;  // 0 if there is none
      if ((line > 0 || at_line_start_) && SpacesEnd(text, line) == text.size()) {
        text = text.substr(0, line);
      }
    }
    if (!text.empty()) Add(Token::Type::kText, std::string(text));
    Advance(end - at_);
  }

  // Where the next "{{", "{%" or "{#" is.
  size_t NextTag() const {
    for (size_t at = text_.find('{', at_); at != kNowhere; at = text_.find('{', at + 1)) {
      if (at + 1 < text_.size() && std::string_view("{%#").find(text_[at + 1]) != kNowhere) {
        return at;
      }
    }
    return kNowhere;
  }

  absl::Status TextAndTag() {
    const size_t tag = NextTag();
    if (tag == kNowhere) {
      Add(Token::Type::kText, std::string(rest()));
      Advance(rest().size());
      return absl::OkStatus();
    }
    const char kind = text_[tag + 1];
    const char next = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    const bool signs = next == '-' || next == '+';
    AddText(tag, signs ? next : '\0', kind != '{');
    const size_t begin_bytes = signs ? 3 : 2;
    if (kind == '#') return SkipComment(begin_bytes);
    if (kind == '%') {
      if (const std::optional<size_t> raw = RawTagBytes("raw", begin_bytes)) return Raw(*raw);
    }
    Add(kind == '{' ? Token::Type::kOutputBegin : Token::Type::kBlockBegin, "");
    Advance(begin_bytes);
    return InsideTag(kind == '%');
  }

  absl::Status SkipComment(size_t begin_bytes) {
    const size_t end = text_.find("#}", at_ + begin_bytes);
    if (end == kNowhere) return Error("a comment has no end");
    // The sign belongs to the end only if it is not the begin's.
    const bool may_sign = end > at_ + begin_bytes;
    const char sign = may_sign ? text_[end - 1] : '\0';
    Advance(end + 2 - at_);
    AfterTag(sign, true);
    return absl::OkStatus();
  }

  // Drops what a tag's end drops behind it.
  void AfterTag(char sign, bool block) {
    if (sign == '-') {
      SkipSpaces();
    } else if (sign != '+' && block && at_ < text_.size() && text_[at_] == '\n') {
      Advance(1);
    }
  }

  // The bytes of the tag `name` at at_, without what its end drops; none if another tag is there.
  std::optional<size_t> RawTagBytes(std::string_view name, size_t begin_bytes) const {
    size_t at = SpacesEnd(text_, at_ + begin_bytes);
    if (!std::string_view(text_).substr(std::min(at, text_.size())).starts_with(name)) {
      return std::nullopt;
    }
    at = SpacesEnd(text_, at + name.size());
    const std::string_view end = std::string_view(text_).substr(std::min(at, text_.size()));
    if (end.starts_with("%}")) return at + 2 - at_;
    if (end.starts_with("-%}") || end.starts_with("+%}")) return at + 3 - at_;
    return std::nullopt;
  }

  absl::Status Raw(size_t tag_bytes) {
    const char begin_sign = text_[at_ + tag_bytes - 3];
    Advance(tag_bytes);
    if (begin_sign == '-') SkipSpaces();
    for (size_t end = text_.find("{%", at_); end != kNowhere; end = text_.find("{%", end + 1)) {
      const char sign = end + 2 < text_.size() ? text_[end + 2] : '\0';
      const bool signs = sign == '-' || sign == '+';
      const size_t start = at_;
      at_ = end;
      const std::optional<size_t> bytes = RawTagBytes("endraw", signs ? 3 : 2);
      at_ = start;
      if (!bytes) continue;
      AddText(end, signs ? sign : '\0', true);
      const char end_sign = text_[at_ + *bytes - 3];
      Advance(*bytes);
      AfterTag(end_sign == '-' || end_sign == '+' ? end_sign : '\0', true);
      return absl::OkStatus();
    }
    return Error("{% raw %} has no end");
  }

  absl::Status InsideTag(bool block) {
    const std::string_view end = block ? "%}" : "}}";
    std::string open;  // brackets that are not closed yet
    while (true) {
      SkipSpaces();
      const std::string_view text = rest();
      if (text.empty()) return Error(block ? "a {% has no end" : "a {{ has no end");
      const bool signs = text.front() == '-' || (block && text.front() == '+');
      if (open.empty() && text.substr(signs ? 1 : 0).starts_with(end)) {
        Add(block ? Token::Type::kBlockEnd : Token::Type::kOutputEnd, "");
        Advance(end.size() + (signs ? 1 : 0));
        AfterTag(signs ? text.front() : '\0', block);
        return absl::OkStatus();
      }
      WITHY_RETURN_IF_ERROR(OneToken(&open));
    }
  }

  absl::Status OneToken(std::string* open) {
    const std::string_view text = rest();
    const char c = text.front();
    if (c == '\'' || c == '"') return StringToken(c);
    if (IsDigit(c)) return NumberToken();
    if (IsWordByte(c)) {
      const auto end = std::find_if_not(text.begin(), text.end(), IsWordByte);
      Add(Token::Type::kName, std::string(text.begin(), end));
      Advance(static_cast<size_t>(end - text.begin()));
      return absl::OkStatus();
    }
    const auto op = std::find_if(kOperators.begin(), kOperators.end(),
                                 [&](std::string_view known) { return text.starts_with(known); });
    if (op == kOperators.end() || *op == "!") {
      return Error(
          absl::StrCat("unexpected character '", ToAbsl(text.substr(0, CharBytes(text, 0))), "'"));
    }
    if (const size_t opens = std::string_view("([{").find(c); opens != kNowhere) {
      open->push_back(")]}"[opens]);
    } else if (std::string_view(")]}").find(c) != kNowhere) {
      if (open->empty() || open->back() != c) {
        return Error(absl::StrCat("unexpected '", std::string(1, c), "'"));
      }
      open->pop_back();
    }
    Add(Token::Type::kOperator, std::string(*op));
    Advance(op->size());
    return absl::OkStatus();
  }

  absl::Status StringToken(char quote) {
    const std::string_view text = rest();
    size_t end = 1;
    while (end < text.size() && text[end] != quote) end += text[end] == '\\' ? 2 : 1;
    if (end >= text.size()) return Error("a string has no end");
    WITHY_ASSIGN_OR_RETURN(std::string value, Unescaped(text.substr(1, end - 1), line_));
    Add(Token::Type::kString, std::move(value));
    Advance(end + 1);
    return absl::OkStatus();
  }

  static size_t Digits(std::string_view text, size_t at) {
    while (at < text.size() && (IsDigit(text[at]) || (text[at] == '_' && at + 1 < text.size() &&
                                                      IsDigit(text[at + 1])))) {
      ++at;
    }
    return at;
  }

  absl::Status NumberToken() {
    const std::string_view text = rest();
    size_t end = Digits(text, 0);
    bool real = false;
    // The digits behind a dot are an index: a.0.1
    const bool index = !tokens_.empty() && tokens_.back().type == Token::Type::kOperator &&
                       tokens_.back().text == ".";
    if (!index) {
      if (end + 1 < text.size() && text[end] == '.' && IsDigit(text[end + 1])) {
        end = Digits(text, end + 1);
        real = true;
      }
      if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
        const size_t sign = end + 1 < text.size() && (text[end + 1] == '+' || text[end + 1] == '-');
        const size_t digits = end + 1 + sign;
        if (digits < text.size() && IsDigit(text[digits])) {
          end = Digits(text, digits);
          real = true;
        }
      }
    }
    std::string number(text.substr(0, end));
    std::erase(number, '_');
    if (end < text.size() && IsWordByte(text[end])) {
      return Error(absl::StrCat("a number goes on with letters: ", number));
    }
    Add(real ? Token::Type::kFloat : Token::Type::kInteger, std::move(number));
    Advance(end);
    return absl::OkStatus();
  }

  const std::string text_;
  size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) {
  return Lexer(Normalized(source)).Run();
}

}  // namespace withy::jinja
