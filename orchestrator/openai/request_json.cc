#include "orchestrator/openai/request_json.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"

namespace withy::orchestrator::body {

using Json = OrderedJson;

absl::Status Wrong(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ToAbsl(what)));
}

absl::Status WrongType(std::string_view field, const Json& value, std::string_view wanted) {
  return Wrong(field,
               absl::StrCat(" is of type ", value.type_name(), ": it must be ", ToAbsl(wanted)));
}

absl::StatusOr<std::string> JsonText(std::string_view field, const Json& value) {
  std::string text = value.dump();
  if (const int depth = JsonDepth(text); depth > kMaxJsonDepth) {
    return Wrong(field, absl::StrCat(" is nested ", depth, " levels deep: at most ", kMaxJsonDepth,
                                     "; make it flatter"));
  }
  return text;
}

const Json* Find(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<std::optional<double>> Number(const Json& object, const char* name) {
  const Json* value = Find(object, name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) return WrongType(name, *value, "a number");
  return value->get<double>();
}

absl::StatusOr<std::optional<WholeNumber>> Whole(const Json& object, const char* name) {
  const Json* value = Find(object, name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return WholeNumber{.magnitude = value->get<uint64_t>()};
  if (value->is_number_integer()) {
    return WholeNumber{.negative = true,
                       .magnitude = 0 - static_cast<uint64_t>(value->get<int64_t>())};
  }
  if (!value->is_number()) return WrongType(name, *value, "a whole number");
  const double number = value->get<double>();
  if (std::trunc(number) != number) {
    return Wrong(name, absl::StrCat(" is ", number, ": it must be a whole number"));
  }
  constexpr double kTooLarge = 18446744073709551616.0;  // 2^64
  const double size = std::abs(number);
  return WholeNumber{.negative = number < 0,
                     .magnitude = size < kTooLarge ? static_cast<uint64_t>(size) : UINT64_MAX};
}

std::string InWords(const WholeNumber& number) {
  return absl::StrCat(number.negative ? "-" : "", number.magnitude);
}

absl::StatusOr<std::optional<uint64_t>> Count(const Json& object, const char* name,
                                              uint64_t highest) {
  WITHY_ASSIGN_OR_RETURN(const std::optional<WholeNumber> number, Whole(object, name));
  if (!number) return std::nullopt;
  if (number->negative || number->magnitude > highest) {
    return Wrong(name, absl::StrCat(" is ", InWords(*number), ": it must be from 0 to ", highest));
  }
  return number->magnitude;
}

absl::StatusOr<bool> Flag(const Json& object, const char* name) {
  const Json* value = Find(object, name);
  if (value == nullptr) return false;
  if (!value->is_boolean()) return WrongType(name, *value, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> Text(const Json& object, const std::string& path, const char* name) {
  const Json* value = Find(object, name);
  if (value == nullptr) return std::string();
  if (!value->is_string()) return WrongType(path + name, *value, "a string");
  return value->get_ref<const std::string&>();
}

absl::StatusOr<std::string> TextOfParts(const Json& given, const std::string& field,
                                        std::span<const std::string_view> types) {
  if (given.is_string()) return given.get<std::string>();
  if (!given.is_array()) return WrongType(field, given, "a string or an array of parts");
  std::string text;
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string name = absl::StrCat(field, "[", i, "]");
    if (!given[i].is_object()) return WrongType(name, given[i], "an object");
    WITHY_ASSIGN_OR_RETURN(const std::string type, Text(given[i], name + ".", "type"));
    if (std::find(types.begin(), types.end(), type) == types.end()) {
      return Wrong(name, absl::StrCat(".type is \"", type, "\": the model reads text only"));
    }
    WITHY_ASSIGN_OR_RETURN(const std::string piece, Text(given[i], name + ".", "text"));
    text += piece;
  }
  return text;
}

absl::Status Only(const Json& object, const char* name, double value) {
  WITHY_ASSIGN_OR_RETURN(const std::optional<double> given, Number(object, name));
  if (!given || *given == value) return absl::OkStatus();
  return Wrong(name, absl::StrCat(" is ", *given, ", which withy does not support: leave it out"));
}

absl::Status NotEmpty(const Json& object, const char* name, std::string_view remedy) {
  const Json* value = Find(object, name);
  if (value == nullptr || value->empty()) return absl::OkStatus();
  if (value->is_string() && value->get_ref<const std::string&>().empty()) return absl::OkStatus();
  return Wrong(name, absl::StrCat(" is not supported: ", ToAbsl(remedy)));
}

}  // namespace withy::orchestrator::body
