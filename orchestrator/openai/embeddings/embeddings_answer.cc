#include "orchestrator/openai/embeddings/embeddings_answer.h"

#include <array>
#include <bit>
#include <charconv>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace withy::orchestrator {
namespace {

// The shortest digits that give the number back.
void AppendNumber(float value, std::string* to) {
  std::array<char, 32> digits;
  const std::to_chars_result end =
      std::to_chars(digits.data(), digits.data() + digits.size(), value);
  to->append(digits.data(), end.ptr);
}

void AppendNumbers(const v1::Embedding& embedding, std::string* to) {
  to->push_back('[');
  for (int i = 0; i < embedding.values_size(); ++i) {
    if (i > 0) to->push_back(',');
    AppendNumber(embedding.values(i), to);
  }
  to->push_back(']');
}

std::string Base64Of(const v1::Embedding& embedding) {
  std::string bytes;
  for (const float value : embedding.values()) {
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) {
      bytes.push_back(static_cast<char>((bits >> shift) & 0xFF));
    }
  }
  return absl::Base64Escape(bytes);
}

}  // namespace

void EmbeddingsAnswer::Add(const v1::EmbedResponse& response) {
  for (const v1::Embedding& embedding : response.embeddings()) {
    absl::StrAppend(&data_, vectors_ == 0 ? "" : ",", R"({"object":"embedding","index":)", vectors_,
                    R"(,"embedding":)");
    if (base64_) {
      absl::StrAppend(&data_, "\"", Base64Of(embedding), "\"");
    } else {
      AppendNumbers(embedding, &data_);
    }
    data_ += "}";
    ++vectors_;
    tokens_ += embedding.tokens();
  }
}

std::string EmbeddingsAnswer::Document(std::string_view model) const {
  using NameJson = nlohmann::json;
  const std::string name =
      NameJson(std::string(model)).dump(-1, ' ', false, NameJson::error_handler_t::replace);
  return absl::StrCat(R"({"object":"list","data":[)", data_, R"(],"model":)", name,
                      R"(,"usage":{"prompt_tokens":)", tokens_, R"(,"total_tokens":)", tokens_,
                      "}}");
}

}  // namespace withy::orchestrator
