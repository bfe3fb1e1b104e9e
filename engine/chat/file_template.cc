#include "engine/chat/file_template.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/chat/tool_calls.h"
#include "engine/jinja/json.h"

namespace withy::engine {
namespace {

using jinja::Dict;
using jinja::Value;

constexpr int64_t kBaseSteps = 4'000'000;
constexpr int64_t kStepsPerByte = 8;  // of the messages: a dozen passes over them

// How a chat is told to a template. Templates differ in what they expect of calls.
struct Telling {
  bool arguments_parsed = true;  // of calls: objects, not JSON in a string
  bool empty_is_none = true;     // the content of a message that only calls
  bool malformed_kept = true;    // arguments that are no object: as the text that they are
};

// In the order in which they are tried.
constexpr Telling kTellings[] = {{true, true, true},   {false, true, true}, {true, false, true},
                                 {false, false, true}, {true, true, false}, {true, false, false}};

// What an object is that a model wrote wrongly: for templates that go through the arguments.
Value MalformedArguments(const Value& text) {
  Dict object;
  object.Set("malformed_arguments", text);
  return Value::Of(std::move(object));
}

// An empty text, or null, for a call without arguments.
bool SaysNothing(std::string_view arguments) {
  const size_t begin = arguments.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return true;
  return arguments.substr(begin, arguments.find_last_not_of(" \t\r\n") + 1 - begin) == "null";
}

// `calls` with arguments that are JSON in a string as what they say.
absl::StatusOr<Value> CallsFromJson(const std::string& json, int32_t source,
                                    const Telling& telling) {
  WITHY_ASSIGN_OR_RETURN(const Value calls, jinja::FromJson(json, source));
  if (calls.kind() != jinja::Kind::kList) {
    return absl::InvalidArgumentError("tool_calls are not a list");
  }
  std::vector<Value> told;
  for (const Value& call : calls.items()) {
    const Value* function = call.is_dict() ? call.dict().Find("function") : nullptr;
    const Value* arguments =
        function != nullptr && function->is_dict() ? function->dict().Find("arguments") : nullptr;
    if (arguments == nullptr) {
      return absl::InvalidArgumentError("tool_calls: an entry has no function.arguments");
    }
    Value changed = *arguments;
    if (telling.arguments_parsed && arguments->is_string()) {
      const std::string& text = arguments->text().bytes();
      auto object = jinja::FromJson(SaysNothing(text) ? "{}" : text, source);
      if (object.ok() && object->is_dict()) {
        changed = *std::move(object);
      } else if (!telling.malformed_kept) {
        changed = MalformedArguments(*arguments);
      }
    } else if (!telling.arguments_parsed && !arguments->is_string()) {
      WITHY_ASSIGN_OR_RETURN(jinja::Text text, jinja::ToJson(*arguments, {}));
      changed = Value::String(std::move(text));
    }
    Dict new_function = function->dict();
    new_function.Set("arguments", std::move(changed));
    Dict new_call = call.dict();
    new_call.Set("function", Value::Of(std::move(new_function)));
    told.push_back(Value::Of(std::move(new_call)));
  }
  return Value::List(std::move(told));
}

absl::StatusOr<Value> MessageValue(const ChatMessage& message, jinja::Text content, int32_t index,
                                   const Telling& telling) {
  Dict value;
  value.Set("role", Value::String(message.role));  // one of the known ones, so it may be markup
  const bool calls = !message.tool_calls_json.empty();
  if (calls && content.empty() && telling.empty_is_none) {
    value.Set("content", Value::None());
  } else {
    value.Set("content", Value::String(std::move(content)));
  }
  if (calls) {
    auto told = CallsFromJson(message.tool_calls_json, jinja::kFromData, telling);
    if (!told.ok()) return Annotate(told.status(), absl::StrCat("messages[", index, "]"));
    value.Set("tool_calls", *std::move(told));
  }
  if (!message.name.empty()) value.Set("name", Value::String(message.name, jinja::kFromData));
  if (!message.tool_call_id.empty()) {
    value.Set("tool_call_id", Value::String(message.tool_call_id, jinja::kFromData));
  }
  return Value::Of(std::move(value));
}

// All messages. With `fold`, a system message in front is put before the text of the user's message
// behind it, for templates without system messages.
absl::StatusOr<Value> MessageValues(std::span<const ChatMessage> messages, bool fold,
                                    const Telling& telling) {
  std::vector<Value> values;
  for (size_t i = 0; i < messages.size(); ++i) {
    jinja::Text content;
    size_t shown = i;
    if (fold && i == 0 && messages[0].role == kSystemRole) {
      if (messages.size() < 2 || messages[1].role != kUserRole) {
        return absl::InvalidArgumentError(
            "messages[0]: the model's chat template takes a system message only in front of a "
            "user's");
      }
      content.Append(messages[0].content, 0);
      content.Append("\n\n");
      shown = ++i;
    }
    content.Append(messages[shown].content, static_cast<int32_t>(shown));
    WITHY_ASSIGN_OR_RETURN(Value value, MessageValue(messages[shown], std::move(content),
                                                     static_cast<int32_t>(shown), telling));
    values.push_back(std::move(value));
  }
  return Value::List(std::move(values));
}

std::tm LocalTime(int64_t unix_s) {
  std::tm local = {};
  const auto time = static_cast<std::time_t>(unix_s);
  localtime_r(&time, &local);
  return local;
}

ChatPiece PieceOf(const jinja::Text::Piece& from, std::span<const ChatMessage> messages) {
  ChatPiece piece;
  piece.text = std::string(from.text);
  piece.special = from.source == jinja::kFromTemplate;
  if (from.source < 0) return piece;
  piece.message = from.source;
  piece.offset = static_cast<uint32_t>(from.offset);
  const auto end = static_cast<uint32_t>(from.offset + from.text.size());
  for (const ByteSpan& span : messages[static_cast<size_t>(from.source)].fixed_spans) {
    const uint32_t first = std::clamp(span.begin, piece.offset, end);
    const uint32_t last = std::clamp(span.end, piece.offset, end);
    if (first < last) piece.fixed_spans.push_back({first - piece.offset, last - piece.offset});
  }
  return piece;
}

// Names that a template knows already.
constexpr std::array<std::string_view, 18> kReserved = {"messages",
                                                        "tools",
                                                        "add_generation_prompt",
                                                        "bos_token",
                                                        "eos_token",
                                                        "loop",
                                                        "range",
                                                        "dict",
                                                        "namespace",
                                                        "raise_exception",
                                                        "strftime_now",
                                                        "self",
                                                        "true",
                                                        "True",
                                                        "false",
                                                        "False",
                                                        "none",
                                                        "None"};

absl::Status AddArguments(std::string_view json, Dict* globals) {
  if (IsEmptyJson(json)) return absl::OkStatus();
  auto arguments = jinja::FromJson(json, jinja::kFromData);
  if (!arguments.ok()) return Annotate(arguments.status(), "template arguments");
  if (!arguments->is_dict()) {
    return absl::InvalidArgumentError("template arguments: not a JSON object");
  }
  for (const auto& [key, value] : arguments->dict().entries()) {
    const std::string& name = key.text().bytes();
    if (std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("template arguments: \"", name, "\" is the template's own: leave it out"));
    }
    globals->Set(name, value);
  }
  return absl::OkStatus();
}

ChatMessage Says(const char* role, const char* content) {
  return {.role = role, .content = content};
}

}  // namespace

std::string_view NamedToken(const GgufFile& file, std::string_view key) {
  const absl::StatusOr<uint64_t> id = file.GetUint(key);
  const auto tokens = file.GetStringArray("tokenizer.ggml.tokens");
  return id.ok() && tokens.ok() && *id < tokens->size() ? (*tokens)[*id] : std::string_view();
}

absl::StatusOr<FileTemplate> FileTemplate::FromFile(const GgufFile& file) {
  WITHY_ASSIGN_OR_RETURN(const std::string_view text, file.GetString("tokenizer.chat_template"));
  const std::string tool_use =
      std::string(file.GetStringOr("tokenizer.chat_template.tool_use", "").value_or(""));
  return FromText(text, tool_use, NamedToken(file, "tokenizer.ggml.bos_token_id"),
                  NamedToken(file, "tokenizer.ggml.eos_token_id"));
}

absl::StatusOr<FileTemplate> FileTemplate::FromText(std::string_view text,
                                                    std::string_view tool_use, std::string_view bos,
                                                    std::string_view eos) {
  WITHY_ASSIGN_OR_RETURN(jinja::Template main, jinja::Template::Parse(text));
  std::optional<jinja::Template> with_tools;
  if (!tool_use.empty()) {
    // Chats without tools do not need it: a variant that cannot be executed is not there.
    auto parsed = jinja::Template::Parse(tool_use);
    if (parsed.ok()) with_tools = *std::move(parsed);
  }
  FileTemplate made(std::move(main), std::move(with_tools));
  made.bos_ = bos;
  made.eos_ = eos;
  made.traits_.takes_system = true;  // shown as they are, until it is known
  const std::vector<ChatMessage> question = {Says(kUserRole, "a")};
  WITHY_RETURN_IF_ERROR(made.Run(question, {.add_generation_prompt = true}).status());
  if (!made.Shows(question, 0)) {
    return absl::UnimplementedError("it does not show a user's message");
  }
  made.FindTraits();
  return made;
}

bool FileTemplate::Shows(std::span<const ChatMessage> messages, int32_t index,
                         std::string_view tools_json) const {
  const auto text = Run(messages, {.add_generation_prompt = true, .tools_json = tools_json});
  if (!text.ok()) return false;
  const std::vector<jinja::Text::Piece> pieces = text->Pieces();
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](const auto& piece) { return piece.source == index; });
}

bool FileTemplate::ShowsText(std::span<const ChatMessage> messages, std::string_view tools_json,
                             std::string_view text) const {
  const auto shown = Run(messages, {.add_generation_prompt = true, .tools_json = tools_json});
  return shown.ok() && shown->bytes().find(text) != std::string::npos;
}

void FileTemplate::FindTraits() {
  const ChatMessage user = Says(kUserRole, "a");
  const ChatMessage system = Says(kSystemRole, "b");
  const ChatMessage answer = Says(kAssistantRole, "c");
  const ChatMessage developer = Says(kDeveloperRole, "d");
  constexpr char kCalled[] = "look_at_this";
  constexpr char kTool[] = "look_at_that";
  ChatMessage calls = Says(kAssistantRole, "");
  calls.tool_calls_json =
      R"([{"id":"abcdefghi","type":"function","function":{"name":"look_at_this","arguments":{}}}])";
  constexpr char kTools[] =
      R"([{"type":"function","function":{"name":"look_at_that","description":"Looks.","parameters":)"
      R"({"type":"object","properties":{"at":{"type":"string","description":"What"}},)"
      R"("required":["at"]}}}])";
  ChatMessage result = Says(kToolRole, "e");
  result.name = kCalled;
  result.tool_call_id = "abcdefghi";
  TemplateTraits traits;
  const auto shows = [this](std::vector<ChatMessage> chat, int32_t index,
                            std::string_view tools = "") { return Shows(chat, index, tools); };
  traits.takes_system = shows({system, user}, 0);
  traits.takes_late_system = shows({user, answer, system, user}, 2);
  traits.takes_developer = shows({developer, user}, 0);
  traits.takes_tools = ShowsText(std::vector{user}, kTools, kTool) ||
                       ShowsText(std::vector{system, user}, kTools, kTool);
  // With tools another template may be chosen. It may show the names of results, too, which are
  // those of the calls; here they differ.
  for (const std::string_view tools : {std::string_view(), std::string_view(kTools)}) {
    traits.takes_tool = traits.takes_tool || shows({user, answer, result}, 2, tools) ||
                        shows({user, calls, result}, 2, tools);
    result.name = "look_elsewhere";
    traits.takes_calls = traits.takes_calls ||
                         ShowsText(std::vector{user, calls}, tools, kCalled) ||
                         ShowsText(std::vector{user, calls, result}, tools, kCalled);
    result.name = kCalled;
    if (tools.empty()) main_takes_calls_ = traits.takes_calls;
  }
  traits.alternates = !shows({user, user}, 1);
  traits_ = traits;
}

absl::StatusOr<jinja::Text> FileTemplate::Run(std::span<const ChatMessage> messages,
                                              const ChatOptions& options) const {
  Dict globals;
  Value tools = Value::None();
  if (!IsEmptyJson(options.tools_json)) {
    auto parsed = jinja::FromJson(options.tools_json, jinja::kFromData);
    if (!parsed.ok()) return Annotate(parsed.status(), "tools");
    if (parsed->kind() != jinja::Kind::kList) {
      return absl::InvalidArgumentError("tools: not a list");
    }
    if (!parsed->items().empty()) tools = *std::move(parsed);
  }
  globals.Set("documents", Value::None());  // unless the arguments have some
  WITHY_RETURN_IF_ERROR(AddArguments(options.arguments_json, &globals));
  globals.Set("tools", tools);
  globals.Set("add_generation_prompt", Value::Bool(options.add_generation_prompt));
  globals.Set("bos_token", Value::String(bos_));
  globals.Set("eos_token", Value::String(eos_));
  jinja::RenderOptions render;
  render.now = LocalTime(options.unix_s);
  size_t bytes = options.tools_json.size() + options.arguments_json.size();
  bool calls = false;
  for (const ChatMessage& message : messages) {
    bytes += message.content.size() + message.tool_calls_json.size();
    calls = calls || !message.tool_calls_json.empty();
  }
  render.max_steps = kBaseSteps + kStepsPerByte * static_cast<int64_t>(bytes);
  const auto run = [&](const jinja::Template& chosen) -> absl::StatusOr<jinja::Text> {
    absl::Status first_failure;
    for (const Telling& telling : kTellings) {
      WITHY_ASSIGN_OR_RETURN(Value told, MessageValues(messages, !traits_.takes_system, telling));
      globals.Set("messages", std::move(told));
      auto text = chosen.Render(globals, render);
      // Only a failed operation may go better with calls told otherwise.
      if (text.ok() || !calls || !absl::IsInvalidArgument(text.status())) return text;
      first_failure.Update(text.status());
    }
    return first_failure;
  };
  if (!tool_use_) return run(main_);
  if (!tools.is_none()) return run(*tool_use_);
  // Calls of turns before that had tools are shown by the variant that knows them.
  if (calls && !main_takes_calls_) {
    auto text = run(*tool_use_);
    if (text.ok()) return text;
  }
  return run(main_);
}

absl::StatusOr<RenderedChat> FileTemplate::Render(std::span<const ChatMessage> messages,
                                                  const ChatOptions& options) const {
  const absl::StatusOr<jinja::Text> text = Run(messages, options);
  if (!text.ok()) {
    const bool refused = absl::IsFailedPrecondition(text.status());
    return absl::InvalidArgumentError(
        absl::StrCat("the model's chat template ",
                     refused ? "refuses these messages: " : "fails on these messages: ",
                     text.status().message()));
  }
  RenderedChat chat;
  for (const jinja::Text::Piece& piece : text->Pieces()) {
    chat.pieces.push_back(PieceOf(piece, messages));
  }
  return chat;
}

}  // namespace withy::engine
