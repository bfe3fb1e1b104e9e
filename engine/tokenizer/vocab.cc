#include "engine/tokenizer/vocab.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/fnv1a.h"
#include "base/status.h"
#include "base/strings.h"

namespace withy::engine {
namespace {

constexpr uint64_t kMaxTokens = uint64_t{1} << 24;
constexpr size_t kMaxTextBytes = size_t{1} << 30;

// Texts of tokens that end an answer, whatever the file says of them; the first that exists is the
// end of turn when none is named.
constexpr std::array<std::string_view, 9> kEndTexts = {
    "<|eot_id|>",    "<|im_end|>", "<|end|>", "<end_of_turn>",        "<|eom_id|>",
    "<|endoftext|>", "<EOT>",      "<|EOT|>", "<｜end▁of▁sentence｜>"};

// Texts that open turns: control tokens too, though some files mark them as ordinary ones.
constexpr std::array<std::string_view, 7> kTurnTexts = {
    "<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>",
    "<|user|>",     "<|assistant|>",       "<|system|>"};

absl::Status KeyError(const GgufFile& file, std::string_view key, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(file.path(), ": metadata key \"", ToAbsl(key), "\" ", what));
}

}  // namespace

absl::StatusOr<Vocab> Vocab::Load(const GgufFile& file, const VocabDefaults& defaults) {
  Vocab vocab;
  WITHY_RETURN_IF_ERROR(vocab.LoadTokens(file));
  WITHY_RETURN_IF_ERROR(vocab.LoadKinds(file));
  WITHY_RETURN_IF_ERROR(vocab.LoadSpecialIds(file, defaults));
  vocab.FindTurnMarkers();
  return vocab;
}

absl::Status Vocab::LoadTokens(const GgufFile& file) {
  constexpr std::string_view kKey = "tokenizer.ggml.tokens";
  WITHY_ASSIGN_OR_RETURN(const uint64_t count, file.GetArrayCount(kKey));
  if (count == 0 || count > kMaxTokens) {
    return KeyError(file, kKey, absl::StrCat("has ", count, " tokens, limits 1 to ", kMaxTokens));
  }
  WITHY_ASSIGN_OR_RETURN(const std::vector<std::string_view> texts, file.GetStringArray(kKey));
  texts_.assign(texts.begin(), texts.end());
  ids_.reserve(texts_.size());
  for (size_t i = 0; i < texts_.size(); ++i) {
    ids_.emplace(ToAbsl(texts_[i]), static_cast<int32_t>(i));
  }
  return absl::OkStatus();
}

absl::Status Vocab::LoadKinds(const GgufFile& file) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  kinds_.assign(texts_.size(), TokenKind::kNormal);
  if (!file.Has(kKey)) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(const std::vector<int64_t> kinds, file.GetIntArray(kKey));
  if (kinds.size() != texts_.size()) {
    return KeyError(file, kKey,
                    absl::StrCat("has ", kinds.size(), " entries for ", texts_.size(), " tokens"));
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    // 0 (undefined) and numbers of later formats are ordinary tokens.
    if (kinds[i] >= 1 && kinds[i] <= 6) kinds_[i] = static_cast<TokenKind>(kinds[i]);
  }
  return absl::OkStatus();
}

absl::Status Vocab::LoadSpecialIds(const GgufFile& file, const VocabDefaults& defaults) {
  const auto load = [&](std::string_view key, int32_t fallback, int32_t& id) -> absl::Status {
    id = Has(fallback) ? fallback : kNoToken;
    if (!file.Has(key)) return absl::OkStatus();
    WITHY_ASSIGN_OR_RETURN(const int64_t value, file.GetInt(key));
    if (value == -1 || value == UINT32_MAX) {
      id = kNoToken;
      return absl::OkStatus();
    }
    if (value < 0 || value >= size()) {
      return KeyError(file, key,
                      absl::StrCat("is ", value, ", but the vocabulary has ", size(), " tokens"));
    }
    id = static_cast<int32_t>(value);
    return absl::OkStatus();
  };
  WITHY_RETURN_IF_ERROR(load("tokenizer.ggml.bos_token_id", defaults.bos, bos));
  WITHY_RETURN_IF_ERROR(load("tokenizer.ggml.eos_token_id", defaults.eos, eos));
  WITHY_RETURN_IF_ERROR(load("tokenizer.ggml.eot_token_id", kNoToken, eot));
  WITHY_RETURN_IF_ERROR(load("tokenizer.ggml.unknown_token_id", defaults.unknown, unknown));
  int32_t eom = kNoToken;
  WITHY_RETURN_IF_ERROR(load("tokenizer.ggml.eom_token_id", kNoToken, eom));
  WITHY_ASSIGN_OR_RETURN(add_bos, file.GetBoolOr("tokenizer.ggml.add_bos_token", defaults.add_bos));
  for (const int32_t id : {eos, eot, eom}) {
    if (id != kNoToken) end_of_generation.push_back(id);
  }
  return absl::OkStatus();
}

void Vocab::FindTurnMarkers() {
  const auto mark = [this](std::string_view text) {
    const int32_t id = Find(text).value_or(kNoToken);
    if (id != kNoToken) kinds_[static_cast<size_t>(id)] = TokenKind::kControl;
    return id;
  };
  for (const std::string_view text : kTurnTexts) (void)mark(text);
  for (const std::string_view text : kEndTexts) {
    const int32_t id = mark(text);
    if (id == kNoToken) continue;
    end_of_generation.push_back(id);
    if (eot == kNoToken) eot = id;
  }
  std::sort(end_of_generation.begin(), end_of_generation.end());
  end_of_generation.erase(std::unique(end_of_generation.begin(), end_of_generation.end()),
                          end_of_generation.end());
}

std::optional<int32_t> Vocab::Find(std::string_view text) const {
  const auto found = ids_.find(ToAbsl(text));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

VocabTokenizer::VocabTokenizer(Vocab vocab, std::vector<std::string> bytes,
                               bool strip_after_control)
    : vocab_(std::move(vocab)), bytes_(std::move(bytes)) {
  Fnv1a hash;
  for (int32_t id = 0; id < vocab_.size(); ++id) {
    const std::string_view text = vocab_.text(id);
    const TokenKind kind = vocab_.kind(id);
    const bool control = kind == TokenKind::kControl || kind == TokenKind::kUnknown;
    if (control || kind == TokenKind::kUserDefined) {
      // These three may be followed by meaningful white space even in vocabularies that strip it.
      const bool keeps_space = text == "<unk>" || text == "<s>" || text == "<|endoftext|>";
      specials_.Add(text, id, control, strip_after_control && control && !keeps_space);
    }
    hash.Add(text);
    hash.Add(static_cast<int32_t>(kind));
  }
  for (const int32_t id : {vocab_.bos, vocab_.eos, vocab_.eot, vocab_.unknown}) hash.Add(id);
  fingerprint_ = hash.value();
}

std::string_view VocabTokenizer::TokenText(int32_t id) const {
  return vocab_.Has(id) ? vocab_.text(id) : std::string_view();
}

std::string_view VocabTokenizer::TokenBytes(int32_t id) const {
  return vocab_.Has(id) ? bytes_[static_cast<size_t>(id)] : std::string_view();
}

bool VocabTokenizer::IsControl(int32_t id) const {
  return vocab_.Has(id) &&
         (vocab_.kind(id) == TokenKind::kControl || vocab_.kind(id) == TokenKind::kUnknown);
}

bool VocabTokenizer::IsSpecial(int32_t id) const {
  return IsControl(id) || (vocab_.Has(id) && vocab_.kind(id) == TokenKind::kUserDefined);
}

void VocabTokenizer::Prepare(std::span<const TextPiece> pieces, const EncodeOptions& options,
                             Prepared& prepared, Encoding& out) const {
  if (options.add_bos && vocab_.bos != kNoToken) {
    out.ids.push_back(vocab_.bos);
    out.spans.push_back({0, 0});
  }
  if (pieces.size() == 1) {
    prepared.text = pieces[0].text;
  } else {
    for (const TextPiece& piece : pieces) prepared.joined.append(piece.text);
    prepared.text = prepared.joined;
  }
  prepared.text = prepared.text.substr(0, kMaxTextBytes);
  size_t piece_end = 0;
  for (const TextPiece& piece : pieces) {
    const size_t taken = prepared.specials.empty() ? 0 : prepared.specials.back().end;
    const size_t begin = std::max(piece_end, taken);
    piece_end += piece.text.size();
    const size_t end = std::min(piece_end, prepared.text.size());
    if (begin >= end) continue;
    specials_.Find(prepared.text, static_cast<uint32_t>(begin), static_cast<uint32_t>(end),
                   piece.parse_special, prepared.specials);
  }
}

}  // namespace withy::engine
