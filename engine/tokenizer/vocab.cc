#include "engine/tokenizer/vocab.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/fnv1a.h"
#include "base/status.h"
#include "base/strings.h"

namespace withy::engine {
namespace {

constexpr uint64_t kMaxTokens = uint64_t{1} << 24;
constexpr size_t kMaxTextBytes = size_t{1} << 30;

// Meaning of a token by its text, whatever kind the file states: files mark such tokens as
// ordinary. The set of tokens that end an answer is llama.cpp's.
enum class Marker : uint8_t {
  kTurnEnd,  // ends an answer; the first one present is the end of turn if the file names none
  kEnd,      // ends an answer
  kMarkup,   // opens a turn or separates text: a control token
};

struct MarkerText {
  std::string_view text;
  Marker marker;
};

constexpr std::string_view kHarmonyEnd = "<|end|>";
constexpr std::string_view kSpmEnd = "</s>";

constexpr std::array kMarkers = std::to_array<MarkerText>({
    {"<|eot_id|>", Marker::kTurnEnd},
    {"<|im_end|>", Marker::kTurnEnd},
    {kHarmonyEnd, Marker::kTurnEnd},
    {"<end_of_turn>", Marker::kTurnEnd},
    {"<|eom_id|>", Marker::kTurnEnd},
    {"<|endoftext|>", Marker::kTurnEnd},
    {"<|end_of_text|>", Marker::kTurnEnd},
    {"<EOT>", Marker::kTurnEnd},
    {"<|EOT|>", Marker::kTurnEnd},
    {"_<EOT>", Marker::kTurnEnd},
    {"\xE2\x96\x81<EOT>", Marker::kTurnEnd},
    {"[EOT]", Marker::kTurnEnd},
    {"<｜end▁of▁sentence｜>", Marker::kTurnEnd},
    {"<end_of_utterance>", Marker::kTurnEnd},
    {"<turn|>", Marker::kTurnEnd},
    {kSpmEnd, Marker::kEnd},
    {"<eos>", Marker::kEnd},
    {"[EOS]", Marker::kEnd},
    {"[e~[", Marker::kEnd},
    {"<|return|>", Marker::kEnd},
    {"<|call|>", Marker::kEnd},
    {"<|calls|>", Marker::kEnd},
    {"<|flush|>", Marker::kEnd},
    {"<|tool_response>", Marker::kEnd},
    // Fill in the middle: text after the requested text.
    {"<|fim_pad|>", Marker::kEnd},
    {"<fim-pad>", Marker::kEnd},
    {"<fim_pad>", Marker::kEnd},
    {"<PAD>", Marker::kEnd},
    {"[PAD]", Marker::kEnd},
    {"<|fim_repo|>", Marker::kEnd},
    {"<|repo_name|>", Marker::kEnd},
    {"<fim-repo>", Marker::kEnd},
    {"<REPO>", Marker::kEnd},
    {"<reponame>", Marker::kEnd},
    {"<|file_sep|>", Marker::kEnd},
    {"<|im_start|>", Marker::kMarkup},
    {"<|start_header_id|>", Marker::kMarkup},
    {"<|end_header_id|>", Marker::kMarkup},
    {"<start_of_turn>", Marker::kMarkup},
    {"<|user|>", Marker::kMarkup},
    {"<|assistant|>", Marker::kMarkup},
    {"<|system|>", Marker::kMarkup},
    {"<|fim_prefix|>", Marker::kMarkup},
    {"<fim-prefix>", Marker::kMarkup},
    {"<fim_prefix>", Marker::kMarkup},
    {"<｜fim▁begin｜>", Marker::kMarkup},
    {"<|fim_suffix|>", Marker::kMarkup},
    {"<fim-suffix>", Marker::kMarkup},
    {"<fim_suffix>", Marker::kMarkup},
    {"<｜fim▁hole｜>", Marker::kMarkup},
    {"<|fim_middle|>", Marker::kMarkup},
    {"<fim-middle>", Marker::kMarkup},
    {"<fim_middle>", Marker::kMarkup},
    {"<｜fim▁end｜>", Marker::kMarkup},
});

// Spelled unlike any word: "<unk>", "[SEP]".
bool LooksLikeMarkup(std::string_view text) {
  return text.size() > 2 && ((text.front() == '<' && text.back() == '>') ||
                             (text.front() == '[' && text.back() == ']'));
}

bool NamesUnknown(std::string_view text) {
  return absl::StrContains(absl::AsciiStrToLower(ToAbsl(text)), "unk");
}

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
  vocab.FindMarkers();
  vocab.CheckUnknown();
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
    // 0 (undefined) and numbers of later formats count as ordinary tokens.
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
  if (bos != kNoToken) others_.push_back(bos);
  // Read only so that text does not become these tokens; an invalid number is not an error.
  for (const std::string_view key :
       {"tokenizer.ggml.seperator_token_id", "tokenizer.ggml.separator_token_id",
        "tokenizer.ggml.padding_token_id", "tokenizer.ggml.cls_token_id",
        "tokenizer.ggml.mask_token_id"}) {
    const absl::StatusOr<int64_t> id = file.GetInt(key);
    if (id.ok() && *id >= 0 && *id < size()) others_.push_back(static_cast<int32_t>(*id));
  }
  return absl::OkStatus();
}

void Vocab::FindMarkers() {
  absl::flat_hash_map<absl::string_view, size_t> markers;
  for (size_t i = 0; i < kMarkers.size(); ++i) markers.emplace(ToAbsl(kMarkers[i].text), i);
  std::vector<std::pair<size_t, int32_t>> found;  // index in kMarkers, token
  for (int32_t id = 0; id < size(); ++id) {
    const auto marker = markers.find(ToAbsl(text(id)));
    if (marker != markers.end()) found.emplace_back(marker->second, id);
  }
  std::sort(found.begin(), found.end());
  // Two families use a token of this list within answers.
  const auto has = [this](std::string_view text) { return Find(text).has_value(); };
  const bool harmony = (has("<|return|>") && has("<|call|>")) ||
                       (has("<|flush|>") && (has("<|call|>") || has("<|calls|>")));
  const bool tool_response = has("<|tool_response>");
  for (const auto& [place, id] : found) {
    const auto& [text, marker] = kMarkers[place];
    if (tool_response && text == kSpmEnd) continue;
    kinds_[static_cast<size_t>(id)] = TokenKind::kControl;
    if (marker == Marker::kMarkup || (harmony && text == kHarmonyEnd)) continue;
    end_of_generation.push_back(id);
    if (marker == Marker::kTurnEnd && eot == kNoToken) eot = id;
  }
  std::sort(end_of_generation.begin(), end_of_generation.end());
  end_of_generation.erase(std::unique(end_of_generation.begin(), end_of_generation.end()),
                          end_of_generation.end());
  for (const int32_t id : end_of_generation) {
    kinds_[static_cast<size_t>(id)] = TokenKind::kControl;
  }
  for (const int32_t id : others_) {
    TokenKind& kind = kinds_[static_cast<size_t>(id)];
    if (kind == TokenKind::kNormal && LooksLikeMarkup(text(id))) kind = TokenKind::kControl;
  }
}

void Vocab::CheckUnknown() {
  if (unknown == kNoToken) return;
  TokenKind& kind = kinds_[static_cast<size_t>(unknown)];
  const bool named = kind == TokenKind::kUnknown || NamesUnknown(text(unknown));
  const bool ends = std::binary_search(end_of_generation.begin(), end_of_generation.end(), unknown);
  const bool other = std::find(others_.begin(), others_.end(), unknown) != others_.end();
  const bool markup = kind == TokenKind::kNormal && LooksLikeMarkup(text(unknown));
  const bool usable = named || !(other || markup || kind == TokenKind::kControl);
  if (markup) kind = named ? TokenKind::kUnknown : TokenKind::kControl;
  if (usable && !ends && unknown != bos) unknown_in_text = unknown;
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
    const bool control = vocab_.IsControl(id);
    if (control || kind == TokenKind::kUserDefined) {
      // These three may precede meaningful white space even in vocabularies that strip it.
      const bool keeps_space = text == "<unk>" || text == "<s>" || text == "<|endoftext|>";
      specials_.Add(text, id, control, strip_after_control && control && !keeps_space);
    }
    hash.Add(text);
    hash.Add(static_cast<int32_t>(kind));
  }
  for (const int32_t id : {vocab_.bos, vocab_.eos, vocab_.eot, vocab_.unknown}) hash.Add(id);
  fingerprint_ = hash.value();
  specials_.Sort();
}

std::string_view VocabTokenizer::TokenText(int32_t id) const {
  return vocab_.Has(id) ? vocab_.text(id) : std::string_view();
}

std::string_view VocabTokenizer::TokenBytes(int32_t id) const {
  return vocab_.Has(id) ? bytes_[static_cast<size_t>(id)] : std::string_view();
}

bool VocabTokenizer::IsControl(int32_t id) const { return vocab_.Has(id) && vocab_.IsControl(id); }

bool VocabTokenizer::IsSpecial(int32_t id) const {
  return IsControl(id) || (vocab_.Has(id) && vocab_.kind(id) == TokenKind::kUserDefined);
}

void VocabTokenizer::Append(int32_t id, ByteSpan span, Encoding& out) {
  const uint32_t covered = out.spans.empty() ? 0 : out.spans.back().end;
  out.ids.push_back(id);
  out.spans.push_back({std::min(span.begin, covered), span.end});
}

void VocabTokenizer::Drop(ByteSpan span, Encoding& out) {
  if (out.spans.empty()) return;
  ByteSpan& last = out.spans.back();
  if (last.end > 0) last.end = span.end;  // not of BOS or a leading space
}

void VocabTokenizer::Prepare(std::span<const TextPiece> pieces, const EncodeOptions& options,
                             CancelPoll& poll, Prepared& prepared, Encoding& out) const {
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
                   piece.parse_special, poll, prepared.specials);
  }
}

}  // namespace withy::engine
