#include "engine/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/jinja/operators.h"

namespace withy::jinja {
namespace {

constexpr int kMaxJsonDepth = 64;

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

absl::StatusOr<Value> Converted(const nlohmann::ordered_json& json, int32_t source) {
  using Json = nlohmann::ordered_json;
  switch (json.type()) {
    case Json::value_t::null:
      return Value::None();
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        return absl::InvalidArgumentError("JSON: an integer has more than 64 bits");
      }
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_float:
      return Value::Float(json.get<double>());
    case Json::value_t::string:
      return Value::String(json.get_ref<const std::string&>(), source);
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) {
        WITHY_ASSIGN_OR_RETURN(Value value, Converted(item, source));
        items.push_back(std::move(value));
      }
      return Value::List(std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        WITHY_ASSIGN_OR_RETURN(Value value, Converted(item, source));
        WITHY_RETURN_IF_ERROR(dict.Set(Value::String(key, source), std::move(value)));
      }
      return Value::Of(std::move(dict));
    }
    default:
      return absl::InvalidArgumentError("JSON: a value of no known type");
  }
}

}  // namespace

absl::StatusOr<Text> ToJson(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  WITHY_RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Take();
}

absl::StatusOr<Value> FromJson(std::string_view json, int32_t source) {
  bool too_deep = false;
  const auto check = [&](int depth, nlohmann::ordered_json::parse_event_t,
                         nlohmann::ordered_json&) {
    too_deep = too_deep || depth > kMaxJsonDepth;
    return !too_deep;
  };
  const auto parsed = nlohmann::ordered_json::parse(json, check, /*allow_exceptions=*/false);
  if (too_deep) {
    return absl::InvalidArgumentError(
        absl::StrCat("JSON: nested deeper than ", kMaxJsonDepth, " levels"));
  }
  if (parsed.is_discarded()) return absl::InvalidArgumentError("JSON: not valid");
  return Converted(parsed, source);
}

}  // namespace withy::jinja
