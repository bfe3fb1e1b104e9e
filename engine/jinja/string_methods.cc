#include "engine/jinja/string_methods.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/jinja/characters.h"
#include "engine/jinja/operators.h"
#include "engine/jinja/text_operations.h"
#include "engine/tokenizer/unicode.h"

namespace withy::jinja {
namespace {

constexpr size_t kNoPosition = std::string::npos;

// The string argument at `index`; null if it is not given or no string.
const Text* TextAt(const Arguments& arguments, size_t index, std::string_view name) {
  const Value* value = arguments.Find(index, name);
  return value != nullptr && value->is_string() ? &value->text() : nullptr;
}

int64_t IntegerAt(const Arguments& arguments, size_t index, std::string_view name,
                  int64_t otherwise) {
  const Value* value = arguments.Find(index, name);
  return value != nullptr && value->is_integer() ? value->integer() : otherwise;
}

template <Side side>
absl::StatusOr<Value> Strip(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Value* characters = arguments.Find(0, "chars");
  const bool given = characters != nullptr && !characters->is_none();
  if (given && !characters->is_string()) return WrongArguments("strip()");
  return Value::String(Stripped(self.text(), given ? &characters->text() : nullptr, side));
}

std::vector<Value> SplitSpaces(const Text& text, int64_t limit) {
  std::vector<Value> parts;
  const std::string& bytes = text.bytes();
  size_t at = SpacesEnd(bytes, 0);
  while (at < bytes.size()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(Value::String(text.Sub(at, SpacesBegin(bytes))));
      break;
    }
    size_t end = at;
    while (end < bytes.size() && SpacesEnd(bytes, end) == end) end += CharBytes(bytes, end);
    parts.push_back(Value::String(text.Sub(at, end)));
    at = SpacesEnd(bytes, end);
  }
  return parts;
}

absl::StatusOr<Value> Split(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Value* separator = arguments.Find(0, "sep");
  const int64_t limit = IntegerAt(arguments, 1, "maxsplit", -1);
  const Text& text = self.text();
  WITHY_RETURN_IF_ERROR(in.Spend(text.size()));
  if (separator == nullptr || separator->is_none()) {
    return Value::List(SplitSpaces(text, limit));
  }
  if (!separator->is_string() || separator->text().empty()) return WrongArguments("split()");
  const std::string& by = separator->text().bytes();
  std::vector<Value> parts;
  size_t at = 0;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t end = FindBytes(text.bytes(), by, at);
    if (end == kNoPosition) break;
    parts.push_back(Value::String(text.Sub(at, end)));
    at = end + by.size();
  }
  parts.push_back(Value::String(text.Sub(at, text.size())));
  return Value::List(std::move(parts));
}

absl::StatusOr<Value> RightSplit(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Text* separator = TextAt(arguments, 0, "sep");
  const int64_t limit = IntegerAt(arguments, 1, "maxsplit", -1);
  if (limit < 0) return Split(in, self, arguments);
  if (separator == nullptr || separator->empty()) return WrongArguments("rsplit()");
  const Text& text = self.text();
  WITHY_RETURN_IF_ERROR(in.Spend(text.size()));
  std::vector<Value> parts;
  size_t end = text.size();
  while (static_cast<int64_t>(parts.size()) < limit && end >= separator->size()) {
    WITHY_RETURN_IF_ERROR(in.SpendBytes(end));
    const size_t at =
        FindLastBytes(std::string_view(text.bytes()).substr(0, end), separator->bytes());
    if (at == kNoPosition) break;
    parts.push_back(Value::String(text.Sub(at + separator->size(), end)));
    end = at;
  }
  parts.push_back(Value::String(text.Sub(0, end)));
  std::reverse(parts.begin(), parts.end());
  return Value::List(std::move(parts));
}

absl::StatusOr<Value> SplitLines(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Value* keep = arguments.Find(0, "keepends");
  const bool ends = keep != nullptr && Truth(*keep);
  const Text& text = self.text();
  WITHY_RETURN_IF_ERROR(in.Spend(text.size()));
  const std::string& bytes = text.bytes();
  std::vector<Value> lines;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    char32_t code = 0;
    size_t next = at + CharAt(bytes, at, &code);
    const bool breaks = (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) ||
                        code == 0x85 || code == 0x2028 || code == 0x2029;
    if (breaks) {
      if (code == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      lines.push_back(Value::String(text.Sub(begin, ends ? next : at)));
      begin = next;
    }
    at = next;
  }
  if (begin < bytes.size()) lines.push_back(Value::String(text.Sub(begin, bytes.size())));
  return Value::List(std::move(lines));
}

template <bool at_end>
absl::StatusOr<Value> StartsOrEnds(Interpreter& in, const Value& self, const Arguments& arguments) {
  if (arguments.positional.size() != 1) {
    return absl::UnimplementedError("startswith() and endswith() take one argument here");
  }
  const Value& wanted = arguments.positional[0];
  std::vector<Value> several = {wanted};
  if (wanted.kind() == Kind::kTuple) several = wanted.items();
  bool found = false;
  for (const Value& one : several) {
    if (!one.is_string()) return WrongArguments("startswith() or endswith()");
    const std::string& bytes = self.text().bytes();
    found = found ||
            (at_end ? bytes.ends_with(one.text().bytes()) : bytes.starts_with(one.text().bytes()));
  }
  return Value::Bool(found);
}

template <bool at_end>
absl::StatusOr<Value> Remove(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Text* part = TextAt(arguments, 0, "");
  if (part == nullptr) return WrongArguments("removeprefix() or removesuffix()");
  const Text& text = self.text();
  const size_t rest = text.size() - std::min(text.size(), part->size());
  if (at_end) {
    return text.bytes().ends_with(part->bytes()) ? Value::String(text.Sub(0, rest)) : self;
  }
  return text.bytes().starts_with(part->bytes())
             ? Value::String(text.Sub(part->size(), text.size()))
             : self;
}

absl::StatusOr<Value> ReplaceAll(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Text* from = TextAt(arguments, 0, "old");
  const Text* to = TextAt(arguments, 1, "new");
  if (from == nullptr || to == nullptr) return WrongArguments("replace()");
  return ReplaceWithin(in, self.text(), *from, *to, IntegerAt(arguments, 2, "count", -1));
}

template <std::string (*mapping)(char32_t)>
absl::StatusOr<Value> InCase(Interpreter& in, const Value& self, const Arguments&) {
  WITHY_RETURN_IF_ERROR(in.Spend(self.text().size()));
  return Value::String(MapCharacters(self.text(), mapping));
}

template <bool capitalize_only>
absl::StatusOr<Value> InTitleCase(Interpreter& in, const Value& self, const Arguments&) {
  WITHY_RETURN_IF_ERROR(in.Spend(self.text().size()));
  return Value::String(TitleCased(self.text(), capitalize_only));
}

// Whether there are characters and all of them have the property.
template <bool (*property)(char32_t)>
absl::StatusOr<Value> All(Interpreter& in, const Value& self, const Arguments&) {
  const std::string& bytes = self.text().bytes();
  WITHY_RETURN_IF_ERROR(in.Spend(bytes.size()));
  bool all = !bytes.empty();
  for (size_t at = 0; all && at < bytes.size();) {
    char32_t code = 0;
    at += CharAt(bytes, at, &code);
    all = property(code);
  }
  return Value::Bool(all);
}

bool IsLetter(char32_t code) { return u_isalpha(static_cast<UChar32>(code)) != 0; }
bool IsDecimal(char32_t code) { return u_isdigit(static_cast<UChar32>(code)) != 0; }
bool IsLetterOrDigit(char32_t code) { return IsLetter(code) || IsDecimal(code); }

// Whether the cased characters, at least one, are all upper (lower) case.
template <bool upper>
absl::StatusOr<Value> AllCased(Interpreter& in, const Value& self, const Arguments&) {
  const std::string& bytes = self.text().bytes();
  WITHY_RETURN_IF_ERROR(in.Spend(bytes.size()));
  bool any = false;
  for (size_t at = 0; at < bytes.size();) {
    char32_t code = 0;
    at += CharAt(bytes, at, &code);
    if (!IsCased(code)) continue;
    const auto point = static_cast<UChar32>(code);
    if (!(upper ? u_hasBinaryProperty(point, UCHAR_UPPERCASE)
                : u_hasBinaryProperty(point, UCHAR_LOWERCASE))) {
      return Value::Bool(false);
    }
    any = true;
  }
  return Value::Bool(any);
}

template <bool from_right, bool must_be>
absl::StatusOr<Value> FindText(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Text* part = TextAt(arguments, 0, "");
  if (part == nullptr || arguments.positional.size() != 1) return WrongArguments("find()");
  const std::string& bytes = self.text().bytes();
  WITHY_RETURN_IF_ERROR(in.Spend(bytes.size()));
  const size_t at =
      from_right ? FindLastBytes(bytes, part->bytes()) : FindBytes(bytes, part->bytes());
  if (at == kNoPosition) {
    if (must_be) return absl::InvalidArgumentError("index(): the substring is not there");
    return Value::Int(-1);
  }
  return Value::Int(static_cast<int64_t>(CountChars(std::string_view(bytes).substr(0, at))));
}

absl::StatusOr<Value> CountText(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Text* part = TextAt(arguments, 0, "");
  if (part == nullptr) return WrongArguments("count()");
  const std::string& bytes = self.text().bytes();
  WITHY_RETURN_IF_ERROR(in.Spend(bytes.size()));
  if (part->empty()) return Value::Int(static_cast<int64_t>(CountChars(bytes)) + 1);
  int64_t count = 0;
  for (size_t at = FindBytes(bytes, part->bytes()); at != kNoPosition;
       at = FindBytes(bytes, part->bytes(), at + part->size())) {
    ++count;
  }
  return Value::Int(count);
}

absl::StatusOr<Value> JoinTexts(Interpreter& in, const Value& self, const Arguments& arguments) {
  if (arguments.positional.size() != 1) return WrongArguments("join()");
  WITHY_ASSIGN_OR_RETURN(const std::vector<Value> items, in.Iterate(arguments.positional[0]));
  Text text;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_string()) return WrongArguments("join()");
    if (i > 0) text.Append(self.text());
    text.Append(items[i].text());
    WITHY_RETURN_IF_ERROR(in.SpendBytes(items[i].weight() + self.weight()));
  }
  return Value::String(std::move(text));
}

template <bool from_right>
absl::StatusOr<Value> Partition(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Text* by = TextAt(arguments, 0, "");
  if (by == nullptr || by->empty()) return WrongArguments("partition()");
  const Text& text = self.text();
  WITHY_RETURN_IF_ERROR(in.Spend(text.size()));
  const size_t at =
      from_right ? FindLastBytes(text.bytes(), by->bytes()) : FindBytes(text.bytes(), by->bytes());
  if (at == kNoPosition) {
    return from_right ? Value::Tuple({Value::String(""), Value::String(""), self})
                      : Value::Tuple({self, Value::String(""), Value::String("")});
  }
  return Value::Tuple({Value::String(text.Sub(0, at)), Value::String(*by),
                       Value::String(text.Sub(at + by->size(), text.size()))});
}

// "{} and {1}".format(a, b): without format specifications.
absl::StatusOr<Value> Format(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Text& text = self.text();
  const std::string& bytes = text.bytes();
  Text out;
  size_t next = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.Append(text, at, brace);
    if (brace == bytes.size()) break;
    if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
      out.Append(text, brace, brace + 1);
      at = brace + 2;
      continue;
    }
    const size_t end = bytes.find('}', brace);
    if (bytes[brace] == '}' || end == kNoPosition) return WrongArguments("format()");
    const std::string field = bytes.substr(brace + 1, end - brace - 1);
    const bool number =
        std::all_of(field.begin(), field.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (field.size() > 3 && number) return WrongArguments("format()");
    const Value* value = field.empty() ? arguments.Find(next++, "")
                         : number      ? arguments.Find(std::stoul(field), "")
                                       : arguments.Find(SIZE_MAX, field);
    if (value == nullptr) {
      return absl::UnimplementedError(absl::StrCat("format() with {", field.substr(0, 40), "}"));
    }
    WITHY_ASSIGN_OR_RETURN(const Text printed, in.Printed(*value));
    out.Append(printed);
    at = end + 1;
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> ZeroFill(Interpreter& in, const Value& self, const Arguments& arguments) {
  const int64_t width = std::min<int64_t>(IntegerAt(arguments, 0, "width", 0), 1000);
  const auto length = static_cast<int64_t>(CountChars(self.text().bytes()));
  Text out;
  size_t sign = 0;
  if (!self.text().empty() && (self.text().bytes()[0] == '-' || self.text().bytes()[0] == '+')) {
    sign = 1;
  }
  out.Append(self.text(), 0, sign);
  if (width > length) out.Append(std::string(static_cast<size_t>(width - length), '0'));
  out.Append(self.text(), sign, self.text().size());
  return Value::String(std::move(out));
}

}  // namespace

absl::Status WrongArguments(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(what), " has wrong arguments"));
}

const Methods& StringMethods() {
  static const auto* methods = new Methods{
      {"strip", Strip<Side::kBoth>},
      {"lstrip", Strip<Side::kLeft>},
      {"rstrip", Strip<Side::kRight>},
      {"split", Split},
      {"rsplit", RightSplit},
      {"splitlines", SplitLines},
      {"startswith", StartsOrEnds<false>},
      {"endswith", StartsOrEnds<true>},
      {"removeprefix", Remove<false>},
      {"removesuffix", Remove<true>},
      {"replace", ReplaceAll},
      {"upper", InCase<Upper>},
      {"lower", InCase<Lower>},
      {"title", InTitleCase<false>},
      {"capitalize", InTitleCase<true>},
      {"isalpha", All<IsLetter>},
      {"isdigit", All<IsDecimal>},
      {"isnumeric", All<IsDecimal>},
      {"isdecimal", All<IsDecimal>},
      {"isalnum", All<IsLetterOrDigit>},
      {"isspace", All<IsSpace>},
      {"isupper", AllCased<true>},
      {"islower", AllCased<false>},
      {"find", FindText<false, false>},
      {"rfind", FindText<true, false>},
      {"index", FindText<false, true>},
      {"rindex", FindText<true, true>},
      {"count", CountText},
      {"join", JoinTexts},
      {"partition", Partition<false>},
      {"rpartition", Partition<true>},
      {"format", Format},
      {"zfill", ZeroFill},
  };
  return *methods;
}

}  // namespace withy::jinja
