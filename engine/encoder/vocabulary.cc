#include "engine/encoder/vocabulary.h"

#include <algorithm>
#include <array>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/encoder/shape.h"
#include "engine/tokenizer/vocab.h"

namespace withy::engine {
namespace {

constexpr char kTokens[] = "tokenizer.ggml.tokens";
constexpr char kKinds[] = "tokenizer.ggml.token_type";
constexpr char kCls[] = "tokenizer.ggml.bos_token_id";
constexpr char kSep[] = "tokenizer.ggml.eos_token_id";
constexpr char kUnknown[] = "tokenizer.ggml.unknown_token_id";
constexpr size_t kMaxTokens = 1 << 20;

// "[05]" or "<05>".
bool IsSloToken(std::string_view token) {
  return token.size() == 4 && absl::ascii_isdigit(static_cast<unsigned char>(token[1])) &&
         absl::ascii_isdigit(static_cast<unsigned char>(token[2])) &&
         ((token[0] == '[' && token[3] == ']') || (token[0] == '<' && token[3] == '>'));
}

TokenKind KindOf(std::string_view token) {
  if (token == "[UNK]") return TokenKind::kUnknown;
  if (token == "[CLS]" || token == "[SEP]" || token == "[PAD]" || token == "[MASK]" ||
      IsSloToken(token)) {
    return TokenKind::kControl;
  }
  return token.starts_with("[unused") && token.ends_with("]") ? TokenKind::kUnused
                                                              : TokenKind::kNormal;
}

void Append(std::string_view token, WordPieceVocab* vocab) {
  const TokenKind kind = KindOf(token);
  vocab->kinds.push_back(static_cast<int32_t>(kind));
  if (kind != TokenKind::kNormal) {
    vocab->tokens.emplace_back(token);
  } else if (token.starts_with("##") && token.size() > 2) {
    vocab->tokens.emplace_back(token.substr(2));
  } else {
    vocab->tokens.push_back(absl::StrCat("\xE2\x96\x81", ToAbsl(token)));
  }
}

}  // namespace

int32_t WordPieceVocab::Find(std::string_view token) const {
  const auto at = std::find(tokens.begin(), tokens.end(), token);
  return at == tokens.end() ? -1 : static_cast<int32_t>(at - tokens.begin());
}

absl::StatusOr<WordPieceVocab> ParseVocab(std::string_view text, std::string_view where) {
  WordPieceVocab vocab;
  absl::flat_hash_set<absl::string_view> seen;
  const auto bad = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(where), ", line ", vocab.size() + 1, ": ",
                                                   what, "; give the vocab.txt of the model"));
  };
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view token = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (token.ends_with('\r')) token.remove_suffix(1);
    if (token.empty()) return bad("empty");
    if (vocab.tokens.size() == kMaxTokens) return bad(absl::StrCat("more than ", kMaxTokens));
    if (!seen.insert(ToAbsl(token)).second) {
      return bad(absl::StrCat("token \"", ToAbsl(token), "\" occurs twice"));
    }
    Append(token, &vocab);
  }
  vocab.unknown = vocab.Find("[UNK]");
  vocab.cls = vocab.Find("[CLS]");
  vocab.sep = vocab.Find("[SEP]");
  if (vocab.unknown < 0) return bad("the file ends without a token [UNK]");
  if (vocab.cls < 0) return bad("the file ends without a token [CLS]");
  if (vocab.sep < 0) return bad("the file ends without a token [SEP]");
  return vocab;
}

int32_t AddSloTokens(int32_t slo_steps, WordPieceVocab* vocab) {
  int32_t added = 0;
  for (const auto text : {&TtftToken, &TpotToken}) {
    for (int32_t step = 1; step <= slo_steps; ++step) {
      if (vocab->Find(text(step)) >= 0) continue;
      Append(text(step), vocab);
      ++added;
    }
  }
  return added;
}

void WriteVocab(const WordPieceVocab& vocab, GgufWriter* writer) {
  writer->SetString("tokenizer.ggml.model", "bert");
  writer->SetStringArray(kTokens, vocab.tokens);
  writer->SetArray<int32_t>(kKinds, vocab.kinds);
  writer->Set<uint32_t>(kCls, static_cast<uint32_t>(vocab.cls));
  writer->Set<uint32_t>(kSep, static_cast<uint32_t>(vocab.sep));
  writer->Set<uint32_t>(kUnknown, static_cast<uint32_t>(vocab.unknown));
}

absl::StatusOr<WordPieceVocab> ReadVocab(const GgufFile& file) {
  WordPieceVocab vocab;
  WITHY_ASSIGN_OR_RETURN(const std::vector<std::string_view> tokens, file.GetStringArray(kTokens));
  WITHY_ASSIGN_OR_RETURN(const std::vector<int64_t> kinds, file.GetIntArray(kKinds));
  if (kinds.size() != tokens.size()) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", kKinds, " has ", kinds.size(),
                                                   " entries for ", tokens.size(), " tokens"));
  }
  vocab.tokens.assign(tokens.begin(), tokens.end());
  for (const int64_t kind : kinds) vocab.kinds.push_back(static_cast<int32_t>(kind));
  const std::array<std::pair<const char*, int32_t*>, 3> ids = {
      {{kCls, &vocab.cls}, {kSep, &vocab.sep}, {kUnknown, &vocab.unknown}}};
  for (const auto& [key, id] : ids) {
    WITHY_ASSIGN_OR_RETURN(const int64_t value, file.GetInt(key));
    if (value < 0 || value >= vocab.size()) {
      return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", key, " is ", value,
                                                     ", but the vocabulary has ", vocab.size(),
                                                     " tokens"));
    }
    *id = static_cast<int32_t>(value);
  }
  return vocab;
}

}  // namespace withy::engine
