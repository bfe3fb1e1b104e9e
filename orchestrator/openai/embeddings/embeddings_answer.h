// Answers of OpenAI's /v1/embeddings. Pure. Neighbours: embeddings_request.h reads the requests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

// For one thread.
class EmbeddingsAnswer {
 public:
  // `base64`: vectors are base64 of 32-bit floats, little end first; else arrays of numbers.
  explicit EmbeddingsAnswer(bool base64) : base64_(base64) {}

  // The next vectors.
  void Add(const v1::EmbedResponse& response);
  // The whole document.
  std::string Document(std::string_view model) const;

 private:
  const bool base64_;
  std::string data_;  // entries of the array
  uint64_t vectors_ = 0;
  uint64_t tokens_ = 0;
};

}  // namespace withy::orchestrator
