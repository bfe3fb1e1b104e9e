#include "cli/token_json.h"

#include <nlohmann/json.hpp>

#include "cli/utf8.h"

namespace withy::cli {
namespace {

void AddText(const std::string& text, nlohmann::ordered_json* json) {
  (*json)["text"] = text;
  if (CheckUtf8("token", text).ok()) return;
  nlohmann::ordered_json bytes = nlohmann::ordered_json::array();
  for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  (*json)["bytes"] = std::move(bytes);
}

}  // namespace

std::string TokensJson(const google::protobuf::RepeatedPtrField<v1::Token>& tokens) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const v1::Token& token : tokens) {
    nlohmann::ordered_json json = {{"id", token.id()}};
    AddText(token.text(), &json);
    if (token.has_logprob()) json["logprob"] = token.logprob();
    nlohmann::ordered_json alternatives = nlohmann::ordered_json::array();
    for (const v1::TokenAlternative& alternative : token.alternatives()) {
      nlohmann::ordered_json other = {{"id", alternative.id()}};
      AddText(alternative.text(), &other);
      other["logprob"] = alternative.logprob();
      alternatives.push_back(std::move(other));
    }
    json["alternatives"] = std::move(alternatives);
    all.push_back(std::move(json));
  }
  const nlohmann::ordered_json tokens_json = {{"tokens", std::move(all)}};
  return tokens_json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace withy::cli
