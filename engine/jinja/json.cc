#include "engine/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"
#include "engine/jinja/operators.h"

namespace withy::jinja {
namespace {

void AppendJsonString(const Text& text, Text* out) {
  out->Append("\"");
  const std::string& bytes = text.bytes();
  size_t plain = 0;  // begin of the characters that stay as they are
  for (size_t at = 0; at < bytes.size(); ++at) {
    const auto c = static_cast<uint8_t>(bytes[at]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out->Append(text, plain, at);
    plain = at + 1;
    constexpr std::string_view kFrom = "\"\\\n\r\t\f\b";
    constexpr std::string_view kTo = "\"\\nrtfb";
    const size_t known = kFrom.find(static_cast<char>(c));
    out->AppendInPlaceOf(text, at,
                         known != std::string_view::npos
                             ? std::string("\\") + kTo[known]
                             : absl::StrCat("\\u", absl::Hex(c, absl::kZeroPad4)));
  }
  out->Append(text, plain, bytes.size());
  out->Append("\"");
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  absl::Status Write(const Value& value, int level) {
    switch (value.kind()) {
      case Kind::kNone:
        out_.Append("null");
        return absl::OkStatus();
      case Kind::kBool:
        out_.Append(value.integer() != 0 ? "true" : "false");
        return absl::OkStatus();
      case Kind::kInt:
      case Kind::kFloat:
        out_.Append(Number(value));
        return absl::OkStatus();
      case Kind::kString:
        AppendJsonString(value.text(), &out_);
        return absl::OkStatus();
      case Kind::kList:
      case Kind::kTuple:
        return WriteList(value.items(), level);
      case Kind::kDict:
        return WriteDict(value.dict(), level);
      case Kind::kUndefined:
        return UndefinedError(value);
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("a ", ToAbsl(TypeName(value)), " has no JSON"));
    }
  }

  Text Take() { return std::move(out_); }

 private:
  static std::string Number(const Value& value) {
    if (value.is_integer()) return std::to_string(value.integer());
    const double number = value.number();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return FloatRepr(number);
  }

  void NewLine(int level) {
    if (!style_.indent) return;
    out_.Append("\n");
    for (int i = 0; i < level; ++i) out_.Append(*style_.indent);
  }

  void Separate(bool first, int level) {
    if (!first) {
      out_.Append(style_.item_separator.value_or(Text(style_.indent ? "," : ", ")));
    }
    NewLine(level);
  }

  absl::Status WriteList(const std::vector<Value>& items, int level) {
    out_.Append("[");
    for (size_t i = 0; i < items.size(); ++i) {
      Separate(i == 0, level + 1);
      WITHY_RETURN_IF_ERROR(Write(items[i], level + 1));
    }
    if (!items.empty()) NewLine(level);
    out_.Append("]");
    return absl::OkStatus();
  }

  absl::Status WriteKey(const Value& key) {
    if (key.is_string()) {
      AppendJsonString(key.text(), &out_);
      return absl::OkStatus();
    }
    if (key.is_sequence()) return absl::InvalidArgumentError("a tuple is no key in JSON");
    out_.Append("\"");
    WITHY_RETURN_IF_ERROR(Write(key, 0));
    out_.Append("\"");
    return absl::OkStatus();
  }

  absl::Status WriteDict(const Dict& dict, int level) {
    std::vector<Dict::Entry> entries = dict.entries();
    if (style_.sort_keys) {
      absl::Status status;
      std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
        const absl::StatusOr<int> order = Order(a.first, b.first);
        if (!order.ok()) status = order.status();
        return order.ok() && *order < 0;
      });
      WITHY_RETURN_IF_ERROR(status);
    }
    out_.Append("{");
    bool first = true;
    for (const auto& [key, value] : entries) {
      Separate(first, level + 1);
      first = false;
      WITHY_RETURN_IF_ERROR(WriteKey(key));
      out_.Append(style_.key_separator.value_or(Text(": ")));
      WITHY_RETURN_IF_ERROR(Write(value, level + 1));
    }
    if (!entries.empty()) NewLine(level);
    out_.Append("}");
    return absl::OkStatus();
  }

  const JsonStyle& style_;
  Text out_;
};

// Builds a value from nlohmann's parser, which calls this for each part of the text. Without a
// recursion, and with a step for each part: a dict finds its keys by their hash.
class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit ValueBuilder(int32_t source) : source_(source) {}

  bool null() override { return Add(Value::None()); }
  bool boolean(bool value) override { return Add(Value::Bool(value)); }
  bool number_integer(int64_t value) override { return Add(Value::Int(value)); }
  bool number_unsigned(uint64_t value) override {
    if (value <= static_cast<uint64_t>(INT64_MAX))
      return Add(Value::Int(static_cast<int64_t>(value)));
    return Fail("JSON: an integer has more than 64 bits");
  }
  bool number_float(double value, const std::string&) override { return Add(Value::Float(value)); }
  bool string(std::string& value) override { return Add(Value::String(value, source_)); }
  bool binary(nlohmann::json::binary_t&) override { return Fail("JSON: bytes"); }
  bool start_object(size_t) override { return Open(/*object=*/true); }
  bool start_array(size_t) override { return Open(/*object=*/false); }
  bool key(std::string& value) override {
    open_.back().key = Value::String(value, source_);
    return true;
  }
  bool end_object() override {
    Value made = Value::Of(std::move(open_.back().dict));
    open_.pop_back();
    return Add(std::move(made));
  }
  bool end_array() override {
    Value made = Value::List(std::move(open_.back().items));
    open_.pop_back();
    return Add(std::move(made));
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    return Fail("JSON: not valid");
  }

  absl::StatusOr<Value> Take() {
    if (!status_.ok()) return status_;
    return std::move(value_);
  }

 private:
  struct Container {
    bool object = false;
    Dict dict = {};
    std::vector<Value> items = {};
    Value key = {};
  };

  bool Fail(std::string_view why) {
    status_.Update(absl::InvalidArgumentError(ToAbsl(why)));
    return false;
  }

  bool Open(bool object) {
    if (open_.size() == static_cast<size_t>(kMaxJsonDepth)) {
      return Fail(absl::StrCat("JSON: nested deeper than ", kMaxJsonDepth, " levels"));
    }
    open_.push_back({.object = object});
    return true;
  }

  bool Add(Value value) {
    if (open_.empty()) {
      value_ = std::move(value);
    } else if (open_.back().object) {
      status_.Update(open_.back().dict.Set(open_.back().key, std::move(value)));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return status_.ok();
  }

  const int32_t source_;
  std::vector<Container> open_;  // outermost first
  Value value_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Text> ToJson(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  WITHY_RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Take();
}

absl::StatusOr<Value> FromJson(std::string_view json, int32_t source) {
  ValueBuilder builder(source);
  nlohmann::json::sax_parse(json, &builder);
  return builder.Take();
}

}  // namespace withy::jinja
