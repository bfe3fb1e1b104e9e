#include "offline/tlm/prompt_file.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/status.h"

namespace withy::tlm {
namespace {

using nlohmann::json;

constexpr char kLineForm[] =
    R"(; a line is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]})";

bool IsMessage(const json& message) {
  return message.is_object() && message.contains("role") && message["role"].is_string() &&
         message.contains("content") && message["content"].is_string();
}

size_t TextBytes(const corpus::Record& record) {
  size_t bytes = 0;
  for (const corpus::Message& message : record.messages) bytes += message.content.size();
  return bytes;
}

}  // namespace

absl::StatusOr<corpus::Record> ParseOwnPrompt(std::string_view line, std::string_view where) {
  const auto bad = [where](const char* what) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(where), ": ", what, kLineForm));
  };
  const json parsed = json::parse(line, nullptr, false);
  if (!parsed.is_object()) return bad("is not a JSON object");
  corpus::Record record;
  const auto prompt = parsed.find("prompt");
  const auto messages = parsed.find("messages");
  if ((prompt == parsed.end()) == (messages == parsed.end())) {
    return bad("has not exactly one of \"prompt\" and \"messages\"");
  }
  if (prompt != parsed.end()) {
    if (!prompt->is_string()) return bad("\"prompt\" is not a string");
    record.messages.push_back({.role = "user", .content = prompt->get<std::string>(), .fixed = {}});
  } else {
    if (!messages->is_array()) return bad("\"messages\" is not a list");
    for (const json& message : *messages) {
      if (!IsMessage(message)) return bad("a message lacks the string \"role\" or \"content\"");
      record.messages.push_back({.role = message["role"].get<std::string>(),
                                 .content = message["content"].get<std::string>(),
                                 .fixed = {}});
    }
    if (record.messages.empty() || record.messages.back().role != "user") {
      return bad("does not end with a message of the user");
    }
  }
  if (record.messages.back().content.empty()) return bad("the user says nothing");
  return record;
}

absl::StatusOr<OwnPrompts> ReadOwnPrompts(const std::string& path, int64_t most) {
  std::ifstream in(path);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened: --prompts"));
  OwnPrompts prompts;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (line.empty()) continue;
    WITHY_ASSIGN_OR_RETURN(corpus::Record record,
                           ParseOwnPrompt(line, absl::StrCat(path, ", line ", number)));
    if (TextBytes(record) > kMaxOwnPromptBytes) {
      ++prompts.too_long;
    } else if (static_cast<int64_t>(prompts.records.size()) < most) {
      prompts.records.push_back(std::move(record));
    }
  }
  if (prompts.records.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has no prompt of at most ", kMaxOwnPromptBytes, " bytes", kLineForm));
  }
  return prompts;
}

}  // namespace withy::tlm
