// withyctl contexts: the app's stored contexts.
#include <iostream>

#include "base/status.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/kv_stats.h"
#include "cli/output.h"
#include "cli/stats.h"
#include "cli/terminal_text.h"
#include "cli/utf8.h"

namespace withy::cli {
namespace {

int ListContexts(const Args& args) {
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  const int64_t now = Clock::Real().UnixNanos() / kNanosPerSecond;
  v1::ListContextsResponse all;
  std::vector<std::vector<std::string>> rows = {
      {"ID", "TITLE", "MESSAGES", "TOKENS", "IN MEMORY", "ON DISK", "LAST USED"}};
  v1::ListContextsRequest request;
  do {
    auto page = (*client)->ListContexts(request);
    if (!page.ok()) return Fail(page.status());
    for (const v1::ContextInfo& context : page->contexts()) {
      const std::string kept = context.kept_by_service() ? " (kept by withy)" : "";
      rows.push_back({context.context_id(), context.title() + kept,
                      std::to_string(context.messages()), std::to_string(context.tokens()),
                      Bytes(context.resident_bytes()), Bytes(context.stored_bytes()),
                      Ago(context.last_used_unix_s(), now)});
    }
    request.set_page_token(page->next_page_token());
    all.mutable_contexts()->MergeFrom(page->contexts());
  } while (!request.page_token().empty());
  std::cout << (args.Has("json") ? ToJson(all) + "\n" : Table(rows));
  return kExitOk;
}

// A letter for each chunk of the context's KV.
std::string DrawChunks(const v1::GetContextResponse& context) {
  const auto letter = [](const v1::ChunkRun& run) {
    switch (run.resident()) {
      case v1::KV_FORMAT_Q8:
        return '8';
      case v1::KV_FORMAT_Q8_GLOBAL:
        return 'w';
      case v1::KV_FORMAT_Q4:
        return '4';
      case v1::KV_FORMAT_Q4_Q2:
        return '3';
      case v1::KV_FORMAT_Q2:
        return '2';
      default:
        return run.stored() != v1::KV_FORMAT_UNSPECIFIED ? 's' : '.';
    }
  };
  std::string drawing;
  uint32_t shared = 0;
  for (const v1::ChunkRun& run : context.chunks()) {
    drawing.append(run.chunks(), letter(run));
    if (run.shared()) shared += run.chunks();
  }
  if (drawing.empty()) return "";
  drawing =
      "KV, a letter for 16 tokens (bits in memory; w: 8, less what sliding windows hide; s: on "
      "disk only): " +
      drawing + "\n";
  if (shared > 0) drawing += "Shared with other contexts: " + Counted(shared, "chunk") + "\n";
  if (const uint32_t tokens = context.context().compressed_kv_tokens(); tokens > 0) {
    drawing += "In fewer bits than 8, for want of room: " + Counted(tokens, "token") +
               "; answers may differ from those of a new context\n";
  }
  return drawing + "\n";
}

// Checks the ID operands.
absl::Status CheckIds(const Args& args) {
  for (const std::string& id : args.positional()) WITHY_RETURN_IF_ERROR(CheckUtf8("ID", id));
  return absl::OkStatus();
}

int RunShow(const Args& args) {
  if (args.positional().size() != 1) return FailUsage("contexts show takes one ID");
  if (const absl::Status ids = CheckIds(args); !ids.ok()) return FailUsage(ToStd(ids.message()));
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  v1::GetContextRequest request;
  request.set_context_id(args.positional()[0]);
  const auto context = (*client)->GetContext(request);
  if (!context.ok()) return Fail(context.status());
  if (args.Has("json")) {
    std::cout << ToJson(*context) << "\n";
    return kExitOk;
  }
  std::cout << DrawChunks(*context);
  for (const v1::ContextMessage& message : context->messages()) {
    std::cout << message.message().role() << (message.cancelled() ? " (cut short)" : "")
              << (message.dropped() ? " (outside the window, no longer seen)" : "") << ": "
              << ForStandardOutput(message.message().content()) << "\n"
              << CallsText(message.message().tool_calls());
  }
  return kExitOk;
}

int RunCreate(const Args& args) {
  const absl::Status texts = CheckFlagsUtf8(args, {"system", "title", "request-id"});
  if (!texts.ok()) return FailUsage(ToStd(texts.message()));
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  v1::CreateContextRequest request;
  request.set_system_prompt(args.Get("system"));
  request.set_title(args.Get("title"));
  request.set_request_id(args.Get("request-id"));
  const auto created = (*client)->CreateContext(request);
  if (!created.ok()) return Fail(created.status());
  std::cout << (args.Has("json") ? ToJson(*created) : created->context().context_id()) << "\n";
  return kExitOk;
}

int RunDelete(const Args& args) {
  if (args.positional().empty()) return FailUsage("contexts delete takes one or more IDs");
  if (const absl::Status ids = CheckIds(args); !ids.ok()) return FailUsage(ToStd(ids.message()));
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  for (const std::string& id : args.positional()) {
    v1::DeleteContextRequest request;
    request.set_context_id(id);
    const auto deleted = (*client)->DeleteContext(request);
    if (!deleted.ok()) return Fail(deleted.status());
    std::cout << "deleted " << id << "\n";
  }
  return kExitOk;
}

}  // namespace

std::vector<Command> ContextCommands() {
  const Flag json{"json", "", "print JSON"};
  return {
      {"contexts list", "", "list the app's contexts, newest first", WithConnection({json}),
       ListContexts},
      {"contexts show", "ID", "show a context's messages", WithConnection({json}), RunShow},
      {"contexts create", "", "create an empty context and print its ID",
       WithConnection(
           {{"system", "TEXT", "system prompt"},
            {"title", "TEXT", "name for people"},
            {"request-id", "ID", "creating again with the same ID returns the same context"},
            json}),
       RunCreate},
      {"contexts delete", "ID...", "delete contexts permanently", WithConnection({}), RunDelete},
      {"contexts stats", "",
       "KV of all apps' contexts in memory and on disk (for the operator, on the board)",
       WithConnection({json}), RunKvStats},
  };
}

}  // namespace withy::cli
