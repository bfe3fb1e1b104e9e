#include "grammar/schema_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <iterator>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/contract_limits.h"
#include "base/json.h"
#include "base/status.h"
#include "base/strings.h"
#include "grammar/format_check.h"
#include "grammar/pattern_text.h"

namespace withy::grammar {
namespace {

using Json = OrderedJson;
using Names = std::set<std::string_view>;

// What says nothing of a value, and what is read where it is referred to.
const Names& Annotations() {
  static const Names names = {"title",    "description", "default",  "examples",   "deprecated",
                              "readOnly", "writeOnly",   "$comment", "$schema",    "$id",
                              "$defs",    "definitions", "$anchor",  "$vocabulary"};
  return names;
}

// Of these at most one decides about a value, and nothing beside it would be enforced.
constexpr const char* kForms[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

// Keywords that are enforced for values of one type.
struct TypedKeyword {
  std::string_view name;
  std::string_view type;
};
constexpr TypedKeyword kTyped[] = {
    {"properties", "object"},    {"required", "object"},         {"additionalProperties", "object"},
    {"minProperties", "object"}, {"maxProperties", "object"},    {"items", "array"},
    {"prefixItems", "array"},    {"minItems", "array"},          {"maxItems", "array"},
    {"uniqueItems", "array"},    {"pattern", "string"},          {"format", "string"},
    {"minLength", "string"},     {"maxLength", "string"},        {"minimum", "number"},
    {"maximum", "number"},       {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"},
    {"multipleOf", "number"}};

constexpr std::string_view kTypes[] = {"null",   "boolean", "object", "array",
                                       "number", "integer", "string"};

constexpr std::string_view kFormats[] = {"date", "time", "date-time", "duration", "ipv4",
                                         "ipv6", "uuid", "hostname",  "uri"};
// Local parts in quotes are left out.
constexpr char kEmailPattern[] = "[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\\.[A-Za-z0-9-]+)+";

constexpr double kLargestBound = 9007199254740992.0;  // 2^53: larger ones are not exact in JSON

const TypedKeyword* FindTyped(std::string_view name) {
  const auto found = std::find_if(std::begin(kTyped), std::end(kTyped),
                                  [&](const TypedKeyword& one) { return one.name == name; });
  return found == std::end(kTyped) ? nullptr : found;
}

std::string_view TypeOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "boolean";
    case Json::value_t::object:
      return "object";
    case Json::value_t::array:
      return "array";
    case Json::value_t::string:
      return "string";
    default:
      return value.is_number_float() ? "number" : "integer";
  }
}

bool HasType(const Json& value, std::string_view type) {
  return TypeOf(value) == type || (type == "number" && value.is_number());
}

// Walks a document and rewrites it. A schema that is referred to is read once.
class SchemaReader {
 public:
  SchemaReader(std::string_view field, Json document)
      : field_(field), document_(std::move(document)) {}

  absl::StatusOr<std::string> Read() {
    Refer("#");
    while (!referred_.empty()) {
      const std::string pointer = std::move(referred_.front());
      referred_.pop_front();
      WITHY_RETURN_IF_ERROR(Walk(*Resolve(pointer), pointer));
    }
    return document_.dump();
  }

 private:
  template <typename... Args>
  absl::Status Wrong(const std::string& at, const Args&... what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(field_), at == "#" ? "" : absl::StrCat(" at ", at), ": ", what...));
  }

  Json* Resolve(const std::string& pointer) {
    Json* at = &document_;
    const std::vector<std::string> keys = absl::StrSplit(pointer, '/');
    for (size_t i = 1; i < keys.size() && at != nullptr; ++i) {
      const auto found = at->is_object() ? at->find(keys[i]) : at->end();
      at = found == at->end() ? nullptr : &*found;
    }
    return at;
  }

  void Refer(const std::string& pointer) {
    if (known_.insert(pointer).second) referred_.push_back(pointer);
  }

  absl::Status Walk(Json& schema, const std::string& at);
  absl::Status CheckKeywords(const Json& schema, const std::string& at) const;
  absl::Status WalkForm(Json& schema, const char* form, const std::string& at);
  absl::Status WalkRef(const Json& schema, const std::string& at);
  absl::Status CheckValues(const Json& schema, const char* form, const std::string& at) const;
  absl::StatusOr<Names> TypesOf(Json& schema, const std::string& at) const;
  absl::Status WalkObject(Json& schema, const std::string& at);
  absl::Status CheckRequired(const Json& schema, const std::string& at) const;
  absl::Status WalkArray(Json& schema, const std::string& at);
  absl::Status CheckString(Json& schema, const std::string& at) const;
  absl::Status CheckPattern(const std::string& pattern, const std::string& at) const;
  absl::Status CheckNumber(const Json& schema, bool integer, const std::string& at) const;
  absl::StatusOr<std::optional<uint64_t>> Count(const Json& schema, const char* name,
                                                const std::string& at) const;
  absl::Status CheckCounts(const Json& schema, const char* least, const char* most,
                           const std::string& at) const;

  const std::string field_;
  Json document_;
  std::set<std::string> known_;       // pointers that were referred to
  std::deque<std::string> referred_;  // of these, schemas still to be read
};

absl::Status SchemaReader::Walk(Json& schema, const std::string& at) {
  if (schema.is_boolean()) {
    if (schema.get<bool>()) return absl::OkStatus();
    return Wrong(at, "false allows no value: leave it out");
  }
  if (!schema.is_object()) {
    return Wrong(at, "is of type ", schema.type_name(), ": a schema is an object");
  }
  WITHY_RETURN_IF_ERROR(CheckKeywords(schema, at));
  for (const char* form : kForms) {
    if (schema.contains(form)) return WalkForm(schema, form, at);
  }
  WITHY_ASSIGN_OR_RETURN(const Names types, TypesOf(schema, at));
  if (types.contains("object")) WITHY_RETURN_IF_ERROR(WalkObject(schema, at));
  if (types.contains("array")) WITHY_RETURN_IF_ERROR(WalkArray(schema, at));
  if (types.contains("string")) WITHY_RETURN_IF_ERROR(CheckString(schema, at));
  if (types.contains("number") || types.contains("integer")) {
    WITHY_RETURN_IF_ERROR(CheckNumber(schema, !types.contains("number"), at));
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::CheckKeywords(const Json& schema, const std::string& at) const {
  for (const auto& item : schema.items()) {
    const std::string& name = item.key();
    const bool form = std::any_of(std::begin(kForms), std::end(kForms),
                                  [&](const char* one) { return name == one; });
    if (form || name == "type" || Annotations().contains(name) || FindTyped(name) != nullptr) {
      continue;
    }
    return Wrong(at, "the keyword \"", name,
                 "\" is not supported: leave it out, and check the answer for it");
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::WalkForm(Json& schema, const char* form, const std::string& at) {
  const std::string_view name = form;
  const bool values = name == "const" || name == "enum";
  for (const auto& [other, value] : schema.items()) {
    if (other == name || Annotations().contains(other) || (values && other == "type")) continue;
    return Wrong(at, "\"", other, "\" beside \"", form,
                 "\" is not supported: leave one of them out");
  }
  if (name == "$ref") return WalkRef(schema, at);
  if (values) {
    WITHY_RETURN_IF_ERROR(CheckValues(schema, form, at));
    schema.erase("type");
    return absl::OkStatus();
  }
  Json& options = schema[form];
  if (!options.is_array() || options.empty()) {
    return Wrong(at, "\"", form, "\" must be an array of at least one schema");
  }
  if (name == "allOf" && options.size() > 1) {
    return Wrong(at, "\"allOf\" of several schemas is not supported: merge them into one");
  }
  for (size_t i = 0; i < options.size(); ++i) {
    WITHY_RETURN_IF_ERROR(Walk(options[i], absl::StrCat(at, "/", form, "/", i)));
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::WalkRef(const Json& schema, const std::string& at) {
  const Json* target = &schema;
  std::string pointer;
  // References to nothing but each other would never give a value.
  for (std::set<std::string> seen; target->is_object() && target->contains("$ref");) {
    const Json& given = target->at("$ref");
    pointer = given.is_string() ? given.get<std::string>() : "";
    const bool plain = pointer == "#" || pointer.starts_with("#/");
    if (!plain || pointer.find_first_of("~%") != std::string::npos) {
      return Wrong(at, "\"$ref\" is ", given.dump(),
                   ": it must be \"#\", or \"#/\" and keys of this document without ~ and %");
    }
    if (!seen.insert(pointer).second) {
      return Wrong(at, "\"$ref\" is ", given.dump(), ", which only refers to itself: describe it");
    }
    target = Resolve(pointer);
    if (target == nullptr) {
      return Wrong(at, "\"$ref\" is ", given.dump(), ": there is no such schema in this document");
    }
    Refer(pointer);
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::CheckValues(const Json& schema, const char* form,
                                       const std::string& at) const {
  const Json& given = schema.at(form);
  const bool many = std::string_view(form) == "enum";
  if (many && (!given.is_array() || given.empty())) {
    return Wrong(at, "\"enum\" must be an array of at least one value");
  }
  if (!schema.contains("type")) return absl::OkStatus();
  const Json& type = schema.at("type");
  const Json types = type.is_array() ? type : Json::array({type});
  const Json values = many ? given : Json::array({given});
  for (const Json& value : values) {
    const bool fits = std::any_of(types.begin(), types.end(), [&](const Json& one) {
      return one.is_string() && HasType(value, one.get_ref<const std::string&>());
    });
    if (!fits) {
      return Wrong(at, "\"", form, "\" has ", value.dump(), ", which is not of the type ",
                   type.dump(), ": leave one of them out");
    }
  }
  return absl::OkStatus();
}

// The types that values may have, which are written out; none: any.
absl::StatusOr<Names> SchemaReader::TypesOf(Json& schema, const std::string& at) const {
  Names types;
  if (!schema.contains("type")) {
    for (const auto& [name, value] : schema.items()) {
      if (const TypedKeyword* typed = FindTyped(name)) types.insert(typed->type);
    }
    if (types.empty()) return types;
    if (types.size() > 1 || types.contains("string") || types.contains("number")) {
      return Wrong(at, "\"type\" is missing: say which type the keywords are for");
    }
    schema["type"] = std::string(*types.begin());
    return types;
  }
  const Json& type = schema.at("type");
  const Json given = type.is_array() ? type : Json::array({type});
  for (const Json& one : given) {
    const auto found = one.is_string() ? std::find(std::begin(kTypes), std::end(kTypes),
                                                   one.get_ref<const std::string&>())
                                       : std::end(kTypes);
    if (found == std::end(kTypes)) {
      return Wrong(at, "\"type\" is ", one.dump(), ": it must be one of ",
                   absl::StrJoin(kTypes, ", ", [](std::string* out, std::string_view name) {
                     out->append(name);
                   }));
    }
    types.insert(*found);
  }
  if (types.empty()) return Wrong(at, "\"type\" is an empty array: name at least one type");
  return types;
}

absl::Status SchemaReader::WalkObject(Json& schema, const std::string& at) {
  if (schema.contains("properties")) {
    Json& properties = schema["properties"];
    if (!properties.is_object()) return Wrong(at, "\"properties\" must be an object");
    for (auto property = properties.begin(); property != properties.end(); ++property) {
      WITHY_RETURN_IF_ERROR(Walk(*property, absl::StrCat(at, "/properties/", property.key())));
    }
  }
  const bool described = schema.contains("properties") && !schema.at("properties").empty();
  if (schema.contains("additionalProperties")) {
    Json& more = schema["additionalProperties"];
    if (described && !more.is_boolean()) {
      return Wrong(at,
                   "\"additionalProperties\" with a schema beside \"properties\" is not "
                   "supported: set it to false, or leave \"properties\" out");
    }
    if (!more.is_boolean()) {
      WITHY_RETURN_IF_ERROR(Walk(more, at + "/additionalProperties"));
    }
  }
  if (described) schema["additionalProperties"] = false;
  WITHY_RETURN_IF_ERROR(CheckRequired(schema, at));
  WITHY_RETURN_IF_ERROR(CheckCounts(schema, "minProperties", "maxProperties", at));
  WITHY_ASSIGN_OR_RETURN(const auto least, Count(schema, "minProperties", at));
  // A name may be given twice, which JSON counts once.
  if (!described && least.value_or(0) > 1) {
    return Wrong(at,
                 "\"minProperties\" above 1 without \"properties\" is not supported: leave it "
                 "out");
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::CheckRequired(const Json& schema, const std::string& at) const {
  if (!schema.contains("required")) return absl::OkStatus();
  const Json& required = schema.at("required");
  if (!required.is_array()) return Wrong(at, "\"required\" must be an array of names");
  for (const Json& name : required) {
    if (!name.is_string()) return Wrong(at, "\"required\" must be an array of names");
    const std::string& text = name.get_ref<const std::string&>();
    if (schema.contains("properties") && schema.at("properties").contains(text)) continue;
    return Wrong(at, "\"required\" names \"", text,
                 "\", which \"properties\" does not describe: describe it there");
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::WalkArray(Json& schema, const std::string& at) {
  if (schema.contains("uniqueItems") && schema.at("uniqueItems") != false) {
    return Wrong(at,
                 "the keyword \"uniqueItems\" is not supported: leave it out, and check the "
                 "answer for it");
  }
  WITHY_RETURN_IF_ERROR(CheckCounts(schema, "minItems", "maxItems", at));
  if (schema.contains("prefixItems")) {
    Json& items = schema["prefixItems"];
    if (!items.is_array()) return Wrong(at, "\"prefixItems\" must be an array of schemas");
    for (size_t i = 0; i < items.size(); ++i) {
      WITHY_RETURN_IF_ERROR(Walk(items[i], absl::StrCat(at, "/prefixItems/", i)));
      if (items[i].is_boolean()) items[i] = Json::object();
    }
    if (!items.empty() && !schema.contains("items")) schema["items"] = false;
  }
  if (!schema.contains("items")) return absl::OkStatus();
  if (schema.at("items") == false) return absl::OkStatus();
  return Walk(schema["items"], at + "/items");
}

absl::Status SchemaReader::CheckString(Json& schema, const std::string& at) const {
  WITHY_RETURN_IF_ERROR(CheckCounts(schema, "minLength", "maxLength", at));
  std::vector<std::string> given;
  for (const char* name : {"pattern", "format", "minLength", "maxLength"}) {
    if (!schema.contains(name)) continue;
    const bool length = std::string_view(name).ends_with("Length");
    if (length && !given.empty() && given.back().ends_with("Length")) continue;
    given.push_back(name);
  }
  if (given.size() > 1) {
    return Wrong(at, "\"", given[1], "\" beside \"", given[0],
                 "\" is not supported: leave one of them out");
  }
  if (schema.contains("pattern")) {
    if (!schema.at("pattern").is_string()) return Wrong(at, "\"pattern\" must be a string");
    const std::string pattern = schema.at("pattern").get<std::string>();
    WITHY_RETURN_IF_ERROR(CheckPattern(pattern, at));
    const std::optional<std::string> exact = WithExactRepetitions(pattern);
    if (!exact) return Wrong(at, "\"pattern\" repeats groups within groups too often");
    schema["pattern"] = *exact;
    return absl::OkStatus();
  }
  if (!schema.contains("format")) return absl::OkStatus();
  if (schema.at("format") == "email") {
    schema.erase("format");
    schema["pattern"] = kEmailPattern;
    return absl::OkStatus();
  }
  const bool known =
      std::any_of(std::begin(kFormats), std::end(kFormats),
                  [&](std::string_view one) { return schema.at("format") == std::string(one); });
  if (known) return absl::OkStatus();
  return Wrong(at, "\"format\" is ", schema.at("format").dump(), ": it must be email, ",
               absl::StrJoin(kFormats, ", ",
                             [](std::string* out, std::string_view name) { out->append(name); }),
               ", or left out");
}

// A pattern is matched within a JSON string, where quotes, backslashes and control characters have
// escapes that a pattern does not know of.
absl::Status SchemaReader::CheckPattern(const std::string& pattern, const std::string& at) const {
  const std::string name = absl::StrCat(ToAbsl(field_), " at ", at, ": \"pattern\"");
  WITHY_RETURN_IF_ERROR(CheckRegex(name, pattern));
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c < ' ' || c > '~' || c == '"') {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " has a character at byte ", i,
                       " that is not supported: use printable ASCII without quotation marks"));
    }
    if (c != '\\') continue;
    const char escaped = ++i < pattern.size() ? pattern[i] : '\\';
    const bool letter = std::isalnum(static_cast<unsigned char>(escaped)) != 0;
    const bool known_class = std::string_view("dDwWsS").find(escaped) != std::string_view::npos;
    if ((letter && !known_class) || escaped == '\\' || escaped == '"') {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " has \\", std::string(1, escaped),
                       ", which is not supported: only \\d, \\D, \\w, \\W, \\s, \\S and escaped "
                       "punctuation are"));
    }
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::CheckNumber(const Json& schema, bool integer,
                                       const std::string& at) const {
  for (const char* name :
       {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
    if (!schema.contains(name)) continue;
    const Json& bound = schema.at(name);
    if (!bound.is_number()) return Wrong(at, "\"", name, "\" must be a number");
    const double value = bound.get<double>();
    if (!(std::abs(value) <= kLargestBound)) {
      return Wrong(at, "\"", name, "\" is ", bound.dump(), ": at most 2^53 in size");
    }
    if (integer && std::trunc(value) != value) {
      return Wrong(at, "\"", name, "\" of an integer is ", bound.dump(), ": give a whole number");
    }
  }
  if (schema.contains("multipleOf") && !integer) {
    return Wrong(at, "\"multipleOf\" is supported for the type integer only: leave it out");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<uint64_t>> SchemaReader::Count(const Json& schema, const char* name,
                                                            const std::string& at) const {
  if (!schema.contains(name)) return std::nullopt;
  const Json& count = schema.at(name);
  if (!count.is_number_unsigned() || count.get<uint64_t>() > kMaxRepetitions) {
    return Wrong(at, "\"", name, "\" is ", count.dump(), ": it must be from 0 to ",
                 kMaxRepetitions);
  }
  return count.get<uint64_t>();
}

absl::Status SchemaReader::CheckCounts(const Json& schema, const char* least, const char* most,
                                       const std::string& at) const {
  WITHY_ASSIGN_OR_RETURN(const auto low, Count(schema, least, at));
  WITHY_ASSIGN_OR_RETURN(const auto high, Count(schema, most, at));
  if (high.has_value() && low.value_or(0) > *high) {
    return Wrong(at, "\"", least, "\" is ", *low, ", more than \"", most, "\", ", *high);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> PrepareSchema(std::string_view field, std::string_view schema) {
  Json document;
  if (const absl::Status parsed = ParseJson(schema, &document); !parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), " ", parsed.message()));
  }
  return SchemaReader(field, std::move(document)).Read();
}

}  // namespace withy::grammar
