#include "engine/chat/tool_calls.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/fnv1a.h"
#include "base/json.h"
#include "engine/chat/call_forms/form.h"
#include "engine/chat/call_forms/json_text.h"
#include "engine/chat/call_forms/reader.h"
#include "engine/chat/thoughts.h"

namespace withy::engine {
namespace {

using Json = OrderedJson;

constexpr int kMaxFailures = 64;  // markers without a call, after which all is text

size_t FindOpening(std::string_view text, size_t from) {
  size_t first = std::string_view::npos;
  for (const CallForm* form : CallForms()) {
    const std::string_view marker = form->opening;
    first = std::min(
        first,
        text.substr(0, first == std::string_view::npos ? text.size() : first + marker.size() - 1)
            .find(marker, from));
  }
  return first;
}

// Where the answer itself begins. One that begins with a call has no thought in front; its
// arguments may hold anything.
size_t BehindThoughts(std::string_view answer) {
  if (FindOpening(answer, 0) == SkipSpaces(answer, 0)) return 0;
  const size_t end = answer.find(kThoughtEnd);
  return end == std::string_view::npos ? 0 : end + kThoughtEnd.size();
}

// A call, or a group of calls, with its markers.
bool ReadMarkedCalls(CallReader& reader) {
  for (const CallForm* form : CallForms()) {
    if (reader.Take(form->opening)) return form->read(reader);
  }
  return false;
}

// Collects what is outside of calls.
class Outside {
 public:
  void Append(std::string_view text, bool before_call) {
    if (behind_call_) {
      text.remove_prefix(SkipSpaces(text, 0));
      if (!text.empty() && !text_.empty()) text_ += '\n';
    }
    if (before_call) text = text.substr(0, TrimmedEnd(text, text.size()));
    text_ += text;
    behind_call_ = before_call;
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
  bool behind_call_ = false;
};

// null: there is no such member.
const Json& Member(const Json& object, const char* name) {
  static const Json none;
  if (!object.is_object()) return none;
  const auto found = object.find(name);
  return found == object.end() ? none : *found;
}

}  // namespace

std::string ToolCallsJson(std::span<const ToolCall> calls) {
  if (calls.empty()) return "";
  Json list = Json::array();
  for (const ToolCall& call : calls) {
    list.push_back({{"id", call.id},
                    {"type", "function"},
                    {"function", {{"name", call.name}, {"arguments", call.arguments_json}}}});
  }
  return DumpJson(list);
}

void GiveIds(uint64_t call_id, std::vector<ToolCall>* calls) {
  constexpr std::string_view kDigits =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  for (size_t i = 0; i < calls->size(); ++i) {
    Fnv1a hash;
    hash.Add(std::to_string(call_id) + ":" + std::to_string(i));
    uint64_t rest = hash.value();
    std::string id;
    for (int digit = 0; digit < 9; ++digit, rest /= kDigits.size()) {
      id += kDigits[rest % kDigits.size()];
    }
    (*calls)[i].id = std::move(id);
  }
}

bool IsEmptyJson(std::string_view json) {
  std::string rest;
  for (const char c : json) {
    if (kJsonSpaces.find(c) != std::string_view::npos) continue;
    rest += c;
    if (rest.size() > 2) return false;
  }
  return rest.empty() || rest == "[]" || rest == "{}";
}

std::span<const std::string_view> CallMarkers() {
  static const auto* markers = [] {
    auto* all = new std::vector<std::string_view>;
    for (const CallForm* form : CallForms()) {
      all->insert(all->end(), form->markers.begin(), form->markers.end());
    }
    return all;
  }();
  return *markers;
}

std::vector<std::string_view> CallOpenings() {
  std::vector<std::string_view> openings;
  for (const CallForm* form : CallForms()) openings.push_back(form->opening);
  return openings;
}

ToolCallParser::ToolCallParser(std::string_view tools_json) {
  Json tools;
  if (!ParseJson(tools_json, &tools).ok() || !tools.is_array()) return;
  for (const Json& tool : tools) {
    const bool wrapped = tool.is_object() && tool.contains("function");
    const Json& function = wrapped ? Member(tool, "function") : tool;
    const Json& name = Member(function, "name");
    if (!name.is_string()) continue;
    auto& parameters = tools_[name.get<std::string>()];
    const Json& schemas = Member(Member(function, "parameters"), "properties");
    if (!schemas.is_object()) continue;
    for (const auto& [parameter, schema] : schemas.items()) {
      parameters[parameter] = Member(schema, "type") == "string";
    }
  }
}

ToolCallParser::ToolCallParser(std::span<const std::string> names) {
  for (const std::string& name : names) tools_[name];
}

bool ToolCallParser::IsText(std::string_view tool, std::string_view parameter) const {
  const auto found = tools_.find(tool);
  if (found == tools_.end()) return false;
  const auto described = found->second.find(parameter);
  return described != found->second.end() && described->second;
}

AnswerParts ToolCallParser::Parse(std::string_view answer) const {
  const size_t begin = BehindThoughts(answer);
  AnswerParts parts;
  Outside outside;
  const size_t first = SkipSpaces(answer, begin);
  if (first < answer.size() && (answer[first] == '{' || answer[first] == '[')) {
    CallReader reader(*this, answer, first);
    if (ReadBareCalls(reader)) {
      outside.Append(answer.substr(0, begin), /*before_call=*/true);
      return {.text = outside.Take(), .calls = std::move(reader.calls())};
    }
  }
  size_t told = 0;  // of the answer
  int failures = 0;
  size_t at = begin;
  while (failures < kMaxFailures) {
    at = FindOpening(answer, at);
    if (at == std::string_view::npos) break;
    CallReader reader(*this, answer, at);
    if (!ReadMarkedCalls(reader) || parts.calls.size() + reader.calls().size() > kMaxToolCalls) {
      ++failures;
      ++at;
      continue;
    }
    outside.Append(answer.substr(told, at - told), /*before_call=*/true);
    std::move(reader.calls().begin(), reader.calls().end(), std::back_inserter(parts.calls));
    told = at = reader.at();
  }
  outside.Append(answer.substr(told), /*before_call=*/false);
  parts.text = outside.Take();
  return parts;
}

size_t ShownBeforeCalls(std::string_view answer, size_t shown) {
  const size_t begin = BehindThoughts(answer);
  const size_t first = SkipSpaces(answer, begin);
  size_t end = answer.size();
  if (shown <= first && first < answer.size() && (answer[first] == '{' || answer[first] == '[') &&
      MayBeBareCalls(answer.substr(first))) {
    end = begin;
  } else if (const size_t found = FindOpening(answer, std::max(shown, begin));
             found != std::string_view::npos) {
    end = found;
  } else {
    for (const CallForm* form : CallForms()) {
      const std::string_view marker = form->opening;
      for (size_t length = std::min(marker.size() - 1, answer.size()); length > 0; --length) {
        if (!answer.ends_with(marker.substr(0, length))) continue;
        end = std::min(end, answer.size() - length);
        break;
      }
    }
  }
  return std::max(shown, TrimmedEnd(answer, end));
}

}  // namespace withy::engine
