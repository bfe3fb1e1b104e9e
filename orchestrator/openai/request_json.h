// Steps of reading a request's JSON that the APIs of the HTTP door share. Pure. Neighbours:
// openai_request.h, messages_request.h and responses_request.h read requests with them.
//
// A member that is null counts as one that is not there. Errors: INVALID_ARGUMENT, naming the
// field.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/json.h"

namespace withy::orchestrator::body {

absl::Status Wrong(std::string_view field, std::string_view what);
absl::Status WrongType(std::string_view field, const OrderedJson& value, std::string_view wanted);

// A value as text, at most kMaxJsonDepth deep.
absl::StatusOr<std::string> JsonText(std::string_view field, const OrderedJson& value);

// null: it is not there, or `object` is none.
const OrderedJson* Find(const OrderedJson& object, const char* name);
absl::StatusOr<std::optional<double>> Number(const OrderedJson& object, const char* name);

// A whole number, also one that is written with a point, as some languages write all numbers.
struct WholeNumber {
  bool negative = false;
  uint64_t magnitude = 0;  // of one that is too large: the largest

  bool operator==(const WholeNumber&) const = default;
};
inline constexpr WholeNumber kMinusOne = {.negative = true, .magnitude = 1};

absl::StatusOr<std::optional<WholeNumber>> Whole(const OrderedJson& object, const char* name);
std::string InWords(const WholeNumber& number);
// From 0 to `highest`.
absl::StatusOr<std::optional<uint64_t>> Count(const OrderedJson& object, const char* name,
                                              uint64_t highest);
// False where it is not there.
absl::StatusOr<bool> Flag(const OrderedJson& object, const char* name);
// "" where it is not there. `path`: what stands before the name in errors.
absl::StatusOr<std::string> Text(const OrderedJson& object, const std::string& path,
                                 const char* name);

// A string, or an array of objects whose "type" is one of `types` and whose "text" it is made of.
absl::StatusOr<std::string> TextOfParts(const OrderedJson& given, const std::string& field,
                                        std::span<const std::string_view> types);

// Of a field that is honoured for one value alone.
absl::Status Only(const OrderedJson& object, const char* name, double value);
// Of a field that is not honoured, unless it says nothing.
absl::Status NotEmpty(const OrderedJson& object, const char* name, std::string_view remedy);

}  // namespace withy::orchestrator::body
