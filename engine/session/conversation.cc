#include "engine/session/conversation.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fnv1a.h"
#include "base/status.h"

namespace withy::engine {
namespace {

constexpr char kAssistant[] = "assistant";
constexpr char kSystem[] = "system";

// Tokens of markup around a system prompt, about: only steers when a window is called full.
constexpr int32_t kHeadMarkupTokens = 8;

bool IsRaw(const Segment& segment) { return segment.role.empty(); }

// End of the run that begins at `first`: raw text with the answers to it, or messages.
size_t RunEnd(std::span<const Segment> segments, size_t first) {
  size_t end = first + 1;
  if (IsRaw(segments[first])) {
    while (end < segments.size() && segments[end].role == kAssistant) ++end;
  } else {
    while (end < segments.size() && !IsRaw(segments[end])) ++end;
  }
  return end;
}

// Everything that EncodePart's result depends on: lengths first, so that no two inputs run
// together.
std::string CacheKey(std::span<const TextPiece> pieces, bool opens) {
  std::string key(1, opens ? 'o' : 'c');
  for (const TextPiece& piece : pieces) {
    absl::StrAppend(&key, piece.text.size(), piece.parse_special ? "s" : "t");
    key.append(piece.text);
  }
  return key;
}

size_t LeadingSystemSegments(std::span<const Segment> segments) {
  size_t count = 0;
  while (count < segments.size() && segments[count].role == kSystem) ++count;
  return count;
}

}  // namespace

size_t FirstKeptExchange(std::span<const ExchangeTokens> exchanges, int32_t head_tokens,
                         int32_t window) {
  const int64_t limit = window - window / 8;
  size_t first = 0;
  int64_t total = 0;  // of the exchanges kept before the present one
  for (size_t i = 0; i < exchanges.size(); ++i) {
    const int64_t head = first > 0 ? head_tokens : 0;
    if (head + total + exchanges[i].prompt > limit) {
      while (first < i && head_tokens + total + exchanges[i].prompt > window / 2) {
        total -= exchanges[first].prompt + exchanges[first].answer;
        ++first;
      }
    }
    total += exchanges[i].prompt + exchanges[i].answer;
  }
  return first;
}

ConversationEncoder::Part ConversationEncoder::EncodePart(std::span<const TextPiece> pieces,
                                                          size_t first_segment, bool opens,
                                                          const CancelCheck* cancelled) const {
  Part part;
  part.first_segment = first_segment;
  std::string key = CacheKey(pieces, opens);
  if (std::optional<std::vector<int32_t>> known = cache_.Find(key)) {
    part.ids = *std::move(known);
    return part;
  }
  const EncodeOptions options{
      .add_bos = opens && tokenizer_.wants_bos(), .continues = !opens, .cancelled = cancelled};
  Encoding encoding = tokenizer_.EncodePieces(pieces, options);
  part.ids = std::move(encoding.ids);
  part.cancelled = encoding.cancelled;
  if (!part.cancelled) cache_.Add(std::move(key), part.ids);
  return part;
}

ConversationEncoder::Part ConversationEncoder::AnswerPart(const Segment& segment,
                                                          std::string_view text, size_t index,
                                                          const CancelCheck* cancelled) const {
  Part part;
  if (!segment.token_ids.empty() && segment.tokenizer_fingerprint == tokenizer_.fingerprint()) {
    part.ids = segment.token_ids;
    part.first_segment = index;
  } else {
    const TextPiece piece{.text = text};
    part = EncodePart({&piece, 1}, index, /*opens=*/false, cancelled);
  }
  part.answer = true;
  return part;
}

absl::Status ConversationEncoder::EncodeMessages(std::span<const Segment> segments, size_t first,
                                                 bool answer_follows, bool more_follows,
                                                 const CancelCheck* cancelled,
                                                 std::vector<Part>* parts) const {
  std::vector<ChatMessage> messages;
  messages.reserve(segments.size());
  for (const Segment& segment : segments) {
    messages.push_back({.role = segment.role, .content = segment.VisibleText(), .fixed_spans = {}});
  }
  WITHY_ASSIGN_OR_RETURN(const RenderedChat rendered, chat_.Render(messages, answer_follows));

  std::vector<TextPiece> pieces;  // of the part being collected
  size_t part_segment = first;
  for (const ChatPiece& piece : rendered.pieces) {
    const bool answer = piece.message >= 0 && segments[piece.message].role == kAssistant;
    if (!answer) {
      pieces.push_back({.text = piece.text, .parse_special = piece.special});
      continue;
    }
    if (!pieces.empty()) {
      parts->push_back(EncodePart(pieces, part_segment, parts->empty(), cancelled));
    }
    pieces.clear();
    const size_t index = first + static_cast<size_t>(piece.message);
    parts->push_back(AnswerPart(segments[piece.message], piece.text, index, cancelled));
    part_segment = index + 1;
  }
  // What closes the last answer comes with the next prompt.
  const bool closes_only = segments.back().role == kAssistant && !more_follows;
  if (!pieces.empty() && !closes_only) {
    parts->push_back(EncodePart(pieces, part_segment, parts->empty(), cancelled));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ConversationEncoder::Part>> ConversationEncoder::EncodeParts(
    std::span<const Segment> segments, bool answer_follows, const CancelCheck* cancelled) const {
  std::vector<Part> parts;
  for (size_t first = 0; first < segments.size();) {
    const size_t end = RunEnd(segments, first);
    if (IsRaw(segments[first])) {
      const std::string text = segments[first].VisibleText();
      const TextPiece piece{.text = text, .parse_special = true};
      parts.push_back(EncodePart({&piece, 1}, first, parts.empty(), cancelled));
      for (size_t i = first + 1; i < end; ++i) {
        parts.push_back(AnswerPart(segments[i], segments[i].text, i, cancelled));
      }
    } else {
      const bool last = end == segments.size();
      WITHY_RETURN_IF_ERROR(EncodeMessages(segments.subspan(first, end - first), first,
                                           answer_follows && last, !last, cancelled, &parts));
    }
    first = end;
  }
  if (std::any_of(parts.begin(), parts.end(), std::mem_fn(&Part::cancelled))) {
    return absl::CancelledError("cancelled while the prompt was encoded");
  }
  return parts;
}

absl::StatusOr<EncodedConversation> ConversationEncoder::EncodeWithin(
    std::span<const Segment> segments, int32_t window, bool answer_follows, size_t recorded,
    const CancelCheck* cancelled) const {
  if (std::any_of(segments.begin(), segments.end(), std::mem_fn(&Segment::LeftOut))) {
    std::vector<Segment> seen;
    size_t seen_recorded = 0;
    for (size_t i = 0; i < segments.size(); ++i) {
      if (segments[i].LeftOut()) continue;
      seen.push_back(segments[i]);
      if (i < recorded) ++seen_recorded;
    }
    return EncodeWithin(seen, window, answer_follows, seen_recorded, cancelled);
  }
  WITHY_ASSIGN_OR_RETURN(std::vector<Part> parts, EncodeParts(segments, answer_follows, cancelled));

  std::vector<ExchangeTokens> exchanges;
  std::vector<size_t> exchange_segment;  // first segment of each
  bool in_answer = true;
  for (const Part& part : parts) {
    if (!part.answer && in_answer) {
      exchanges.emplace_back();
      exchange_segment.push_back(part.first_segment);
    }
    if (exchanges.empty()) {  // a record that opens with an answer
      exchanges.emplace_back();
      exchange_segment.push_back(part.first_segment);
    }
    in_answer = part.answer;
    int32_t& tokens = part.answer ? exchanges.back().answer : exchanges.back().prompt;
    tokens += static_cast<int32_t>(part.ids.size());
  }

  const size_t head = LeadingSystemSegments(segments);
  int32_t head_tokens = 0;
  for (size_t i = 0; i < head; ++i) {
    head_tokens +=
        kHeadMarkupTokens +
        static_cast<int32_t>(tokenizer_.Encode(segments[i].text, {.cancelled = cancelled}).size());
  }
  const size_t kept = FirstKeptExchange(exchanges, head_tokens, window);
  EncodedConversation result;
  if (kept > 0) {
    std::vector<Segment> shorter(segments.begin(), segments.begin() + static_cast<int64_t>(head));
    const size_t from = std::max(head, exchange_segment[kept]);
    shorter.insert(shorter.end(), segments.begin() + static_cast<int64_t>(from), segments.end());
    result.dropped_segments = static_cast<int32_t>(from - head);
    recorded -= std::min(recorded, from - head);
    WITHY_ASSIGN_OR_RETURN(parts, EncodeParts(shorter, answer_follows, cancelled));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    result.ids.insert(result.ids.end(), parts[i].ids.begin(), parts[i].ids.end());
    const bool last = i + 1 == parts.size();
    if (last ? !answer_follows : parts[i + 1].first_segment <= recorded) {
      result.history_tokens = static_cast<int32_t>(result.ids.size());
    }
  }
  return result;
}

uint64_t ConversationEncoder::Fingerprint() const {
  constexpr std::string_view kText = " Two words,\n1 line. ";
  std::vector<Segment> turns;
  for (const std::string_view role : {"user", kAssistant, "user"}) {
    turns.push_back({.role = std::string(role), .text = std::string(kText)});
  }
  std::vector<Segment> system = turns;
  system.insert(system.begin(), {.role = kSystem, .text = std::string(kText)});
  const Segment raw{.role = "", .text = std::string(kText)};
  Fnv1a hash;
  hash.Add(static_cast<int32_t>(tokenizer_.fingerprint()));
  hash.Add(static_cast<int32_t>(tokenizer_.fingerprint() >> 32));
  // A template may refuse a role: that is a difference, too.
  for (const std::span<const Segment> segments :
       {std::span<const Segment>(turns), std::span<const Segment>(system),
        std::span<const Segment>(&raw, 1)}) {
    const auto encoded = EncodePrompt(segments, kNoWindow);
    hash.Add(static_cast<int32_t>(encoded.ok()));
    if (!encoded.ok()) continue;
    for (const int32_t id : encoded->ids) hash.Add(id);
  }
  return hash.value();
}

absl::StatusOr<EncodedConversation> ConversationEncoder::EncodeRecord(
    std::span<const Segment> segments, int32_t window, const CancelCheck* cancelled) const {
  return EncodeWithin(segments, window, /*answer_follows=*/false, segments.size(), cancelled);
}

absl::StatusOr<EncodedConversation> ConversationEncoder::EncodePrompt(
    std::span<const Segment> segments, int32_t window, size_t recorded,
    const CancelCheck* cancelled) const {
  WITHY_ASSIGN_OR_RETURN(
      EncodedConversation result,
      EncodeWithin(segments, window, /*answer_follows=*/true, recorded, cancelled));
  if (static_cast<int32_t>(result.ids.size()) >= window) {
    return absl::OutOfRangeError(absl::StrCat(
        "the prompt needs ", result.ids.size(), " tokens and the window has ", window,
        " (one is the answer's): shorten the prompt, or raise model.context_length if the model "
        "allows it"));
  }
  return result;
}

}  // namespace withy::engine
