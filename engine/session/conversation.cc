#include "engine/session/conversation.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fnv1a.h"
#include "base/status.h"
#include "engine/chat/template.h"
#include "engine/session/adapt_record.h"

namespace withy::engine {
namespace {

// Approximate markup tokens around a system prompt; only affects when a window counts as full.
constexpr int32_t kHeadMarkupTokens = 8;

bool IsRaw(const Segment& segment) { return segment.role.empty(); }

// End of the run that begins at `first`: raw text with its answers, or messages.
size_t RunEnd(std::span<const Segment> segments, size_t first) {
  size_t end = first + 1;
  if (IsRaw(segments[first])) {
    while (end < segments.size() && segments[end].role == kAssistantRole) ++end;
  } else {
    while (end < segments.size() && !IsRaw(segments[end])) ++end;
  }
  return end;
}

// All inputs of EncodePart. Lengths come first, so that different inputs have different keys.
std::string CacheKey(std::span<const TextPiece> pieces, bool opens) {
  std::string key(1, opens ? 'o' : 'c');
  for (const TextPiece& piece : pieces) {
    absl::StrAppend(&key, piece.text.size(), piece.parse_special ? "s" : "t");
    key.append(piece.text);
  }
  return key;
}

// Instructions in front, which are never dropped.
size_t LeadingSystemSegments(std::span<const Segment> segments) {
  size_t count = 0;
  while (count < segments.size() &&
         (segments[count].role == kSystemRole || segments[count].role == kDeveloperRole)) {
    ++count;
  }
  return count;
}

// An assistant's message in a rendered chat: pieces [first, end) are its text, with markup that the
// template put between (reasoning models).
struct RenderedAnswer {
  size_t first = 0;
  size_t end = 0;
  // The pieces, with this much of the markup in front and behind, are the message's whole text.
  bool whole = false;
  size_t before_bytes = 0;
  size_t behind_bytes = 0;
};

// The answer whose text begins with piece `first`.
RenderedAnswer FindAnswer(std::span<const ChatPiece> pieces, size_t first,
                          std::string_view visible) {
  RenderedAnswer answer{.first = first, .end = first + 1};
  const int32_t message = pieces[first].message;
  for (size_t i = first + 1; i < pieces.size(); ++i) {
    if (pieces[i].message == message) answer.end = i + 1;
    if (pieces[i].message >= 0 && pieces[i].message != message) break;
  }
  std::string text;
  for (size_t i = first; i < answer.end; ++i) text += pieces[i].text;
  const size_t begin = pieces[first].offset;
  if (begin > visible.size() || visible.substr(begin, text.size()) != text) return answer;
  const std::string_view before = visible.substr(0, begin);
  const std::string_view behind = visible.substr(begin + text.size());
  const bool begins = before.empty() || (first > 0 && pieces[first - 1].special &&
                                         pieces[first - 1].text.ends_with(before));
  const bool ends = behind.empty() || (answer.end < pieces.size() && pieces[answer.end].special &&
                                       pieces[answer.end].text.starts_with(behind));
  answer.whole = begins && ends;
  answer.before_bytes = before.size();
  answer.behind_bytes = behind.size();
  return answer;
}

// Templates without a developer's messages get them as the system's, where those may be.
void AdaptInstructions(const ChatTemplate& chat, std::vector<Segment>* segments) {
  for (size_t i = 0; i < segments->size(); ++i) {
    const bool opens = i == 0 || IsRaw((*segments)[i - 1]);
    Segment& segment = (*segments)[i];
    if (segment.role == kDeveloperRole && !chat.Takes(kDeveloperRole, opens) &&
        chat.Takes(kSystemRole, opens)) {
      segment.role = kSystemRole;
    }
  }
}

std::vector<ChatMessage> MessagesOf(std::span<const Segment> segments) {
  std::vector<ChatMessage> messages;
  messages.reserve(segments.size());
  std::unordered_map<std::string_view, std::string_view> called;  // names by ids
  for (const Segment& segment : segments) {
    for (const ToolCall& call : segment.tool_calls) called[call.id] = call.name;
    std::string name = segment.name;
    const auto call = called.find(segment.tool_call_id);
    if (name.empty() && segment.role == kToolRole && call != called.end()) name = call->second;
    messages.push_back({.role = segment.role,
                        .content = segment.VisibleText(),
                        .tool_calls_json = ToolCallsJson(segment.tool_calls),
                        .name = std::move(name),
                        .tool_call_id = segment.tool_call_id});
  }
  return messages;
}

// The bytes [begin, end) of all pieces as one piece of `message` with this text.
void ReplaceByPiece(size_t begin, size_t end, int32_t message, const std::string& text,
                    std::vector<ChatPiece>* pieces) {
  std::vector<ChatPiece> made;
  size_t at = 0;  // of a piece, in all bytes
  bool placed = false;
  for (ChatPiece& piece : *pieces) {
    const size_t last = at + piece.text.size();
    if (last <= begin || at >= end) {
      made.push_back(std::move(piece));
    } else {
      if (at < begin) {
        made.push_back({.text = piece.text.substr(0, begin - at), .special = piece.special});
      }
      if (!placed) made.push_back({.text = text, .message = message});
      placed = true;
      if (last > end) {
        made.push_back({.text = piece.text.substr(end - at), .special = piece.special});
      }
    }
    at = last;
  }
  *pieces = std::move(made);
}

// Prompts with their answers.
struct Exchanges {
  std::vector<ExchangeTokens> tokens;
  std::vector<size_t> first_segment;

  size_t EndSegment(size_t exchange, size_t segments) const {
    return exchange + 1 < first_segment.size() ? first_segment[exchange + 1] : segments;
  }
};

// A tool's result belongs to the exchange whose answer asked for it.
Exchanges ExchangesOf(std::span<const ConversationPart> parts, std::span<const Segment> segments) {
  Exchanges exchanges;
  bool in_answer = true;
  for (const ConversationPart& part : parts) {
    const bool tool =
        part.first_segment < segments.size() && segments[part.first_segment].role == kToolRole;
    // A record may begin with an answer.
    if ((!part.answer && in_answer && !tool) || exchanges.tokens.empty()) {
      exchanges.tokens.emplace_back();
      exchanges.first_segment.push_back(part.first_segment);
    }
    in_answer = part.answer;
    ExchangeTokens& last = exchanges.tokens.back();
    (part.answer ? last.answer : last.prompt) += static_cast<int32_t>(part.ids.size());
  }
  return exchanges;
}

// `recorded`: number of segments, among those of the parts, that belong to the record.
void Join(std::span<const ConversationPart> parts, bool answer_follows, size_t recorded,
          EncodedConversation* result) {
  result->ids.clear();
  result->history_tokens = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    result->ids.insert(result->ids.end(), parts[i].ids.begin(), parts[i].ids.end());
    const bool last = i + 1 == parts.size();
    if (last ? !answer_follows : parts[i + 1].first_segment <= recorded) {
      result->history_tokens = static_cast<int32_t>(result->ids.size());
    }
  }
}

// How many of the exchanges, the first ones, are recorded whole.
size_t RecordedExchanges(const Exchanges& exchanges, size_t segments, size_t recorded) {
  size_t count = 0;
  while (count < exchanges.tokens.size() && exchanges.EndSegment(count, segments) <= recorded) {
    ++count;
  }
  return count;
}

// Indices of the segments that the model sees.
std::vector<size_t> SeenSegments(std::span<const Segment> segments) {
  std::vector<size_t> seen;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (!segments[i].LeftOut()) seen.push_back(i);
  }
  return seen;
}

// The segments with these numbers, as the model sees them.
std::vector<Segment> CopyOf(std::span<const Segment> segments, const std::vector<size_t>& numbers,
                            Truncation truncation) {
  std::vector<Segment> seen;
  for (const size_t number : numbers) {
    Segment& segment = seen.emplace_back(segments[number]);
    // Calls are in no text: what a template shows of them is compared with what was generated.
    if (truncation == Truncation::kNone && segment.tool_calls.empty()) segment.token_ids.clear();
  }
  return seen;
}

size_t DroppableExchanges(const Exchanges& exchanges, size_t segments, size_t recorded,
                          Truncation truncation) {
  if (truncation == Truncation::kNone) return 0;
  if (truncation == Truncation::kOldest) return exchanges.tokens.size();
  return RecordedExchanges(exchanges, segments, recorded);
}

void AddPieces(std::span<const ChatPiece> shown, std::vector<TextPiece>* pieces) {
  for (const ChatPiece& piece : shown) {
    pieces->push_back({.text = piece.text, .parse_special = piece.special});
  }
}

// Without the token that the tokenizer adds to the first part.
absl::StatusOr<RenderedChat> RenderTurns(const ChatTemplate& chat, const Tokenizer& tokenizer,
                                         std::span<const ChatMessage> messages,
                                         const ChatOptions& options) {
  WITHY_ASSIGN_OR_RETURN(RenderedChat rendered, chat.Render(messages, options));
  if (tokenizer.wants_bos()) rendered.DropFront(tokenizer.TokenText(tokenizer.bos_id()));
  return rendered;
}

// When the conversation began: now, if nothing of it is recorded.
int64_t BeganUnixS(std::span<const Segment> segments, const Clock& clock) {
  const bool recorded = !segments.empty() && segments.front().unix_s > 0;
  return recorded ? segments.front().unix_s : clock.UnixNanos() / kNanosPerSecond;
}

}  // namespace

size_t FirstKeptExchange(std::span<const ExchangeTokens> exchanges, int32_t head_tokens,
                         int32_t window, size_t droppable) {
  const int64_t limit = window - window / 8;
  size_t first = 0;
  int64_t total = 0;  // tokens of the exchanges kept before the present one
  for (size_t i = 0; i < exchanges.size(); ++i) {
    const int64_t head = first > 0 ? head_tokens : 0;
    if (head + total + exchanges[i].prompt > limit) {
      while (first < std::min(i, droppable) &&
             head_tokens + total + exchanges[i].prompt > window / 2) {
        total -= exchanges[first].prompt + exchanges[first].answer;
        ++first;
      }
    }
    total += exchanges[i].prompt + exchanges[i].answer;
  }
  return first;
}

ConversationPart ConversationEncoder::EncodePart(std::span<const TextPiece> pieces,
                                                 size_t first_segment, bool opens,
                                                 const CancelCheck* cancelled) const {
  ConversationPart part;
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

ConversationPart ConversationEncoder::AnswerPart(const Segment& segment, std::string_view text,
                                                 size_t index, const CancelCheck* cancelled) const {
  ConversationPart part;
  if (HasGeneratedIds(segment)) {
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
                                                 const Told& told, const CancelCheck* cancelled,
                                                 std::vector<ConversationPart>* parts) const {
  const std::vector<ChatMessage> messages = MessagesOf(segments);
  const ChatOptions options{.add_generation_prompt = answer_follows,
                            .tools_json = told.settings.tools_json,
                            .arguments_json = told.settings.template_arguments_json,
                            .unix_s = told.unix_s};
  WITHY_ASSIGN_OR_RETURN(RenderedChat rendered, RenderTurns(chat_, tokenizer_, messages, options));
  const std::vector<std::string> generated = ShowCallsAsGenerated(segments, &rendered);

  std::vector<TextPiece> pieces;  // of the part being collected
  size_t part_segment = first;
  const auto flush = [&] {
    if (pieces.empty()) return;
    parts->push_back(EncodePart(pieces, part_segment, parts->empty(), cancelled));
    pieces.clear();
  };
  const std::vector<ChatPiece>& all = rendered.pieces;
  // An answer that is to go on is a prompt.
  const bool continues = answer_follows && segments.back().role == kAssistantRole &&
                         segments.back().tool_calls.empty();
  const size_t prompts_from = continues ? segments.size() - 1 : segments.size();
  size_t skipped = 0;  // bytes of the next piece that belong to the answer before
  for (size_t i = 0; i < all.size(); ++i) {
    const int32_t message = all[i].message;
    if (message < 0 || segments[message].role != kAssistantRole ||
        static_cast<size_t>(message) >= prompts_from) {
      const std::string_view text = std::string_view(all[i].text).substr(skipped);
      skipped = 0;
      if (!text.empty()) pieces.push_back({.text = text, .parse_special = all[i].special});
      continue;
    }
    const Segment& segment = segments[message];
    const bool calls_shown = !generated[message].empty();
    const std::string& visible = calls_shown ? generated[message] : messages[message].content;
    const RenderedAnswer answer = FindAnswer(all, i, visible);
    // An answer before may have taken the markup.
    const bool has_front = answer.before_bytes == 0 ||
                           (!pieces.empty() && pieces.back().text.size() >= answer.before_bytes);
    // Generated ids have the calls in them.
    const bool ids_fit = calls_shown || segment.tool_calls.empty() || !HasGeneratedIds(segment);
    const bool exact = answer.whole && has_front && ids_fit && chat_.executes_file();
    if (exact && answer.before_bytes > 0) {
      pieces.back().text.remove_suffix(answer.before_bytes);
      if (pieces.back().text.empty()) pieces.pop_back();
    }
    flush();
    const size_t index = first + static_cast<size_t>(message);
    if (exact) {
      parts->push_back(AnswerPart(segment, visible, index, cancelled));
      skipped = answer.behind_bytes;
    } else if (!chat_.executes_file()) {
      parts->push_back(AnswerPart(segment, all[i].text, index, cancelled));
    } else {  // the template shows something else than what was answered
      AddPieces(std::span(all).subspan(answer.first, answer.end - answer.first), &pieces);
      ConversationPart part = EncodePart(pieces, index, parts->empty(), cancelled);
      part.answer = true;
      parts->push_back(std::move(part));
      pieces.clear();
    }
    part_segment = index + 1;
    i = answer.end - 1;
  }
  // The markup that closes the last answer is part of the next prompt.
  const bool closes = segments.back().role == kAssistantRole && !more_follows && !answer_follows;
  if (!closes) flush();
  if (answer_follows && !parts->empty()) {
    parts->back().opens_thought = rendered.OpensThought(continues);
  }
  return absl::OkStatus();
}

std::vector<std::string> ConversationEncoder::ShowCallsAsGenerated(
    std::span<const Segment> segments, RenderedChat* rendered) const {
  std::vector<std::string> generated(segments.size());
  size_t from = 0;  // bytes that belong to messages before
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].tool_calls.empty() || !HasGeneratedIds(segments[i])) continue;
    std::string text;
    for (const int32_t id : segments[i].token_ids) text += tokenizer_.TokenBytes(id);
    // The template shows the message between its neighbours, and its content within.
    size_t to = std::string::npos, content_begin = std::string::npos, content_end = 0, at = 0;
    for (const ChatPiece& piece : rendered->pieces) {
      const auto message = static_cast<int32_t>(i);
      const size_t end = at + piece.text.size();
      if (piece.message >= 0 && piece.message < message) from = std::max(from, end);
      if (piece.message == message) {
        content_begin = std::min(content_begin, at);
        content_end = end;
      }
      if (piece.message > message) to = std::min(to, at);
      at = end;
    }
    const std::string all = rendered->Text();
    const size_t found = all.find(text, from);
    if (text.empty() || found == std::string::npos || found + text.size() > std::min(to, at) ||
        found > content_begin || found + text.size() < content_end) {
      continue;
    }
    ReplaceByPiece(found, found + text.size(), static_cast<int32_t>(i), text, &rendered->pieces);
    from = found + text.size();
    generated[i] = std::move(text);
  }
  return generated;
}

ConversationSettings ConversationEncoder::SettingsFor(std::span<const Segment> segments,
                                                      size_t recorded) const {
  ConversationSettings held = SettingsOf(segments.first(recorded));
  if (!chat_.takes_tools()) held.tools_json = {};
  if (!chat_.executes_file()) held.template_arguments_json = {};
  const ConversationSettings now = SettingsOf(segments.subspan(recorded));
  if (!now.tools_json.empty()) held.tools_json = now.tools_json;
  if (!now.template_arguments_json.empty()) {
    held.template_arguments_json = now.template_arguments_json;
  }
  return held;
}

AnswerTools ConversationEncoder::ToolsOf(std::span<const Segment> record,
                                         std::span<const Segment> prompt) const {
  std::string_view tools = SettingsOf(prompt).tools_json;
  if (tools.empty()) tools = SettingsOf(record).tools_json;
  return chat_.takes_tools() ? AnswerTools(tools, tokenizer_) : AnswerTools();
}

absl::StatusOr<std::vector<ConversationPart>> ConversationEncoder::EncodeParts(
    std::span<const Segment> segments, bool answer_follows, const Told& told,
    const CancelCheck* cancelled) const {
  std::vector<ConversationPart> parts;
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
                                           answer_follows && last, !last, told, cancelled, &parts));
    }
    first = end;
  }
  if (std::any_of(parts.begin(), parts.end(), std::mem_fn(&ConversationPart::cancelled))) {
    return absl::CancelledError("cancelled while the prompt was encoded");
  }
  return parts;
}

int32_t ConversationEncoder::HeadTokens(std::span<const Segment> head, std::string_view tools_json,
                                        const CancelCheck* cancelled) const {
  int32_t tokens = 0;
  if (!IsEmptyJson(tools_json)) {
    const TextPiece piece{.text = tools_json};
    tokens +=
        static_cast<int32_t>(EncodePart({&piece, 1}, 0, /*opens=*/false, cancelled).ids.size());
  }
  for (const Segment& segment : head) {
    const TextPiece piece{.text = segment.text};
    const ConversationPart part = EncodePart({&piece, 1}, 0, /*opens=*/false, cancelled);
    tokens += kHeadMarkupTokens + static_cast<int32_t>(part.ids.size());
  }
  return tokens;
}

absl::StatusOr<EncodedConversation> ConversationEncoder::EncodeWithin(
    std::span<const Segment> segments, int32_t window, bool answer_follows, size_t recorded,
    const CancelCheck* cancelled, Truncation truncation) const {
  std::vector<size_t> number = SeenSegments(segments);
  std::vector<Segment> seen = CopyOf(segments, number, truncation);
  auto recorded_seen = static_cast<size_t>(
      std::lower_bound(number.begin(), number.end(), recorded) - number.begin());
  Told told;
  told.settings = SettingsFor(segments, recorded);
  told.unix_s = BeganUnixS(segments, clock_);
  AdaptInstructions(chat_, &seen);
  EncodedConversation result;
  if (AdaptedRecord record = AdaptRecord(seen, recorded_seen, chat_); record.adapted > 0) {
    result.adapted_segments = record.adapted;
    recorded_seen = record.recorded;
    seen = std::move(record.segments);
    for (size_t& origin : record.origin) origin = number[origin];
    number = std::move(record.origin);
  }
  WITHY_ASSIGN_OR_RETURN(std::vector<ConversationPart> parts,
                         EncodeParts(seen, answer_follows, told, cancelled));
  const Exchanges exchanges = ExchangesOf(parts, seen);
  const size_t count = exchanges.tokens.size();

  size_t droppable = DroppableExchanges(exchanges, seen.size(), recorded_seen, truncation);
  // The prompt to be answered is never dropped.
  if (answer_follows && count > 0) droppable = std::min(droppable, count - 1);
  const size_t head = LeadingSystemSegments(seen);
  const int32_t head_tokens =
      HeadTokens(std::span(seen).first(head), told.settings.tools_json, cancelled);
  const size_t limit = static_cast<size_t>(answer_follows ? window - 1 : window);
  size_t kept = FirstKeptExchange(exchanges.tokens, head_tokens, window, droppable);
  while (true) {
    size_t dropped = 0;  // number of `seen` dropped after the head
    if (kept > 0) {
      const size_t from =
          kept < count ? std::max(head, exchanges.first_segment[kept]) : seen.size();
      dropped = from - head;
      std::vector<Segment> shorter(seen.begin(), seen.begin() + static_cast<int64_t>(head));
      shorter.insert(shorter.end(), seen.begin() + static_cast<int64_t>(from), seen.end());
      WITHY_ASSIGN_OR_RETURN(parts, EncodeParts(shorter, answer_follows, told, cancelled));
      result.dropped_segments = static_cast<int32_t>(
          (from < seen.size() ? number[from] : segments.size()) - LeadingSystemSegments(segments));
    }
    Join(parts, answer_follows, recorded_seen - std::min(recorded_seen, dropped), &result);
    if (result.ids.size() <= limit || kept >= droppable) break;
    ++kept;  // markup, or a merge across a cut, takes more than estimated
  }
  result.answer_begins_in_thought = answer_follows && !parts.empty() && parts.back().opens_thought;
  // If the system prompt alone fills the window, nothing can be kept.
  if (!answer_follows && result.ids.size() > limit) {
    result.ids.clear();
    result.history_tokens = 0;
  }
  result.stable_tokens = result.history_tokens;
  if (!answer_follows || result.history_tokens == 0 || !chat_.executes_file()) return result;
  const Told before{.settings = SettingsFor(segments.first(recorded), recorded),
                    .unix_s = told.unix_s};
  if (result.dropped_segments == 0) {
    WITHY_ASSIGN_OR_RETURN(
        result.stable_tokens,
        StableTokens(std::span(seen).first(recorded_seen), before,
                     std::span(result.ids).first(static_cast<size_t>(result.history_tokens)),
                     cancelled));
  } else if (before.settings.tools_json != told.settings.tools_json ||
             before.settings.template_arguments_json != told.settings.template_arguments_json) {
    result.stable_tokens = 0;
  }
  return result;
}

absl::StatusOr<int32_t> ConversationEncoder::StableTokens(std::span<const Segment> record,
                                                          const Told& told,
                                                          std::span<const int32_t> ids,
                                                          const CancelCheck* cancelled) const {
  auto parts = EncodeParts(record, /*answer_follows=*/false, told, cancelled);
  if (absl::IsCancelled(parts.status())) return parts.status();
  if (!parts.ok()) return 0;  // the template takes the record only with what follows it
  size_t same = 0;
  for (const ConversationPart& part : *parts) {
    for (const int32_t id : part.ids) {
      if (same == ids.size() || ids[same] != id) return static_cast<int32_t>(same);
      ++same;
    }
  }
  return static_cast<int32_t>(same);
}

CallText ConversationEncoder::CallsForm() const {
  std::vector<std::string> ends;
  for (const int32_t id : tokenizer_.end_of_generation_ids()) {
    ends.emplace_back(tokenizer_.TokenText(id));
  }
  return CallTextOf(chat_.file(), ends);
}

uint64_t ConversationEncoder::Fingerprint() const {
  constexpr std::string_view kText = " Two words,\n1 line. ";
  std::vector<Segment> turns;
  for (const std::string_view role : {kUserRole, kAssistantRole, kUserRole}) {
    turns.push_back({.role = std::string(role), .text = std::string(kText), .unix_s = 1});
  }
  std::vector<Segment> system = turns;
  system.insert(system.begin(), {.role = kSystemRole, .text = std::string(kText), .unix_s = 1});
  const Segment raw{.role = "", .text = std::string(kText)};
  Fnv1a hash;
  hash.Add(static_cast<int32_t>(chat_.fingerprint()));
  hash.Add(static_cast<int32_t>(chat_.fingerprint() >> 32));
  hash.Add(static_cast<int32_t>(tokenizer_.fingerprint()));
  hash.Add(static_cast<int32_t>(tokenizer_.fingerprint() >> 32));
  // A template may refuse a role, which is a difference, too.
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
    std::span<const Segment> segments, int32_t window, const CancelCheck* cancelled,
    Truncation truncation) const {
  return EncodeWithin(segments, window, /*answer_follows=*/false, segments.size(), cancelled,
                      truncation);
}

absl::StatusOr<EncodedConversation> ConversationEncoder::MeasurePrompt(
    std::span<const Segment> segments, int32_t window, size_t recorded,
    const CancelCheck* cancelled, Truncation truncation) const {
  return EncodeWithin(segments, window, /*answer_follows=*/true, recorded, cancelled, truncation);
}

absl::StatusOr<EncodedConversation> ConversationEncoder::EncodePrompt(
    std::span<const Segment> segments, int32_t window, size_t recorded,
    const CancelCheck* cancelled, Truncation truncation) const {
  WITHY_ASSIGN_OR_RETURN(EncodedConversation result,
                         MeasurePrompt(segments, window, recorded, cancelled, truncation));
  if (static_cast<int32_t>(result.ids.size()) >= window) {
    return absl::OutOfRangeError(absl::StrCat(
        "the prompt needs ", result.ids.size(), " tokens and the window has ", window,
        " (one is the answer's): shorten the prompt, or raise model.context_length if the model "
        "allows it"));
  }
  return result;
}

}  // namespace withy::engine
