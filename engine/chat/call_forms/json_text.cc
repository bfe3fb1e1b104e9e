#include "engine/chat/call_forms/json_text.h"

#include <algorithm>
#include <utility>

#include "base/tool_name.h"

namespace withy::engine {
namespace {

using Json = OrderedJson;

size_t StringEnd(std::string_view text, size_t at) {
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      return at + 1;
    }
  }
  return std::string_view::npos;
}

// `object` is valid JSON. Calls member(name, value) for each.
template <typename Function>
void ForEachMember(std::string_view object, Function member) {
  size_t at = SkipSpaces(object, 1);
  while (at < object.size() && object[at] == '"') {
    const size_t key_end = StringEnd(object, at);
    const std::string key = Json::parse(object.substr(at, key_end - at)).get<std::string>();
    const size_t value = SkipSpaces(object, SkipSpaces(object, key_end) + 1);
    const size_t end = ValueEnd(object, value);
    member(key, object.substr(value, end - value));
    at = SkipSpaces(object, end);
    if (at < object.size() && object[at] == ',') at = SkipSpaces(object, at + 1);
  }
}

std::optional<std::string> TextOf(std::string_view json) {
  if (!json.starts_with('"')) return std::nullopt;
  return Json::parse(json).get<std::string>();
}

// `json` is valid, or text of the model that need not be.
std::optional<std::string> ArgumentsOf(std::string_view json) {
  if (json.empty() || json == "null") return "{}";
  if (const std::optional<std::string> text = TextOf(json)) {
    const std::string_view inner(*text);
    const size_t begin = SkipSpaces(inner, 0);
    if (begin == inner.size()) return "{}";
    if (inner[begin] != '{' || ValueEnd(inner, begin) == std::string_view::npos ||
        !Json::accept(inner)) {
      return std::nullopt;
    }
    return text;
  }
  if (!json.starts_with('{')) return std::nullopt;
  return std::string(json);
}

// `inner`: the value of "function".
std::optional<ToolCall> CallIn(std::string_view object, bool inner) {
  std::optional<std::string> name;
  std::string_view arguments, function;
  ForEachMember(object, [&](const std::string& key, std::string_view value) {
    if (key == "name" || key == "tool_name") {
      name = TextOf(value);
    } else if (key == "arguments" || key == "parameters") {
      arguments = value;
    } else if (key == "function") {
      function = value;
    }
  });
  if (!name && function.starts_with('"')) name = TextOf(function);
  if (!name && function.starts_with('{') && !inner) return CallIn(function, /*inner=*/true);
  if (!name || !IsToolName(*name)) return std::nullopt;
  std::optional<std::string> told = ArgumentsOf(arguments);
  if (!told) return std::nullopt;
  return ToolCall{.id = {}, .name = *std::move(name), .arguments_json = *std::move(told)};
}

}  // namespace

size_t SkipSpaces(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(kJsonSpaces, at), text.size());
}

size_t TrimmedEnd(std::string_view text, size_t end) {
  const size_t last = text.substr(0, end).find_last_not_of(kJsonSpaces);
  return last == std::string_view::npos ? 0 : last + 1;
}

size_t ValueEnd(std::string_view text, size_t at) {
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = StringEnd(text, at);
      if (at == std::string_view::npos) return at;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxJsonDepth) break;
      ++at;
    } else if (c == '}' || c == ']') {
      if (--depth < 0) break;
      ++at;
    } else if (depth > 0) {
      ++at;
      continue;
    } else {
      const size_t end = std::min(text.find_first_of(",]}: \t\n\r\"", at), text.size());
      return end > at ? end : std::string_view::npos;
    }
    if (depth == 0) return at;
  }
  return std::string_view::npos;
}

bool IsJson(std::string_view text) { return Json::accept(text); }

std::string DumpJson(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<ToolCall> CallOf(std::string_view object) { return CallIn(object, /*inner=*/false); }

std::optional<ToolCall> CallNamed(std::string_view name, std::string_view arguments) {
  const size_t begin = SkipSpaces(name, 0);
  const size_t end = TrimmedEnd(name, name.size());
  if (end <= begin) return std::nullopt;
  name = name.substr(begin, end - begin);
  if (!IsToolName(name)) return std::nullopt;
  std::optional<std::string> told = ArgumentsOf(arguments);
  if (!told) return std::nullopt;
  return ToolCall{.id = {}, .name = std::string(name), .arguments_json = *std::move(told)};
}

}  // namespace withy::engine
