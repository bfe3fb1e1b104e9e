#include "engine/chat/call_text.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/chat/call_forms/form.h"
#include "engine/chat/call_forms/json_text.h"
#include "engine/chat/tool_calls.h"

namespace withy::engine {
namespace {

// Calls that no template has of its own.
const std::vector<ToolCall>& ShownCalls() {
  static const auto* calls =
      new std::vector<ToolCall>{{"abcdefgh1", "look_at_this", R"({"look_for":"this_thing"})"},
                                {"abcdefgh2", "look_at_that", R"({"look_for":"that_thing"})"}};
  return *calls;
}
constexpr char kShownTools[] =
    R"([{"type":"function","function":{"name":"look_at_this","description":"Looks.","parameters":)"
    R"({"type":"object","properties":{"look_for":{"type":"string"}}}}},)"
    R"({"type":"function","function":{"name":"look_at_that","description":"Looks.","parameters":)"
    R"({"type":"object","properties":{"look_for":{"type":"string"}}}}}])";

// Where a call's name and arguments are in a text.
struct CallPlace {
  size_t name = 0, name_end = 0, arguments = 0, arguments_end = 0;
};

std::optional<CallPlace> FindCall(std::string_view text, size_t from, const ToolCall& call) {
  CallPlace place;
  place.name = text.find(call.name, from);
  if (place.name == std::string_view::npos) return std::nullopt;
  place.name_end = place.name + call.name.size();
  place.arguments = text.find('{', place.name_end);
  if (place.arguments == std::string_view::npos) return std::nullopt;
  place.arguments_end = ValueEnd(text, place.arguments);
  if (place.arguments_end == std::string_view::npos) return std::nullopt;
  OrderedJson shown, wanted;
  const bool same =
      ParseJson(text.substr(place.arguments, place.arguments_end - place.arguments), &shown).ok() &&
      ParseJson(call.arguments_json, &wanted).ok() && shown == wanted;
  return same ? std::optional(place) : std::nullopt;
}

// Where the form begins, behind the turn's own markup.
size_t FormBegin(std::string_view text, size_t turn, size_t name) {
  size_t begin = std::string_view::npos;
  for (const CallForm* form : CallForms()) begin = std::min(begin, text.find(form->opening, turn));
  return begin < name ? begin : SkipSpaces(text, turn);
}

size_t TurnEnd(std::string_view text, size_t from, std::span<const std::string> turn_ends) {
  size_t end = text.size();
  for (const std::string& one : turn_ends) {
    if (!one.empty()) end = std::min(end, text.find(one, from));
  }
  return std::max(from, TrimmedEnd(text, end));
}

std::string WithIds(std::string_view text, std::string_view from, std::string_view to) {
  return absl::StrReplaceAll(
      absl::string_view(text.data(), text.size()),
      {{absl::string_view(from.data(), from.size()), absl::string_view(to.data(), to.size())}});
}

// Whether these calls, written so, are read as what they are.
bool ReadsBack(const CallText& form, std::span<const ToolCall> calls) {
  std::string text = form.begin;
  for (size_t i = 0; i < calls.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : form.between, calls[i].name, form.middle,
                    calls[i].arguments_json);
  }
  text = WithIds(text + form.end, std::string_view(&CallText::kCallId, 1), calls[0].id);
  std::vector<std::string> names;
  for (const ToolCall& call : calls) names.push_back(call.name);
  const AnswerParts parts = ToolCallParser(names).Parse(text);
  return parts.text.empty() && std::equal(parts.calls.begin(), parts.calls.end(), calls.begin(),
                                          calls.end(), [](const ToolCall& a, const ToolCall& b) {
                                            return a.name == b.name &&
                                                   a.arguments_json == b.arguments_json;
                                          });
}

// nullopt: the template does not take so many calls, or shows them in no form that is read.
std::optional<CallText> FindForm(const FileTemplate& chat, std::span<const ToolCall> calls,
                                 std::span<const std::string> turn_ends) {
  const ChatMessage question = {.role = kUserRole, .content = "a"};
  const ChatMessage answer = {
      .role = kAssistantRole, .content = "", .tool_calls_json = ToolCallsJson(calls)};
  ChatOptions options{.add_generation_prompt = true, .tools_json = kShownTools};
  const auto asked = chat.Render(std::vector{question}, options);
  options.add_generation_prompt = false;
  const auto shown = chat.Render(std::vector{question, answer}, options);
  if (!asked.ok() || !shown.ok()) return std::nullopt;
  const std::string prompt = asked->Text(), text = shown->Text();
  const auto turn = static_cast<size_t>(
      std::mismatch(prompt.begin(), prompt.end(), text.begin(), text.end()).second - text.begin());
  std::vector<CallPlace> places;
  for (const ToolCall& call : calls) {
    const auto place = FindCall(text, places.empty() ? turn : places.back().arguments_end, call);
    if (!place) return std::nullopt;
    places.push_back(*place);
  }
  const CallPlace& first = places.front();
  const CallPlace& last = places.back();
  const auto part = [&](size_t begin, size_t end) {
    std::string piece = text.substr(begin, end - begin);
    for (const ToolCall& call : calls) {
      piece = WithIds(piece, call.id, std::string_view(&CallText::kCallId, 1));
    }
    return piece;
  };
  const size_t begin = FormBegin(text, turn, first.name);
  CallText form{.begin = part(begin, first.name),
                .middle = part(first.name_end, first.arguments),
                .end = part(last.arguments_end, TurnEnd(text, last.arguments_end, turn_ends))};
  if (calls.size() > 1) form.between = part(first.arguments_end, last.name);
  return ReadsBack(form, calls) ? std::optional(form) : std::nullopt;
}

}  // namespace

CallText CallTextOf(const FileTemplate* chat, std::span<const std::string> turn_ends) {
  if (chat == nullptr || !chat->traits().takes_calls) return {};
  const std::span<const ToolCall> both = ShownCalls();
  for (const auto calls : {both, both.first(1)}) {
    if (const auto form = FindForm(*chat, calls, turn_ends)) return *form;
  }
  return {};
}

}  // namespace withy::engine
