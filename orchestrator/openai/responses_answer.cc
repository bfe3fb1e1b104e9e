#include "orchestrator/openai/responses_answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "orchestrator/openai/openai_error.h"

namespace withy::orchestrator {
namespace {

using ResponsesJson = OrderedJson;

std::string Written(const ResponsesJson& json) {
  return json.dump(-1, ' ', false, ResponsesJson::error_handler_t::replace);
}

ResponsesJson TextPart(const std::string& text) {
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", ResponsesJson::array()},
          {"logprobs", ResponsesJson::array()}};
}

ResponsesJson UsageOfResponse(const v1::Usage& usage) {
  const uint32_t prompt = usage.context_tokens() + usage.prompt_tokens();
  return {{"input_tokens", prompt},
          {"input_tokens_details", {{"cached_tokens", usage.reused_tokens()}}},
          {"output_tokens", usage.completion_tokens()},
          {"output_tokens_details", {{"reasoning_tokens", 0}}},
          {"total_tokens", prompt + usage.completion_tokens()}};
}

}  // namespace

ResponsesAnswer::ResponsesAnswer(std::span<const OpenAiCall> choices, int64_t created_unix_s)
    : call_(choices.front()),
      created_unix_s_(created_unix_s),
      text_(/*chat=*/true, call_.MayCallTools()) {}

void ResponsesAnswer::Add(const char* type, const OutJson& members, Events* sent) {
  OutJson json = {{"type", type}, {"sequence_number", sequence_++}};
  json.update(members);
  sent->push_back({.name = type, .data = Written(json)});
}

const char* ResponsesAnswer::Status() const {
  switch (text_.outcome().reason()) {
    case v1::FINISH_REASON_MAX_TOKENS:
    case v1::FINISH_REASON_CONTEXT_FULL:
    case v1::FINISH_REASON_KV_FULL:
      return "incomplete";
    default:
      return "completed";
  }
}

ResponsesJson ResponsesAnswer::Reasoning(const std::string& text, const char* status) const {
  OutJson content = OutJson::array();
  if (!text.empty()) content.push_back({{"type", "reasoning_text"}, {"text", text}});
  return {{"type", "reasoning"},
          {"id", absl::StrCat("rs_", CallId())},
          {"summary", OutJson::array()},
          {"content", std::move(content)},
          {"status", status}};
}

ResponsesJson ResponsesAnswer::Message(OutJson content, const char* status) const {
  return {{"type", "message"},
          {"id", absl::StrCat("msg_", CallId())},
          {"status", status},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

ResponsesJson ResponsesAnswer::Call(const v1::ToolCall& call) const {
  return {
      {"type", "function_call"}, {"id", absl::StrCat("fc_", call.id())}, {"call_id", call.id()},
      {"name", call.name()},     {"arguments", call.arguments_json()},   {"status", "completed"}};
}

ResponsesJson ResponsesAnswer::Output() const {
  OutJson output = OutJson::array();
  if (const std::string thought = text_.Thought(); !thought.empty()) {
    output.push_back(Reasoning(thought, "completed"));
  }
  const v1::Message said = text_.Said();
  if (!said.content().empty() || said.tool_calls().empty()) {
    output.push_back(Message(OutJson::array({TextPart(said.content())}), Status()));
  }
  for (const v1::ToolCall& call : said.tool_calls()) output.push_back(Call(call));
  return output;
}

// With the members of the request that clients read in a response.
ResponsesJson ResponsesAnswer::Response(const char* status, OutJson output) const {
  const bool cut = std::string_view(status) == "incomplete";
  const bool finished = text_.finished();
  OutJson json = {
      {"id", absl::StrCat("resp_", CallId())},
      {"object", "response"},
      {"created_at", created_unix_s_},
      {"status", status},
      {"error", nullptr},
      {"incomplete_details", cut ? OutJson{{"reason", "max_output_tokens"}} : OutJson(nullptr)},
      {"model", text_.started().model()},
      {"output", std::move(output)},
      {"usage", finished ? UsageOfResponse(text_.outcome().usage()) : OutJson(nullptr)},
      {"previous_response_id", nullptr},
      {"store", false}};
  const std::pair<const char*, OutJson> echoed[] = {{"instructions", nullptr},
                                                    {"max_output_tokens", nullptr},
                                                    {"metadata", OutJson::object()},
                                                    {"parallel_tool_calls", true},
                                                    {"temperature", nullptr},
                                                    {"text", {{"format", {{"type", "text"}}}}},
                                                    {"tool_choice", "auto"},
                                                    {"tools", OutJson::array()},
                                                    {"top_p", nullptr},
                                                    {"truncation", "disabled"}};
  for (const auto& [name, otherwise] : echoed) {
    const auto given = call_.asked->find(name);
    const bool there = given != call_.asked->end() && !given->is_null();
    json[name] = there ? *given : otherwise;
  }
  return json;
}

void ResponsesAnswer::BeginItem(Item item, Events* sent) {
  EndItem(sent);
  item_ = item;
  const bool message = item == Item::kMessage;
  OutJson begun = message ? Message(OutJson::array(), "in_progress") : Reasoning("", "in_progress");
  const OutJson id = begun["id"];
  Add("response.output_item.added", {{"output_index", items_++}, {"item", std::move(begun)}}, sent);
  if (!message) return;
  Add("response.content_part.added",
      {{"item_id", id}, {"output_index", items_ - 1}, {"content_index", 0}, {"part", TextPart("")}},
      sent);
}

void ResponsesAnswer::EndItem(Events* sent) {
  const Item item = std::exchange(item_, Item::kNone);
  if (item == Item::kNone) return;
  const std::string text = std::exchange(item_text_, "");
  const bool message = item == Item::kMessage;
  OutJson whole = message ? Message(OutJson::array({TextPart(text)}), "completed")
                          : Reasoning(text, "completed");
  OutJson place = {{"item_id", whole["id"]}, {"output_index", items_ - 1}, {"content_index", 0}};
  OutJson done = place;
  done["text"] = text;
  if (message) done["logprobs"] = OutJson::array();
  Add(message ? "response.output_text.done" : "response.reasoning_text.done", done, sent);
  if (message) {
    place["part"] = TextPart(text);
    Add("response.content_part.done", place, sent);
  }
  Add("response.output_item.done", {{"output_index", items_ - 1}, {"item", std::move(whole)}},
      sent);
}

void ResponsesAnswer::AddPieces(const std::vector<AnswerPiece>& pieces, Events* sent) {
  for (const AnswerPiece& piece : pieces) {
    if (piece.text.empty()) continue;
    const Item item = piece.thought ? Item::kReasoning : Item::kMessage;
    if (item_ != item) BeginItem(item, sent);
    item_text_ += piece.text;
    OutJson delta = {{"item_id", absl::StrCat(piece.thought ? "rs_" : "msg_", CallId())},
                     {"output_index", items_ - 1},
                     {"content_index", 0},
                     {"delta", piece.text}};
    if (!piece.thought) delta["logprobs"] = OutJson::array();
    Add(piece.thought ? "response.reasoning_text.delta" : "response.output_text.delta", delta,
        sent);
  }
}

void ResponsesAnswer::AddCall(const v1::ToolCall& call, Events* sent) {
  EndItem(sent);
  OutJson item = Call(call);
  OutJson begun = item;
  begun["arguments"] = "";
  begun["status"] = "in_progress";
  const int index = items_++;
  const OutJson place = {{"item_id", item["id"]}, {"output_index", index}};
  Add("response.output_item.added", {{"output_index", index}, {"item", std::move(begun)}}, sent);
  OutJson delta = place;
  delta["delta"] = call.arguments_json();
  Add("response.function_call_arguments.delta", delta, sent);
  OutJson done = place;
  done["name"] = call.name();
  done["arguments"] = call.arguments_json();
  Add("response.function_call_arguments.done", done, sent);
  Add("response.output_item.done", {{"output_index", index}, {"item", std::move(item)}}, sent);
}

std::vector<ServerEvent> ResponsesAnswer::OnEvent(size_t /*choice*/,
                                                  const v1::GenerateResponse& event) {
  Events sent;
  if (event.has_delta()) {
    AddPieces(text_.Add(event.delta()), &sent);
  } else if (event.has_started() && text_.Start(event.started())) {
    for (const char* type : {"response.created", "response.in_progress"}) {
      Add(type, {{"response", Response("in_progress", OutJson::array())}}, &sent);
    }
  } else if (event.has_finished()) {
    AddPieces(text_.Finish(event.finished()), &sent);
    if (items_ == 0 && event.finished().tool_calls().empty()) BeginItem(Item::kMessage, &sent);
    EndItem(&sent);
    for (const v1::ToolCall& call : event.finished().tool_calls()) AddCall(call, &sent);
  }
  return sent;
}

std::vector<ServerEvent> ResponsesAnswer::End() {
  Events sent;
  const bool whole = std::string_view(Status()) == "completed";
  Add(whole ? "response.completed" : "response.incomplete",
      {{"response", Response(Status(), Output())}}, &sent);
  return sent;
}

std::vector<ServerEvent> ResponsesAnswer::Fail(const absl::Status& status) {
  Events sent;
  OutJson error = OutJson::parse(OpenAiError(status))["error"];
  OutJson response = Response("failed", OutJson::array());
  response["error"] = {{"code", error["code"].is_null() ? error["type"] : error["code"]},
                       {"message", error["message"]}};
  Add("response.failed", {{"response", std::move(response)}}, &sent);
  return sent;
}

std::string ResponsesAnswer::Document() const { return Written(Response(Status(), Output())); }

}  // namespace withy::orchestrator
