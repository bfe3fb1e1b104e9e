// Filters that make text.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/jinja/characters.h"
#include "engine/jinja/filters.h"
#include "engine/jinja/json.h"
#include "engine/jinja/methods.h"
#include "engine/jinja/operators.h"
#include "engine/jinja/text_operations.h"

namespace withy::jinja {
namespace {

absl::StatusOr<Value> Trim(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Value* characters = arguments.Find(0, "chars");
  const bool given = characters != nullptr && characters->is_string();
  WITHY_ASSIGN_OR_RETURN(const Text text, in.Printed(input));
  return Value::String(Stripped(text, given ? &characters->text() : nullptr, Side::kBoth));
}

// The printed value, of which each character is mapped.
absl::StatusOr<Text> ToMap(Interpreter& in, const Value& input) {
  WITHY_ASSIGN_OR_RETURN(Text text, in.Printed(input));
  WITHY_RETURN_IF_ERROR(in.Spend(text.size()));
  return text;
}

template <std::string (*mapping)(char32_t)>
absl::StatusOr<Value> ToCase(Interpreter& in, const Value& input, const Arguments&) {
  WITHY_ASSIGN_OR_RETURN(const Text text, ToMap(in, input));
  return Value::String(MapCharacters(text, mapping));
}

absl::StatusOr<Value> Capitalize(Interpreter& in, const Value& input, const Arguments&) {
  WITHY_ASSIGN_OR_RETURN(const Text text, ToMap(in, input));
  return Value::String(TitleCased(text, true));
}

// Unlike str.title(), words begin behind white space, - and opening brackets only.
absl::StatusOr<Value> ToTitle(Interpreter& in, const Value& input, const Arguments&) {
  WITHY_ASSIGN_OR_RETURN(const Text text, ToMap(in, input));
  const std::string& bytes = text.bytes();
  Text out;
  bool inside = false;
  for (size_t at = 0; at < bytes.size();) {
    char32_t code = 0;
    const size_t length = CharAt(bytes, at, &code);
    const bool separates =
        IsSpace(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
    out.AppendInPlaceOf(text, at,
                        separates ? bytes.substr(at, length)
                        : inside  ? Lower(code)
                                  : Upper(code));
    inside = !separates;
    at += length;
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> Replace(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Value* from = arguments.Find(0, "old");
  const Value* to = arguments.Find(1, "new");
  if (from == nullptr || to == nullptr) {
    return absl::InvalidArgumentError("replace needs what to replace, and by what");
  }
  const Value* count = arguments.Find(2, "count");
  const int64_t limit = count != nullptr && count->is_integer() ? count->integer() : -1;
  WITHY_ASSIGN_OR_RETURN(const Text text, in.Printed(input));
  return ReplaceWithin(in, text, Str(*from), Str(*to), limit);
}

absl::StatusOr<Value> Indent(Interpreter& in, const Value& input, const Arguments& arguments) {
  if (!input.is_string()) return WrongInput("indent", input);
  const Value* width = arguments.Find(0, "width");
  Text spaces(std::string(4, ' '));
  if (width != nullptr && width->is_string()) {
    spaces = width->text();
  } else if (width != nullptr && width->is_integer()) {
    spaces =
        Text(std::string(static_cast<size_t>(std::clamp<int64_t>(width->integer(), 0, 1000)), ' '));
  }
  const bool blank = Flag(arguments, 2, "blank");
  WITHY_ASSIGN_OR_RETURN(Text text, in.Printed(input));
  text.Append("\n");  // so that a last line break is kept
  WITHY_ASSIGN_OR_RETURN(const Value lines,
                         CallMethod(in, Value::String(std::move(text)), "splitlines", {}));
  Text out;
  if (Flag(arguments, 1, "first")) out.Append(spaces);
  for (size_t i = 0; i < lines.items().size(); ++i) {
    const Text& line = lines.items()[i].text();
    if (i > 0) out.Append("\n");
    if (i > 0 && (blank || !line.empty())) out.Append(spaces);
    out.Append(line);
    WITHY_RETURN_IF_ERROR(in.SpendBytes(line.size() + spaces.size()));
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> Escape(Interpreter& in, const Value& input, const Arguments&) {
  WITHY_ASSIGN_OR_RETURN(const Text text, ToMap(in, input));
  Text out;
  for (size_t at = 0; at < text.size(); ++at) {
    const size_t known = std::string_view("&<>'\"").find(text.bytes()[at]);
    constexpr const char* kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    if (known == std::string_view::npos) {
      out.Append(text, at, at + 1);
    } else {
      out.AppendInPlaceOf(text, at, kEscapes[known]);
    }
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> ToString(Interpreter& in, const Value& input, const Arguments&) {
  WITHY_ASSIGN_OR_RETURN(Text text, in.Printed(input));
  return Value::String(std::move(text));
}

absl::StatusOr<Value> FormatFilter(Interpreter& in, const Value& input,
                                   const Arguments& arguments) {
  WITHY_ASSIGN_OR_RETURN(Text text, in.Printed(input));
  return Arithmetic(Operator::kModulo, Value::String(std::move(text)),
                    Value::Tuple(arguments.positional), in.options().max_bytes);
}

absl::StatusOr<Value> Join(Interpreter& in, const Value& input, const Arguments& arguments) {
  WITHY_ASSIGN_OR_RETURN(const std::vector<Value> items, in.Iterate(input));
  const Value* separator = arguments.Find(0, "d");
  const Text between = separator == nullptr ? Text() : Str(*separator);
  const Value* attribute = arguments.Find(1, "attribute");
  Text text;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (attribute != nullptr && !attribute->is_none()) {
      WITHY_ASSIGN_OR_RETURN(item, Path(in, item, *attribute));
    }
    if (i > 0) text.Append(between);
    WITHY_ASSIGN_OR_RETURN(const Text printed, in.Printed(item));
    text.Append(printed);
    WITHY_RETURN_IF_ERROR(in.SpendBytes(between.weight()));
    if (text.size() > in.options().max_bytes) break;  // refused by its size
  }
  return Value::String(std::move(text));
}

absl::StatusOr<Value> ToJsonFilter(Interpreter& in, const Value& input,
                                   const Arguments& arguments) {
  JsonStyle style;
  // transformers puts ensure_ascii in front of indent.
  const Value* indent = Named(arguments, "indent");
  if (indent == nullptr && arguments.positional.size() > 1) indent = &arguments.positional[1];
  if (indent != nullptr && indent->is_integer()) {
    style.indent =
        Text(std::string(static_cast<size_t>(std::clamp<int64_t>(indent->integer(), 0, 100)), ' '));
  } else if (indent != nullptr && indent->is_string()) {
    style.indent = indent->text();
  }
  if (const Value* separators = Named(arguments, "separators");
      separators != nullptr && separators->is_sequence() && separators->items().size() == 2) {
    style.item_separator = Str(separators->items()[0]);
    style.key_separator = Str(separators->items()[1]);
  }
  const Value* ascii = Named(arguments, "ensure_ascii");
  if (ascii == nullptr && !arguments.positional.empty()) ascii = &arguments.positional[0];
  if (ascii != nullptr && Truth(*ascii)) {
    return absl::UnimplementedError("tojson with ensure_ascii is not supported");
  }
  const Value* sorted = Named(arguments, "sort_keys");
  style.sort_keys = sorted != nullptr && Truth(*sorted);
  // Each value has a weight of at least 8.
  const auto levels = static_cast<size_t>(input.depth());
  size_t between = style.indent ? style.indent->weight() * levels : 0;
  if (style.item_separator) between += style.item_separator->weight();
  if (style.key_separator) between += style.key_separator->weight();
  WITHY_RETURN_IF_ERROR(in.SpendBytes(input.weight()));
  WITHY_RETURN_IF_ERROR(in.Spend((input.weight() / 8 + 1) * (between / 16)));
  WITHY_ASSIGN_OR_RETURN(Text text, ToJson(input, style));
  return Value::String(std::move(text));
}

}  // namespace

const Filters& TextFilters() {
  static const auto* filters = new Filters{
      {"capitalize", Capitalize},
      {"e", Escape},
      {"escape", Escape},
      {"format", FormatFilter},
      {"indent", Indent},
      {"join", Join},
      {"lower", ToCase<Lower>},
      {"replace", Replace},
      {"safe", ToString},
      {"string", ToString},
      {"title", ToTitle},
      {"tojson", ToJsonFilter},
      {"trim", Trim},
      {"upper", ToCase<Upper>},
  };
  return *filters;
}

}  // namespace withy::jinja
