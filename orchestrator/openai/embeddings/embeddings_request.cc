#include "orchestrator/openai/embeddings/embeddings_request.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "base/json.h"
#include "base/status.h"
#include "orchestrator/openai/openai_request.h"
#include "orchestrator/openai/request_json.h"

namespace withy::orchestrator {
namespace {

using body::Wrong;
using body::WrongType;

absl::Status ReadEmbedTokens(const std::string& field, const OrderedJson& given,
                             v1::TokenIds* tokens) {
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i].is_number_unsigned() || given[i].get<uint64_t>() > INT32_MAX) {
      return Wrong(absl::StrCat(field, "[", i, "]"),
                   " is no token: tokens are whole numbers from 0 on, and an array has either "
                   "tokens or texts");
    }
    tokens->add_ids(given[i].get<uint32_t>());
  }
  return absl::OkStatus();
}

bool AreTokens(const OrderedJson& given) {
  return given.is_array() && !given.empty() && given[0].is_number();
}

// One text, or its tokens.
absl::Status ReadEmbedInput(const std::string& field, const OrderedJson& given,
                            v1::EmbedRequest* request) {
  v1::EmbedInput& input = *request->add_inputs();
  if (AreTokens(given)) return ReadEmbedTokens(field, given, input.mutable_tokens());
  if (!given.is_string()) return WrongType(field, given, "a string or an array of tokens");
  input.set_text(given.get_ref<const std::string&>());
  if (!input.text().empty()) return absl::OkStatus();
  return Wrong(field, " is an empty string: give a text, or leave it out");
}

absl::Status ReadEmbedInputs(const OrderedJson& json, v1::EmbedRequest* request) {
  const OrderedJson* given = body::Find(json, "input");
  if (given == nullptr) {
    return Wrong("input", " is missing: give a string, an array of tokens, or an array of such");
  }
  if (!given->is_array() || AreTokens(*given)) return ReadEmbedInput("input", *given, request);
  if (given->empty()) return Wrong("input", " is an empty array: give at least one text");
  if (given->size() > static_cast<size_t>(kMaxEmbedInputs)) {
    return Wrong("input", absl::StrCat(" has ", given->size(), " entries: at most ",
                                       kMaxEmbedInputs, "; send several requests"));
  }
  for (size_t i = 0; i < given->size(); ++i) {
    WITHY_RETURN_IF_ERROR(ReadEmbedInput(absl::StrCat("input[", i, "]"), (*given)[i], request));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EmbeddingsCall> ParseEmbeddingsCall(std::string_view text) {
  WITHY_ASSIGN_OR_RETURN(const OrderedJson json, ParseBody(text));
  EmbeddingsCall call;
  WITHY_RETURN_IF_ERROR(ReadEmbedInputs(json, &call.request));
  WITHY_ASSIGN_OR_RETURN(*call.request.mutable_model(), body::Text(json, "", "model"));
  WITHY_ASSIGN_OR_RETURN(const std::string format, body::Text(json, "", "encoding_format"));
  if (!format.empty() && format != "float" && format != "base64") {
    return Wrong("encoding_format",
                 absl::StrCat(" is \"", format, "\": it must be \"float\" or \"base64\""));
  }
  call.base64 = format == "base64";
  WITHY_ASSIGN_OR_RETURN(call.dimensions, body::Count(json, "dimensions", UINT32_MAX));
  return call;
}

absl::Status CheckDimensions(const EmbeddingsCall& call, const v1::ModelDescription& model) {
  const uint32_t values = model.embedding_values();
  if (values == 0) {
    return absl::UnimplementedError(
        absl::StrCat("model: ", model.name(), " gives no vectors; leave model out"));
  }
  if (!call.dimensions.has_value() || *call.dimensions == values) return absl::OkStatus();
  return Wrong("dimensions",
               absl::StrCat(" is ", *call.dimensions, ": vectors of ", model.name(), " have ",
                            values, " numbers and are not shortened; leave it out"));
}

}  // namespace withy::orchestrator
