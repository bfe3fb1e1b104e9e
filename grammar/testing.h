// For tests and benchmarks: a validator of the JSON Schemas that schema_check.h lets pass, written
// from the standard and not from what compiles them, example schemas and random ones.
#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace withy::grammar {

using TestJson = nlohmann::json;

// Source: JSON Schema 2020-12, validation vocabulary.
class SchemaValidator {
 public:
  explicit SchemaValidator(TestJson document) : document_(std::move(document)) {}

  bool Allows(const TestJson& value) const { return Fits(document_, value); }

 private:
  bool Fits(const TestJson& schema, const TestJson& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    if (schema.contains("$ref")) {
      const std::string pointer = schema["$ref"].get<std::string>().substr(1);
      return Fits(document_.at(TestJson::json_pointer(pointer)), value);
    }
    if (schema.contains("const") && value != schema["const"]) return false;
    if (schema.contains("enum") &&
        Matching(schema["enum"], [&](const TestJson& one) { return one == value; }) == 0) {
      return false;
    }
    const auto fits = [&](const TestJson& one) { return Fits(one, value); };
    if (schema.contains("anyOf") && Matching(schema["anyOf"], fits) == 0) return false;
    if (schema.contains("oneOf") && Matching(schema["oneOf"], fits) != 1) return false;
    if (schema.contains("allOf") && Matching(schema["allOf"], fits) != schema["allOf"].size()) {
      return false;
    }
    if (schema.contains("type")) {
      const TestJson& type = schema["type"];
      const TestJson types = type.is_array() ? type : TestJson::array({type});
      if (Matching(types, [&](const TestJson& one) { return HasType(value, one); }) == 0) {
        return false;
      }
    }
    if (value.is_number()) return FitsNumber(schema, value.get<double>());
    if (value.is_string()) return FitsString(schema, value.get<std::string>());
    if (value.is_array()) return FitsArray(schema, value);
    return !value.is_object() || FitsObject(schema, value);
  }

  template <typename Matches>
  static size_t Matching(const TestJson& list, const Matches& matches) {
    return static_cast<size_t>(std::count_if(list.begin(), list.end(), matches));
  }

  static bool HasType(const TestJson& value, const std::string& type) {
    if (type == "number") return value.is_number();
    if (type == "integer") {
      return value.is_number() && std::trunc(value.get<double>()) == value.get<double>();
    }
    return type == value.type_name();
  }

  static bool FitsNumber(const TestJson& schema, double value) {
    if (value < schema.value("minimum", -INFINITY)) return false;
    if (value > schema.value("maximum", INFINITY)) return false;
    if (value <= schema.value("exclusiveMinimum", -INFINITY)) return false;
    if (value >= schema.value("exclusiveMaximum", INFINITY)) return false;
    return !schema.contains("multipleOf") ||
           std::fmod(value, schema["multipleOf"].get<double>()) == 0;
  }

  static bool FitsString(const TestJson& schema, const std::string& value) {
    const auto characters =
        static_cast<size_t>(std::count_if(value.begin(), value.end(), [](char c) {
          return (static_cast<uint8_t>(c) & 0xc0) != 0x80;
        }));
    if (characters < schema.value("minLength", size_t{0})) return false;
    if (characters > schema.value("maxLength", value.size())) return false;
    return !schema.contains("pattern") ||
           std::regex_search(value, std::regex(schema["pattern"].get<std::string>()));
  }

  bool FitsArray(const TestJson& schema, const TestJson& value) const {
    if (value.size() < schema.value("minItems", size_t{0})) return false;
    if (value.size() > schema.value("maxItems", value.size())) return false;
    const TestJson prefix = schema.value("prefixItems", TestJson::array());
    for (size_t i = 0; i < value.size(); ++i) {
      if (i < prefix.size() ? !Fits(prefix[i], value[i])
                            : schema.contains("items") && !Fits(schema["items"], value[i])) {
        return false;
      }
    }
    return true;
  }

  bool FitsObject(const TestJson& schema, const TestJson& value) const {
    if (value.size() < schema.value("minProperties", size_t{0})) return false;
    if (value.size() > schema.value("maxProperties", value.size())) return false;
    for (const TestJson& name : schema.value("required", TestJson::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    const TestJson properties = schema.value("properties", TestJson::object());
    for (const auto& [name, member] : value.items()) {
      if (properties.contains(name) ? !Fits(properties[name], member)
                                    : schema.contains("additionalProperties") &&
                                          !Fits(schema["additionalProperties"], member)) {
        return false;
      }
    }
    return true;
  }

  const TestJson document_;
};

// What apps ask for. Their answers are short.
inline constexpr const char* kExampleSchemas[] = {
    R"({"type": "object", "properties": {"answer": {"type": "boolean"}}, "required": ["answer"]})",
    R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age":
        {"type": "integer", "minimum": 0, "maximum": 130}}, "required": ["name", "age"]})",
    R"({"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 4})",
    R"({"enum": ["yes", "no", "maybe"]})",
    R"({"const": {"ok": true, "code": 7}})",
    R"({"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}, "why": {"type": "string",
        "maxLength": 20}}, "required": ["mood"]})",
    R"({"type": ["integer", "null"], "minimum": -5, "maximum": 5})",
    R"({"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"})",
    R"({"type": "string", "format": "date"})",
    R"({"type": "object", "properties": {"when": {"type": "string", "format": "ipv4"}, "where":
        {"type": "object", "properties": {"lat": {"type": "number", "minimum": -90, "maximum": 90},
        "lon": {"type": "number", "minimum": -180, "maximum": 180}}, "required": ["lat", "lon"]}},
        "required": ["when", "where"]})",
    R"({"anyOf": [{"type": "integer", "minimum": 10, "maximum": 99}, {"type": "string",
        "maxLength": 4}]})",
    R"({"oneOf": [{"type": "boolean"}, {"type": "null"}]})",
    R"({"type": "array", "prefixItems": [{"type": "string", "maxLength": 5}, {"type": "integer",
        "minimum": 0, "maximum": 9}], "minItems": 2})",
    R"({"$ref": "#/$defs/pair", "$defs": {"pair": {"type": "object", "properties": {"a": {"$ref":
        "#/$defs/digit"}, "b": {"$ref": "#/$defs/digit"}}, "required": ["a", "b"]}, "digit":
        {"type": "integer", "minimum": 0, "maximum": 9}}})",
    R"({"type": "object", "properties": {"id": {"type": "string", "format": "uuid"}},
        "required": ["id"]})",
    R"({"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string",
        "minLength": 1, "maxLength": 6}, "maxItems": 3}}, "required": ["tags"]})",
    R"({"type": "object", "properties": {"first": {"const": 1}, "second": {"const": 2}, "third":
        {"const": 3}}, "required": ["first", "second", "third"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"mail": {"type": "string", "pattern":
        "^[a-z]{1,8}@example\\.org$"}}, "required": ["mail"]})",
    R"({"allOf": [{"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}]})",
    R"({"type": "object", "properties": {"list": {"type": "array", "items": {"type": "integer",
        "minimum": 0, "maximum": 9}, "maxItems": 5}}, "required": ["list"]})"};

// A schema of everything that is enforced, `depth` levels deep at most.
inline TestJson RandomSchema(std::mt19937& random, int depth) {
  const auto below = [&](uint32_t end) { return static_cast<int>(random() % end); };
  const auto some = [&] { return below(2) == 0; };
  switch (depth <= 0 ? below(6) : below(11)) {
    case 0: {
      TestJson schema = {{"type", "integer"}};
      const int low = below(2000) - 1000;
      if (some()) schema[some() ? "minimum" : "exclusiveMinimum"] = low;
      if (some()) schema[some() ? "maximum" : "exclusiveMaximum"] = low + 2 + below(3000);
      return schema;
    }
    case 1: {
      TestJson schema = {{"type", "number"}};
      const double low = below(4000) / 8.0 - 250;
      if (some()) schema[some() ? "minimum" : "exclusiveMinimum"] = low;
      if (some()) schema[some() ? "maximum" : "exclusiveMaximum"] = low + 0.25 + below(100);
      return schema;
    }
    case 2: {
      TestJson schema = {{"type", "string"}};
      const int least = below(4);
      if (some()) schema["minLength"] = least;
      if (some()) schema["maxLength"] = least + below(6);
      return schema;
    }
    case 3: {
      constexpr const char* kPatterns[] = {"^[A-Z]{2}-\\d{3}$", "^(?:red|green|blue)$",
                                           "^[a-z]+@[a-z]+\\.org$", "^[^x]+$", "^\\w* ?\\d$"};
      return {{"type", "string"}, {"pattern", kPatterns[below(5)]}};
    }
    case 4:
      return {{"enum", {"one", 2, 3.5, nullptr, true, "fo\"ur\n", {{"five", 5}}}}};
    case 5:
      return some() ? TestJson({{"type", {"boolean", "null"}}}) : TestJson({{"const", below(100)}});
    case 6:
    case 7: {
      TestJson schema = {{"type", "array"}, {"items", RandomSchema(random, depth - 1)}};
      const int least = below(3);
      if (some()) schema["minItems"] = least;
      if (some()) schema["maxItems"] = least + below(3);
      if (some()) {
        schema["prefixItems"] = {RandomSchema(random, 0), RandomSchema(random, 0)};
        schema["maxItems"] = 2 + least + below(3);
        if (some()) schema["items"] = false;
        if (schema["items"] == false && schema.contains("minItems")) schema["minItems"] = below(3);
      }
      return schema;
    }
    case 8:
      return {{"anyOf", {RandomSchema(random, depth - 1), RandomSchema(random, depth - 1)}}};
    default: {
      TestJson schema = {{"type", "object"}};
      const int properties = below(4);
      for (int i = 0; i < properties; ++i) {
        constexpr const char* kNames[] = {"name", "a \"quote\"", "größe", "list of things"};
        schema["properties"][kNames[i]] = RandomSchema(random, depth - 1);
        if (some()) schema["required"].push_back(kNames[i]);
      }
      if (properties == 0 && some()) {
        schema["additionalProperties"] = RandomSchema(random, depth - 1);
        if (some()) schema["maxProperties"] = below(4);
      }
      return schema;
    }
  }
}

}  // namespace withy::grammar
