#include "engine/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/flat_destruction.h"
#include "base/strings.h"
#include "engine/tokenizer/unicode.h"

namespace withy::jinja {
namespace {

constexpr size_t kScalarWeight = 8;

// `a` + `b`, or the largest number.
size_t SaturatingSum(size_t a, size_t b) { return a + b < a ? SIZE_MAX : a + b; }

std::shared_ptr<const Sequence> MakeSequence(std::vector<Value> items, bool tuple) {
  Sequence made{std::move(items), tuple, 0, kScalarWeight};
  for (const Value& item : made.items) {
    made.depth = std::max(made.depth, item.depth());
    made.weight = SaturatingSum(made.weight, item.weight());
  }
  made.depth += 1;
  return Value::Share(std::move(made));
}

constexpr int kShallow = 4;  // levels whose destructors may call each other

struct Remains {
  std::vector<Value> items;
  std::vector<Dict::Entry> entries;
};

struct SharedSequence : Sequence {
  explicit SharedSequence(Sequence sequence) : Sequence(std::move(sequence)) {}
  SharedSequence(const SharedSequence&) = delete;
  SharedSequence& operator=(const SharedSequence&) = delete;
  ~SharedSequence() {
    if (depth > kShallow) DestroyFlat(Remains{std::move(items), {}});
  }
};

struct SharedDict : Dict {
  explicit SharedDict(Dict dict) : Dict(std::move(dict)) {}
  SharedDict(const SharedDict&) = delete;
  SharedDict& operator=(const SharedDict&) = delete;
  ~SharedDict() {
    if (depth() > kShallow) DestroyFlat(Remains{{}, std::move(entries_)});
  }
};

// Equal for keys that Python takes as equal (1, 1.0 and True).
absl::StatusOr<std::string> KeyHash(const Value& key) {
  switch (key.kind()) {
    case Kind::kString:
      return "s" + key.text().bytes();
    case Kind::kNone:
      return std::string("z");
    case Kind::kBool:
    case Kind::kInt:
      return absl::StrCat("n", key.integer());
    case Kind::kFloat: {
      const double number = key.number();
      if (std::floor(number) == number && std::abs(number) < 1e15) {
        return absl::StrCat("n", static_cast<int64_t>(number));
      }
      return "f" + FloatRepr(number);
    }
    case Kind::kTuple: {
      std::string hash = "t";
      for (const Value& item : key.items()) {
        auto part = KeyHash(item);
        if (!part.ok()) return part.status();
        absl::StrAppend(&hash, part->size(), ":", *part);
      }
      return hash;
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("unhashable type: '", ToAbsl(TypeName(key)), "'"));
  }
}

void AppendQuoted(const Text& text, Text* out) {
  const std::string& bytes = text.bytes();
  const bool doubled =
      bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos;
  const char quote = doubled ? '"' : '\'';
  out->Append(std::string_view(&quote, 1));
  for (size_t at = 0; at < bytes.size();) {
    char32_t code = 0;
    const size_t length = std::max<size_t>(1, engine::Utf8CharAt(bytes, at, &code));
    const char c = bytes[at];
    if (c == quote || c == '\\') {
      const char escaped[] = {'\\', c};
      out->AppendInPlaceOf(text, at, std::string_view(escaped, 2));
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out->AppendInPlaceOf(text, at, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    } else if (length == 1 && (static_cast<uint8_t>(c) < 0x20 || static_cast<uint8_t>(c) >= 0x7F)) {
      const std::string escaped =
          absl::StrCat("\\x", absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad2));
      out->AppendInPlaceOf(text, at, escaped);
    } else if (code >= 0x80 && code < 0xA1) {
      out->AppendInPlaceOf(text, at, absl::StrCat("\\x", absl::Hex(static_cast<uint32_t>(code))));
    } else {
      out->Append(text, at, at + length);
    }
    at += length;
  }
  out->Append(std::string_view(&quote, 1));
}

void AppendRepr(const Value& value, Text* out) {
  if (value.is_string()) return AppendQuoted(value.text(), out);
  if (value.is_sequence()) {
    const bool tuple = value.kind() == Kind::kTuple;
    out->Append(tuple ? "(" : "[");
    for (size_t i = 0; i < value.items().size(); ++i) {
      if (i > 0) out->Append(", ");
      AppendRepr(value.items()[i], out);
    }
    if (tuple && value.items().size() == 1) out->Append(",");
    out->Append(tuple ? ")" : "]");
    return;
  }
  if (value.is_dict()) {
    out->Append("{");
    bool first = true;
    for (const auto& [key, item] : value.dict().entries()) {
      if (!first) out->Append(", ");
      first = false;
      AppendRepr(key, out);
      out->Append(": ");
      AppendRepr(item, out);
    }
    out->Append("}");
    return;
  }
  if (value.is_undefined()) return out->Append("Undefined");
  out->Append(Str(value));
}

}  // namespace

Value Value::Undefined(std::string what) {
  return Value(Data(UndefinedName{std::make_shared<const std::string>(std::move(what))}));
}

Value Value::String(Text text) {
  return Value(Data(std::make_shared<const Text>(std::move(text))));
}

Value Value::List(std::vector<Value> items) {
  return Value(Data(MakeSequence(std::move(items), false)));
}

Value Value::Tuple(std::vector<Value> items) {
  return Value(Data(MakeSequence(std::move(items), true)));
}

Value Value::Of(Dict dict) {
  return Value(Data(std::make_shared<const SharedDict>(std::move(dict))));
}

std::shared_ptr<const Sequence> Value::Share(Sequence sequence) {
  return std::make_shared<const SharedSequence>(std::move(sequence));
}

Value Value::Of(Callable callable) {
  return Value(Data(std::make_shared<const Callable>(std::move(callable))));
}

Kind Value::kind() const {
  static constexpr Kind kKinds[] = {Kind::kUndefined, Kind::kNone,   Kind::kBool,    Kind::kInt,
                                    Kind::kFloat,     Kind::kString, Kind::kList,    Kind::kDict,
                                    Kind::kNamespace, Kind::kLoop,   Kind::kCallable};
  const Kind kind = kKinds[data_.index()];
  if (kind != Kind::kList) return kind;
  return std::get<std::shared_ptr<const Sequence>>(data_)->tuple ? Kind::kTuple : Kind::kList;
}

bool Value::is_number() const { return is_integer() || kind() == Kind::kFloat; }

bool Value::is_integer() const { return kind() == Kind::kInt || kind() == Kind::kBool; }

const std::string& Value::undefined_name() const {
  static const std::string kUnnamed = "the value is undefined";
  const auto& what = std::get<UndefinedName>(data_).what;
  return what == nullptr ? kUnnamed : *what;
}

int64_t Value::integer() const {
  return kind() == Kind::kBool ? static_cast<int64_t>(std::get<bool>(data_))
                               : std::get<int64_t>(data_);
}

double Value::number() const {
  return kind() == Kind::kFloat ? std::get<double>(data_) : static_cast<double>(integer());
}

const Text& Value::text() const { return *std::get<std::shared_ptr<const Text>>(data_); }

const std::vector<Value>& Value::items() const {
  return std::get<std::shared_ptr<const Sequence>>(data_)->items;
}

const Dict& Value::dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }

const LoopState& Value::loop() const { return *std::get<std::shared_ptr<const LoopState>>(data_); }

const Callable& Value::callable() const {
  return *std::get<std::shared_ptr<const Callable>>(data_);
}

int Value::depth() const {
  switch (kind()) {
    case Kind::kList:
    case Kind::kTuple:
      return std::get<std::shared_ptr<const Sequence>>(data_)->depth;
    case Kind::kDict:
      return dict().depth();
    case Kind::kLoop:
      return loop().items->depth + 1;
    case Kind::kCallable:
      return callable().receiver.depth() + 1;
    default:
      return 0;
  }
}

size_t Value::weight() const {
  switch (kind()) {
    case Kind::kString:
      return text().weight();
    case Kind::kList:
    case Kind::kTuple:
      return std::get<std::shared_ptr<const Sequence>>(data_)->weight;
    case Kind::kDict:
      return dict().weight();
    case Kind::kLoop:
      return loop().items->weight;
    case Kind::kCallable:
      return SaturatingSum(kScalarWeight, callable().receiver.weight());
    default:
      return kScalarWeight;
  }
}

void Dict::SetAt(std::string hash, Value key, Value value) {
  weight_ = SaturatingSum(weight_, SaturatingSum(key.weight(), value.weight()));
  depth_ = std::max({depth_, key.depth() + 1, value.depth() + 1});
  const auto [at, added] = index_.try_emplace(std::move(hash), entries_.size());
  if (added) {
    entries_.emplace_back(std::move(key), std::move(value));
  } else {
    entries_[at->second].second = std::move(value);
  }
}

absl::Status Dict::Set(const Value& key, Value value) {
  absl::StatusOr<std::string> hash = KeyHash(key);
  if (!hash.ok()) return hash.status();
  SetAt(*std::move(hash), key, std::move(value));
  return absl::OkStatus();
}

void Dict::Set(std::string_view key, Value value) {
  SetAt("s" + std::string(key), Value::String(key), std::move(value));
}

const Value* Dict::Find(const Value& key) const {
  const absl::StatusOr<std::string> hash = KeyHash(key);
  if (!hash.ok()) return nullptr;
  const auto found = index_.find(*hash);
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

const Value* Dict::Find(std::string_view key) const {
  const auto found = index_.find("s" + std::string(key));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

std::string_view TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCallable:
      return "function";
  }
  return "object";
}

bool Truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.number() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.items().empty();
    case Kind::kDict:
      return value.dict().size() > 0;
    default:
      return true;
  }
}

// The shortest digits that give the same double, in exponent form from 1e16 on and below 1e-4.
std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  char buffer[400];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(buffer, end);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

Text Str(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return Text();
    case Kind::kNone:
      return Text("None");
    case Kind::kBool:
      return Text(value.integer() != 0 ? "True" : "False");
    case Kind::kInt:
      return Text(std::to_string(value.integer()));
    case Kind::kFloat:
      return Text(FloatRepr(value.number()));
    case Kind::kString:
      return value.text();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return Repr(value);
    default:
      return Text("<" + std::string(TypeName(value)) + ">");
  }
}

Text Repr(const Value& value) {
  Text text;
  AppendRepr(value, &text);
  return text;
}

}  // namespace withy::jinja
