#include "engine/tokenizer/sentencepiece.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "base/strings.h"

namespace withy::engine {
namespace {

// "<0x0A>" -> 10, anything else -> -1.
int ByteOf(std::string_view text) {
  uint32_t value = 0;
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  if (!absl::SimpleHexAtoi(ToAbsl(text.substr(3, 2)), &value)) return -1;
  return static_cast<int>(value);
}

std::string BytesOf(const Vocab& vocab, int32_t id) {
  const std::string_view text = vocab.text(id);
  switch (vocab.kind(id)) {
    case TokenKind::kByte: {
      const int byte = ByteOf(text);
      return byte < 0 ? std::string(text) : std::string(1, static_cast<char>(byte));
    }
    case TokenKind::kNormal:
    case TokenKind::kUnused:
      return absl::StrReplaceAll(ToAbsl(text), {{ToAbsl(kSpaceMark), " "}});
    default:
      return std::string(text);
  }
}

}  // namespace

absl::StatusOr<std::vector<float>> ReadScores(const GgufFile& file, const Vocab& vocab) {
  WITHY_ASSIGN_OR_RETURN(std::vector<float> scores, file.GetFloatArray("tokenizer.ggml.scores"));
  if (scores.size() != static_cast<size_t>(vocab.size())) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tokenizer.ggml.scores has ",
                                                   scores.size(), " entries for ", vocab.size(),
                                                   " tokens"));
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!std::isnan(scores[i])) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": tokenizer.ggml.scores entry ", i, " is not a number"));
  }
  return scores;
}

std::vector<std::string> BytesOfMarkedTokens(const Vocab& vocab,
                                             std::array<int32_t, 256>* byte_ids) {
  byte_ids->fill(kNoToken);
  std::vector<std::string> bytes;
  bytes.reserve(static_cast<size_t>(vocab.size()));
  for (int32_t id = 0; id < vocab.size(); ++id) {
    if (vocab.kind(id) == TokenKind::kByte) {
      const int byte = ByteOf(vocab.text(id));
      if (byte >= 0) (*byte_ids)[static_cast<size_t>(byte)] = id;
    }
    bytes.push_back(BytesOf(vocab, id));
  }
  return bytes;
}

}  // namespace withy::engine
