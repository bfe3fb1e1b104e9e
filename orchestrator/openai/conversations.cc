#include "orchestrator/openai/conversations.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "orchestrator/call/digest.h"
#include "orchestrator/call/validate_tools.h"
#include "policy/constants.h"

namespace withy::orchestrator {
namespace {

// Clients may parse arguments and write them anew. What is not parsed is refused later on.
std::string SortedJson(const std::string& json) {
  nlohmann::json parsed;
  return ParseJson(json, &parsed).ok() ? parsed.dump() : json;
}

std::string Continue(const std::string& digest, const v1::Message& message) {
  std::string said = digest;
  const auto add = [&](const std::string& text) { absl::StrAppend(&said, text.size(), ":", text); };
  add(message.role());
  add(message.content());
  add(message.tool_call_id());
  for (const v1::ToolCall& call : message.tool_calls()) {
    add(call.id());
    add(call.name());
    add(SortedJson(call.arguments_json()));
  }
  return Sha256(said);
}

size_t BytesOf(const v1::Messages& messages) {
  size_t bytes = messages.tools_json().size();
  for (const v1::Message& message : messages.messages()) {
    bytes += message.content().size();
    for (const v1::ToolCall& call : message.tool_calls()) bytes += call.arguments_json().size();
  }
  return bytes;
}

bool BeginsWithSystem(const v1::Messages& messages) {
  return !messages.messages().empty() && messages.messages(0).role() == "system";
}

}  // namespace

std::vector<std::string> ConversationDigests(const v1::Messages& messages) {
  std::vector<std::string> digests(1);
  for (const v1::Message& message : messages.messages()) {
    digests.push_back(Continue(digests.back(), message));
  }
  return digests;
}

std::optional<Conversations::Place> Conversations::Take(const std::string& app_id,
                                                        const v1::Messages& messages,
                                                        absl::Time deadline) {
  if (BytesOf(messages) < policy::kLeastConversationBytes) return std::nullopt;
  FindEarlier(app_id, deadline);
  const std::vector<std::string> digests = ConversationDigests(messages);
  {
    absl::MutexLock lock(&mutex_);
    std::list<Kept>& kept = by_app_[app_id].kept;
    // The last message is the call's own.
    for (size_t known = digests.size() - 2; known >= 1; --known) {
      const auto found = std::find_if(
          kept.begin(), kept.end(), [&](const Kept& one) { return one.digest == digests[known]; });
      if (found == kept.end()) continue;
      Place place{app_id, found->context_id, known};
      kept.erase(found);
      return place;
    }
  }
  v1::CreateContextRequest request;
  request.set_title(kTitle);
  const bool system = BeginsWithSystem(messages);
  if (system && messages.messages_size() == 1) return std::nullopt;
  if (system) request.set_system_prompt(messages.messages(0).content());
  const auto created = apps_.CreateKeptContext(app_id, request, deadline);
  if (!created.ok()) return std::nullopt;
  return Place{app_id, created->context().context_id(), system ? size_t{1} : size_t{0}};
}

void Conversations::Return(const Place& place, const v1::Messages& messages,
                           const v1::Message* answer, absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    App& app = by_app_[place.app_id];
    if (answer == nullptr) {
      app.stale.push_back({.digest = "", .context_id = place.context_id});
    } else {
      app.kept.push_front({.digest = Continue(ConversationDigests(messages).back(), *answer),
                           .context_id = place.context_id,
                           .messages = static_cast<uint32_t>(messages.messages_size()) + 1});
    }
    while (app.kept.size() > kKept) {
      app.stale.push_back(std::move(app.kept.back()));
      app.kept.pop_back();
    }
  }
  DeleteStale(place.app_id, deadline);
}

// Once for each app and run of the orchestrator. What a call before it may have created meanwhile
// is listed, too, but has no answer yet.
void Conversations::FindEarlier(const std::string& app_id, absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    App& app = by_app_[app_id];
    if (std::exchange(app.found, true)) return;
  }
  v1::ListContextsRequest request;
  request.set_page_size(1000);
  do {
    const auto page = apps_.ListContexts(app_id, request, deadline);
    if (!page.ok()) return;
    for (const v1::ContextInfo& info : page->contexts()) {
      if (!info.kept_by_service()) continue;
      v1::GetContextRequest get;
      get.set_context_id(info.context_id());
      const auto context = apps_.GetContext(app_id, get, deadline);
      if (!context.ok()) continue;
      v1::Messages messages;
      bool whole = !context->messages().empty();
      for (const v1::ContextMessage& message : context->messages()) {
        *messages.add_messages() = message.message();
        whole = whole && !message.cancelled();
      }
      whole = whole && messages.messages().rbegin()->role() == "assistant";
      absl::MutexLock lock(&mutex_);
      App& app = by_app_[app_id];
      if (whole && app.kept.size() < kKept) {
        app.kept.push_back({.digest = ConversationDigests(messages).back(),
                            .context_id = info.context_id(),
                            .messages = info.messages()});
      } else if (info.messages() > 0) {
        app.stale.push_back({.digest = "", .context_id = info.context_id()});
      }
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
}

// Whether the app itself has gone on in the context: then it is no copy of what a client keeps.
bool Conversations::WasContinued(const std::string& app_id, const Kept& kept,
                                 absl::Time deadline) const {
  if (kept.messages == 0) return false;
  v1::GetContextRequest request;
  request.set_context_id(kept.context_id);
  const auto context = apps_.GetContext(app_id, request, deadline);
  return context.ok() && context->context().messages() != kept.messages;
}

// A context whose call is just ending is busy yet: it is tried again after the next call.
void Conversations::DeleteStale(const std::string& app_id, absl::Time deadline) {
  std::vector<Kept> stale;
  {
    absl::MutexLock lock(&mutex_);
    stale.swap(by_app_[app_id].stale);
  }
  for (Kept& one : stale) {
    if (WasContinued(app_id, one, deadline)) continue;
    v1::DeleteContextRequest request;
    request.set_context_id(one.context_id);
    const absl::Status deleted = apps_.DeleteContext(app_id, request, deadline).status();
    if (deleted.ok() || absl::IsNotFound(deleted)) continue;
    absl::MutexLock lock(&mutex_);
    by_app_[app_id].stale.push_back(std::move(one));
  }
}

}  // namespace withy::orchestrator
